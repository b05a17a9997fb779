#include "memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"
#include "parallel.h"
#include "params.h"

namespace fa3::test {

using tools::Layout;

namespace {

// Each tile is one row, and then (batch, heads, tiles, head_dim_v, 16).
Layout lay_out_tiles(const Problem& p) {
  Layout layout = lay_out(p.v, p.dtype, p.batch, (p.seqlen_k + 15) / 16, p.heads_kv, 16 * p.v_dim());
  layout.dim = {p.batch, p.heads_kv, (p.seqlen_k + 15) / 16, p.v_dim(), 16};
  layout.stride = {layout.stride[0], layout.stride[2], layout.stride[1], 16, 1};
  return layout;
}

// The same for all problems of one shape. Heads before batch entries, with gaps of `unit`.
Layout lay_out_numbers(int64_t batch, int64_t heads, int64_t row, int64_t unit) {
  return Layout::make({batch, heads, row}, {1, 0, 2}, {0, unit, unit});
}

// Elements of rows (tensor, batch, head, row): N(0,1), then the pattern's change. Depends on indices only, so that
// views that share memory (stride 0) and any layout hold the same numbers.
class Filler {
 public:
  explicit Filler(const Problem& p) : p_(p) {
    // With q = u + noise and k = t u + noise, u of +-1, the score is about t * head_dim * scale.
    per_score_ = 1 / (double(p.head_dim) * p.scale());
  }

  void row(int tensor, int64_t b, int64_t kv_head, int64_t head, int64_t i, float* out) const {
    const auto d = size_t(tensor == 2 ? p_.v_dim() : p_.head_dim);
    const uint64_t seed = tools::mix(p_.seed, uint64_t(tensor));
    tools::normal(seed, uint64_t((b * 4096 + head) * 1048576 + i) * 256, out, d);
    if (p_.pattern == Pattern::outliers)
      for (size_t c = 0; c < d; ++c)
        if (tools::mix(seed ^ 1, uint64_t(i) * 256 + c) % 512 == 0) out[c] *= 10;
    if (tensor == 2) {
      if (p_.two_level)
        for (size_t c = 0; c < d; ++c) out[c] += 1;
      if (p_.pattern == Pattern::tiny)
        for (size_t c = 0; c < d; ++c) out[c] *= 0x1p-13f;
      return;
    }
    if (p_.pattern == Pattern::constant) std::fill(out, out + d, 0.75f);
    if (p_.pattern == Pattern::large) {
      const double factor = std::sqrt(15 / (std::sqrt(double(p_.head_dim)) * p_.scale()));
      for (size_t c = 0; c < d; ++c) out[c] = float(out[c] * factor);
    }
    if (p_.pattern == Pattern::sink) {  // exact scores, without noise
      const float along = tensor == 0 ? query_part(i) : float(sink_score(i) * per_score_);
      for (size_t c = 0; c < d; ++c) out[c] = along * direction(b, kv_head, c);
    }
    if (p_.pattern == Pattern::growing || p_.pattern == Pattern::shrinking || p_.pattern == Pattern::spikes) {
      const float along = tensor == 0 ? query_part(i) : float(target_score(i) * per_score_);
      for (size_t c = 0; c < d; ++c) out[c] = 0.5f * out[c] + along * direction(b, kv_head, c);
    }
  }

 private:
  // Rows of one tile differ: most follow the pattern, some are indifferent to it, some see it upside down.
  float query_part(int64_t i) const {
    const uint64_t kind = tools::mix(p_.seed ^ 4, uint64_t(i)) % 8;
    return kind == 0 ? 0.0f : kind == 1 ? -1.0f : 1.0f;
  }
  // Gentle, steep, or beyond what exp of a difference can hold in fp16 (and nearly in float32).
  double target_score(int64_t key) const {
    constexpr double heights[] = {6, 25, 80};
    const double height = heights[tools::mix(p_.seed ^ 5) % 3], part = double(key + 1) / double(p_.seqlen_k);
    if (p_.pattern == Pattern::growing) return height * part;
    if (p_.pattern == Pattern::shrinking) return height * (1 - part);
    return tools::mix(p_.seed ^ 2, uint64_t(key)) % 97 == 0 ? height : 0;
  }
  // Seen from the last key to the first: a reference, weights just below what moves it, one that does move it, and a
  // key that outweighs all before it. A kernel that judges by the growing sums alone overflows fp16 there (from 64K
  // keys on).
  double sink_score(int64_t key) const {
    constexpr double ln2 = 0.6931471805599453;
    if (key == 0) return 22 * ln2;
    if (key == p_.seqlen_k / 4) return 5.5 * ln2;
    return key + 64 >= p_.seqlen_k ? 0 : 3.9 * ln2;
  }
  // Heads that share memory must get the same numbers, so the direction ignores what may be shared.
  float direction(int64_t b, int64_t kv_head, size_t c) const {
    if (p_.k.share_heads) kv_head = 0;
    if (p_.k.share_batch) b = 0;
    return tools::mix(p_.seed ^ 3, uint64_t(b * 4096 + kv_head) * 256 + c) & 1 ? 1.0f : -1.0f;
  }

