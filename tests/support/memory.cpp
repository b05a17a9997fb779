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

// More than a tile of rows before and behind, so that a stray access meets poison, not unmapped memory.
constexpr int64_t guard_bytes = 65536;

void fill_poison(Image& image, size_t element) {
  uint32_t pattern = poison32;
  if (element == 2) pattern = uint32_t(poison16) << 16 | poison16;
  for (size_t i = 0; i + 4 <= image.size(); i += 4) std::memcpy(image.data() + i, &pattern, 4);
}

// Dims (batch, seqlen, heads, head_dim) in the storage's order.
Layout lay_out(const Storage& s, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) {
  constexpr int orders[4][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {2, 0, 1, 3}};
  const int64_t extra[4] = {s.pad_b, s.pad_s, s.pad_h, 8 * s.pad_d};
  const int* order = orders[s.order];
  // Padding is given in entries of its dimension: the storage is that of the enlarged dims.
  const std::vector<int64_t> large = {batch + extra[0], seqlen + extra[1], heads + extra[2], head_dim + extra[3]};
  Layout layout = Layout::make(large, {order[0], order[1], order[2], order[3]});
  layout.dim = {batch, seqlen, heads, head_dim};
  if (s.share_batch) layout.stride[0] = 0;
  if (s.share_heads) layout.stride[2] = 0;
  return layout;
}

int add_image(Case& made, int64_t elements, size_t element, int shift) {
  const int64_t bytes = 2 * guard_bytes + 16 * shift + elements * int64_t(element);
  made.images.emplace_back(size_t((bytes + 3) / 4 * 4));
  fill_poison(made.images.back(), element);
  return int(made.images.size()) - 1;
}

View add_view(Case& made, const Layout& layout, fa3_dtype dtype, int shift) {
  const size_t element = dtype == FA3_DTYPE_FP32 ? 4 : 2;
  return {layout, add_image(made, layout.extent(), element, shift), guard_bytes + 16 * shift, dtype};
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
    const auto d = size_t(p_.head_dim);
    const uint64_t seed = tools::mix(p_.seed, uint64_t(tensor));
    tools::normal(seed, uint64_t((b * 4096 + head) * 1048576 + i) * 256, out, d);
    if (p_.pattern == Pattern::outliers)
      for (size_t c = 0; c < d; ++c)
        if (tools::mix(seed ^ 1, uint64_t(i) * 256 + c) % 512 == 0) out[c] *= 10;
    if (tensor == 2) {
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
  // Seen from the last key to the first: a reference, weights just below what moves it, one that does move it, and a key
  // that outweighs all before it. A kernel that judges by the growing sums alone overflows fp16 there (from 64K keys on).
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

void fill(Case& made, const View& view, int tensor) {
  const Layout& layout = view.layout;
  if (layout.count() == 0) return;
  const Problem& p = made.problem;
  const Filler filler(p);
  const int64_t batch = layout.stride[0] == 0 && layout.dim[0] > 1 ? 1 : layout.dim[0];
  const int64_t heads = layout.stride[2] == 0 && layout.dim[2] > 1 ? 1 : layout.dim[2];
  const int64_t group = tensor == 0 ? p.heads / p.heads_kv : 1;
  uint16_t* data = view.data<uint16_t>(made.images);
  tools::parallel_for(batch * heads * layout.dim[1], 64, [&](int64_t begin, int64_t end) {
    std::vector<float> row(size_t(p.head_dim));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t i = n % layout.dim[1], h = n / layout.dim[1] % heads, b = n / layout.dim[1] / heads;
      filler.row(tensor, b, h / group, h, i, row.data());
      const int64_t index[4] = {b, i, h, 0};
      uint16_t* to = data + layout.position(index);
      for (size_t c = 0; c < row.size(); ++c) to[c] = tools::to_half(row[c], p.dtype);
    }
  });
}

template <class T>
std::string check_poison(const Case& made, const View& view, const char* name, T poison) {
  const Image& image = made.images[size_t(view.image)];
  std::vector<char> valid(image.size() / sizeof(T));
  const int64_t first = view.first / int64_t(sizeof(T));
  view.layout.for_each([&](int64_t position) { valid[size_t(first + position)] = true; });
  const T* data = reinterpret_cast<const T*>(image.data());
  for (size_t i = 0; i < valid.size(); ++i) {
    if (bool(valid[i]) == (data[i] != poison)) continue;
    return std::string(name) + ": element " + std::to_string(int64_t(i) - first) +
           (valid[i] ? " was not written" : " does not belong to the tensor and was overwritten");
  }
  return "";
}

}  // namespace