  const Problem& p_;
  double per_score_;
};

// The distinct rows of a tensor: entries of batch and heads that share memory count once.
struct Rows {
  int64_t batch, heads, rows;

  int64_t count() const { return batch * heads * rows; }
  // body(b, head, row, n): row number n of all.
  template <class Body>
  void for_each(const Body& body) const {
    tools::parallel_for(count(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) body(n / rows / heads, n / rows % heads, n % rows, n);
    });
  }
};

// Fills q, k or v (0, 1, 2), and the scales of e4m3: the largest magnitude that one is for becomes 448.
class Maker {
 public:
  Maker(Case& made, int tensor) : made_(made), tensor_(tensor), filler_(made.problem) {
    const Problem& p = made.problem;
    const View* views[3] = {&made.q, &made.k, &made.v};
    view_ = views[tensor];
    const auto& layout = view_->layout;
    const int64_t heads = tensor == 0 ? p.heads : p.heads_kv;
    const bool share_batch = layout.stride[0] == 0 && p.batch > 1;
    const bool share_heads = layout.stride[is_tiles() ? 1 : 2] == 0 && heads > 1;
    rows_ = {share_batch ? 1 : p.batch, share_heads ? 1 : heads, tensor == 0 ? p.seqlen_q : p.seqlen_k};
    group_ = tensor == 0 && p.heads_kv > 0 ? p.heads / p.heads_kv : 1;
  }

  // Empty: every scale is 1.
  void fill(const std::vector<float>& scales_of_rows = {}) {
    if (is_tiles()) view_->layout.for_each([&](int64_t at) { view_->data<uint8_t>(made_.images)[at] = 0; });
    rows_.for_each([&](int64_t b, int64_t h, int64_t i, int64_t n) {
      const std::vector<float> row = numbers(b, h, i);
      const float scale = scales_of_rows.empty() ? 1 : scales_of_rows[size_t(n)];
      if (!is_tiles()) return view_->write_row(made_.images, place(b, h, i, 0), row, scale);
      for (int64_t c = 0; c < int64_t(row.size()); ++c)
        view_->write(made_.images, place(b, h, i, c), row[size_t(c)] / scale);
    });
  }

  // Makes the scales and fills; returns the largest magnitude.
  float fill_scaled(Scales kind, View& scale) {
    const Problem& p = made_.problem;
    std::vector<float> largest(size_t(rows_.count()), 0.0f);
    rows_.for_each([&](int64_t b, int64_t h, int64_t i, int64_t n) {
      for (const float x : numbers(b, h, i)) largest[size_t(n)] = std::max(largest[size_t(n)], std::abs(x));
    });
    const bool whole = kind == Scales::tensor, blocks = kind == Scales::block;
    const int64_t batch = whole ? 1 : p.batch, heads = whole ? 1 : tensor_ == 0 ? p.heads : p.heads_kv;
    const auto block_of = [&](int64_t row) { return blocks ? row / FA3_SCALE_ROWS : 0; };
    const int64_t per_head = blocks ? (rows_.rows + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS : 1;
    // Which of the distinct scales a row has.
    const auto number_of = [&](int64_t b, int64_t h, int64_t block) {
      return whole ? 0 : size_t((b * rows_.heads + h) * per_head + block);
    };
    std::vector<float> scales(whole ? 1 : size_t(rows_.batch * rows_.heads * per_head), 0.0f);
    for (int64_t n = 0; n < rows_.count(); ++n) {
      float& row_scale = scales[number_of(n / rows_.rows / rows_.heads, n / rows_.rows % rows_.heads,
                                       block_of(n % rows_.rows))];
      row_scale = std::max(row_scale, largest[size_t(n)]);
    }
    const float all = scales.empty() ? 0 : *std::max_element(scales.begin(), scales.end());
    for (float& x : scales) x = x == 0 ? 1 : x / 448;
    std::vector<float> scales_of_rows(largest.size());
    for (int64_t n = 0; n < rows_.count(); ++n)
      scales_of_rows[size_t(n)] = scales[number_of(n / rows_.rows / rows_.heads, n / rows_.rows % rows_.heads,
                                                   block_of(n % rows_.rows))];
    fill(scales_of_rows);

    scale = add_view(made_.images, lay_out_numbers(batch, heads, per_head, 1), FA3_DTYPE_FP32, 16);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t block = 0; block < per_head; ++block) {
          const int64_t index[3] = {b, h, block};
          const size_t number = number_of(rows_.batch == 1 ? 0 : b, rows_.heads == 1 ? 0 : h, block);
          scale.write(made_.images, scale.layout.position(index), scales[number]);
        }
    return all;
  }

 private:
  bool is_tiles() const { return tensor_ == 2 && made_.problem.v_tiles; }
  std::vector<float> numbers(int64_t b, int64_t h, int64_t i) const {
    std::vector<float> row(size_t(tensor_ == 2 ? made_.problem.v_dim() : made_.problem.head_dim));
    filler_.row(tensor_, b, h / group_, h, i, row.data());
    return row;
  }
  int64_t place(int64_t b, int64_t h, int64_t i, int64_t c) const {
    const int64_t index[4] = {b, i, h, c};
    return tensor_ == 2 ? made_.v_position(b, i, h, c) : view_->layout.position(index);
  }

  Case& made_;
  int tensor_;
  Filler filler_;
  const View* view_;
  Rows rows_;
  int64_t group_;
};

}  // namespace

Case::Case(const Problem& chosen) : problem(chosen) {
  const Problem& p = problem;
  if (p.packed_qkv) {
    const int64_t all = p.heads + 2 * p.heads_kv, kv_heads[3] = {p.heads, p.heads_kv, p.heads_kv};
    const Layout whole = Layout::packed({p.batch, p.seqlen_q, all, p.head_dim});
    const int element = tools::element_bytes(p.dtype), image = add_image(images, whole.extent(), element, 0);
    int64_t first = 0;
    View* views[3] = {&q, &k, &v};
    for (int t = 0; t < (p.v_is_packed() ? 3 : 2); ++t) {
      Layout layout = whole;
      layout.dim[2] = kv_heads[t];
      *views[t] = {layout, image, guard_bytes + element * first * p.head_dim, p.dtype};
      first += kv_heads[t];
    }
  } else {
    q = add_view(images, lay_out(p.q, p.dtype, p.batch, p.seqlen_q, p.heads, p.head_dim), p.dtype, 16 * p.q.shift);
    k = add_view(images, lay_out(p.k, p.dtype, p.batch, p.seqlen_k, p.heads_kv, p.head_dim), p.dtype, 16 * p.k.shift);
  }
  if (p.v_tiles) v = add_view(images, lay_out_tiles(p), p.dtype, 16 * p.v.shift);
  else if (!p.v_is_packed())
    v = add_view(images, lay_out(p.v, p.dtype, p.batch, p.seqlen_k, p.heads_kv, p.v_dim()), p.dtype, 16 * p.v.shift);
  const fa3_dtype o_dtype = p.output_dtype();
  o = add_view(images, lay_out(p.o, o_dtype, p.batch, p.seqlen_q, p.heads, p.v_dim()), o_dtype, 16 * p.o.shift);
  if (p.want_lse)
    lse = add_view(images, lay_out_lse(p.lse, p.batch, p.heads, p.seqlen_q), FA3_DTYPE_FP32, 16 * p.lse.shift);
  if (!p.is_e4m3()) {
    for (int tensor = 0; tensor < 3; ++tensor) Maker(*this, tensor).fill();
    return;
  }
  Maker(*this, 0).fill_scaled(p.q_scales, q_scale);
  Maker(*this, 1).fill_scaled(p.k_scales, k_scale);
  const float largest_v = Maker(*this, 2).fill_scaled(p.v_scales, v_scale);
  float largest_o = largest_v;
  if (p.v_mean) {
    v_mean = add_view(images, lay_out_numbers(p.batch, p.heads_kv, p.v_dim(), 4), FA3_DTYPE_FP32, 16);
    fill_normal(images, v_mean, tools::mix(p.seed, 6), largest_v / 8);
    v_mean.layout.for_each([&](int64_t at) {
      largest_o = std::max(largest_o, largest_v + std::abs(v_mean.read(images, at)));
    });
  }
  if (p.lse_offset) {
    lse_offset = add_view(images, lay_out_numbers(p.batch, p.heads, p.seqlen_q, 1), FA3_DTYPE_FP32, 16);
    fill_normal(images, lse_offset, tools::mix(p.seed, 7), 3);
  }
  if (o_dtype == FA3_DTYPE_E4M3) {
    o_scale = add_view(images, Layout::packed({1}), FA3_DTYPE_FP32, 16);
    o_scale.write(images, 0, largest_o == 0 ? 1 : largest_o / 448);
  }
}