Case::Case(const Problem& chosen) : problem(chosen) {
  const Problem& p = problem;
  if (p.packed_qkv) {
    const int64_t all = p.heads + 2 * p.heads_kv, kv_heads[3] = {p.heads, p.heads_kv, p.heads_kv};
    const Layout whole = Layout::packed({p.batch, p.seqlen_q, all, p.head_dim});
    const int image = add_image(*this, whole.extent(), 2, 0);
    int64_t first = 0;
    View* views[3] = {&q, &k, &v};
    for (int t = 0; t < 3; ++t) {
      Layout layout = whole;
      layout.dim[2] = kv_heads[t];
      *views[t] = {layout, image, guard_bytes + 2 * first * p.head_dim, p.dtype};
      first += kv_heads[t];
    }
  } else {
    q = add_view(*this, lay_out(p.q, p.batch, p.seqlen_q, p.heads, p.head_dim), p.dtype, p.q.shift);
    k = add_view(*this, lay_out(p.k, p.batch, p.seqlen_k, p.heads_kv, p.head_dim), p.dtype, p.k.shift);
    v = add_view(*this, lay_out(p.v, p.batch, p.seqlen_k, p.heads_kv, p.head_dim), p.dtype, p.v.shift);
  }
  fill(*this, q, 0);
  fill(*this, k, 1);
  fill(*this, v, 2);
  o = add_view(*this, lay_out(p.o, p.batch, p.seqlen_q, p.heads, p.head_dim), p.dtype, p.o.shift);
  if (p.want_lse) {
    // (batch, heads, seqlen) with the same freedom of order; its innermost dimension may be strided too.
    Layout layout = lay_out(p.lse, p.batch, p.seqlen_q, p.heads, 1);
    layout.dim = {p.batch, p.heads, p.seqlen_q};
    layout.stride = {layout.stride[0], layout.stride[2], layout.stride[1]};
    lse = add_view(*this, layout, FA3_DTYPE_FP32, p.lse.shift);
  }
}

fa3_forward_params Case::params(const std::vector<void*>& bases) const {
  fa3_forward_params params = tools::forward_params();
  const auto tensor = [&](const View& view) {
    return view.layout.tensor(static_cast<std::byte*>(bases[size_t(view.image)]) + view.first, view.dtype);
  };
  params.q = tensor(q);
  params.k = tensor(k);
  params.v = tensor(v);
  params.o = tensor(o);
  if (problem.want_lse) params.lse = tensor(lse);
  params.mask = problem.mask;
  params.softmax_scale = problem.softmax_scale;
  params.flags = FA3_FLAG_DETERMINISTIC;
  params.kernel = problem.kernel;
  return params;
}

fa3_forward_params Case::host_params() {
  std::vector<void*> bases;
  for (Image& image : images) bases.push_back(image.data());
  return params(bases);
}

std::string check_poison(const Case& made) {
  std::string problem = check_poison<uint16_t>(made, made.o, "o", poison16);
  if (problem.empty() && made.problem.want_lse) problem = check_poison<uint32_t>(made, made.lse, "lse", poison32);
  return problem;
}

}  // namespace fa3::test