int64_t Case::v_position(int64_t b, int64_t key, int64_t head, int64_t column) const {
  if (!problem.v_tiles) {
    const int64_t index[4] = {b, key, head, column};
    return v.layout.position(index);
  }
  // As fa3.h has it: row 16 a + 8 c + r holds column 16 a + 2 r + c, and its byte 4 q + 2 b + e key 8 b + 2 q + e.
  const int64_t row = column - column % 16 + column % 2 * 8 + column % 16 / 2;
  const int64_t byte = key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2;
  const int64_t index[5] = {b, head, key / 16, row, byte};
  return v.layout.position(index);
}

void Case::read_row(int tensor, int64_t b, int64_t row, int64_t head, float* out) const {
  const View& view = tensor == 0 ? q : tensor == 1 ? k : v;
  const int64_t index[4] = {b, row, head, 0}, d = tensor == 2 ? problem.v_dim() : problem.head_dim;
  if (!problem.is_e4m3()) {
    const uint16_t* data = view.data<uint16_t>(images) + view.layout.position(index);
    const auto read_all = [&](auto convert) {
      for (int64_t c = 0; c < d; ++c) out[c] = convert(data[c]);
    };
    return view.dtype == FA3_DTYPE_BF16 ? read_all(tools::from_bf16) : read_all(tools::from_fp16);
  }
  for (int64_t c = 0; c < d; ++c)
    out[c] = view.read(images, tensor == 2 ? v_position(b, row, head, c) : view.layout.position(index) + c);
}

float Case::scale_of(int tensor, int64_t b, int64_t row, int64_t head) const {
  const View& scale = tensor == 0 ? q_scale : tensor == 1 ? k_scale : v_scale;
  return scale.image < 0 ? 1 : number(scale, b, head, row / FA3_SCALE_ROWS);
}

float Case::number(const View& view, int64_t b, int64_t head, int64_t i) const {
  if (view.image < 0) return 0;
  const int64_t wanted[3] = {b, head, i};
  int64_t index[3];
  for (size_t n = 0; n < 3; ++n) index[n] = view.layout.dim[n] == 1 ? 0 : wanted[n];
  return view.read(images, view.layout.position(index));
}

float Case::output_scale() const { return o_scale.image < 0 ? 1 : o_scale.read(images, 0); }

fa3_forward_params Case::params(const std::vector<void*>& bases) const {
  fa3_forward_params params = tools::forward_params();
  params.q = q.tensor(bases);
  params.k = k.tensor(bases);
  params.v = v.tensor(bases);
  params.o = o.tensor(bases);
  if (problem.want_lse) params.lse = lse.tensor(bases);
  const std::pair<fa3_tensor*, const View*> optional[] = {
      {&params.q_scale, &q_scale}, {&params.k_scale, &k_scale}, {&params.v_scale, &v_scale},
      {&params.o_scale, &o_scale}, {&params.v_mean, &v_mean},   {&params.lse_offset, &lse_offset}};
  for (const auto& [to, view] : optional)
    if (view->image >= 0) *to = view->tensor(bases);
  params.mask = problem.mask;
  params.softmax_scale = problem.softmax_scale;
  params.flags = FA3_FLAG_DETERMINISTIC | (problem.two_level ? uint64_t{FA3_FLAG_TWO_LEVEL} : 0);
  params.kernel = problem.kernel;
  return params;
}

fa3_forward_params Case::host_params() {
  std::vector<void*> bases;
  for (Image& image : images) bases.push_back(image.data());
  return params(bases);
}

std::string check_poison(const Case& made) {
  const auto check = [&](const View& view, const char* name) {
    return check_poison(made.images, view, elements_of(made.images, view), name);
  };
  const std::string problem = check(made.o, "o");
  return problem.empty() && made.problem.want_lse ? check(made.lse, "lse") : problem;
}

}  // namespace fa3::test
