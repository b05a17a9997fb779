#include "planned_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "half.h"
#include "params.h"
#include "random.h"

namespace fa3::test {

using tools::Layout;

namespace {

// Tensors of numbers are aligned to 4 bytes, and no more.
View add_numbers(PlannedCase& made, const Layout& layout, fa3_dtype dtype) {
  return add_view(made.images, layout, dtype, made.problem.guard ? 4 : 0, made.problem.guard);
}

template <class T>
void write(PlannedCase& made, const View& view, const std::vector<T>& numbers) {
  if (view.image < 0) return;
  T* data = view.data<T>(made.images);
  size_t n = 0;
  view.layout.for_each([&](int64_t at) { data[at] = numbers[n++]; });
}

// With e4m3 elements are N(0,1) over this, and scales are near it.
constexpr float usual_scale = 0.014f;

// A tensor (a, heads, n) of numbers, heads before all else, with gaps of `unit`.
Layout lay_out_numbers(int64_t a, int64_t heads, int64_t n, int64_t unit) {
  return Layout::make({a, heads, n}, {1, 0, 2}, {0, unit, unit});
}

// Scales, which must be numbers, and far from all others for sequences that are poisoned; what is added to O, and to
// LSE of each row, of the other sequences.
void add_scales(PlannedCase& made) {
  const PlannedProblem& p = made.problem;
  tools::Random random(tools::mix(p.seed, 3));
  const auto counts = [&](int64_t b) { return !p.poisoned[size_t(b)]; };
  const std::tuple<View*, Scales, int64_t> scales[] = {{&made.q_scale, p.q_scales, p.heads},
                                                       {&made.k_scale, p.k_scales, p.heads_kv},
                                                       {&made.v_scale, p.v_scales, p.heads_kv}};
  for (const auto& [view, kind, heads] : scales) {
    if (view == &made.q_scale && !p.is_e4m3()) continue;
    const bool whole = kind == Scales::tensor;
    *view = add_numbers(made, lay_out_numbers(whole ? 1 : p.batch, whole ? 1 : heads, 1, p.q.shift % 2),
                        FA3_DTYPE_FP32);
    for (int64_t b = 0; b < view->layout.dim[0]; ++b)
      for (int64_t h = 0; h < view->layout.dim[1]; ++h) {
        const int64_t index[] = {b, h, 0};
        const float scale = usual_scale * std::exp2(float(random.uniform()) - 0.5f);
        view->write(made.images, view->layout.position(index), whole || counts(b) ? scale : 1e6f);
      }
  }
  if (p.v_mean) {
    made.v_mean = add_view(made.images, lay_out_numbers(p.batch, p.heads_kv, p.head_dim_v, 4), FA3_DTYPE_FP32,
                           p.guard ? 16 : 0, p.guard);
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads_kv && counts(b); ++h)
        for (int64_t c = 0; c < p.head_dim_v; ++c) {
          const int64_t index[] = {b, h, c};
          made.v_mean.write(made.images, made.v_mean.layout.position(index), float(random.uniform()) - 0.3f);
        }
  }
  if (p.lse_offset) {
    made.lse_offset = add_numbers(made, lay_out_numbers(p.packed_q ? 1 : p.batch, p.heads, p.rows_q, 1),
                                  FA3_DTYPE_FP32);
    for (int64_t b = 0; b < p.batch; ++b) {
      const PlannedSequence s = p.sequence(b);
      for (int64_t i = 0; i < s.queries && counts(b); ++i)
        for (int64_t h = 0; h < p.heads; ++h)
          made.lse_offset.write(made.images, made.query_position(made.lse_offset, s, i, h),
                                4 * float(random.uniform()) - 2);
    }
  }
  if (p.output_dtype() == FA3_DTYPE_E4M3) {
    made.o_scale = add_numbers(made, Layout::packed({1}), FA3_DTYPE_FP32);
    made.o_scale.write(made.images, 0, 12.0f / 448);
  }
}

// Fills q, k, v or qv (0, 1, 2, 4): so many rows of entries, of which those with a flag count.
void fill(PlannedCase& made, int tensor, const std::vector<char>& counts) {
  const PlannedProblem& p = made.problem;
  const View& view = tensor == 0 ? made.q : tensor == 1 ? made.k : tensor == 2 ? made.v : made.qv;
  const std::vector<int64_t>& dim = view.layout.dim;
  std::vector<float> row(static_cast<size_t>(dim[3]));
  const uint64_t seed = tools::mix(p.seed, uint64_t(tensor));
  for (size_t n = 0; n < counts.size(); ++n) {
    if (!counts[n]) continue;
    for (int64_t h = 0; h < dim[2]; ++h) {
      const int64_t index[] = {int64_t(n) / dim[1], int64_t(n) % dim[1], h, 0};
      tools::normal(seed, (uint64_t(n) * uint64_t(dim[2]) + uint64_t(h)) * 1024, row.data(), row.size());
      for (size_t c = 0; c < row.size() && tensor == 1; ++c) row[c] += p.key_mean(h, int64_t(c));
      view.write_row(made.images, view.layout.position(index), row,
                     view.dtype == FA3_DTYPE_E4M3 ? usual_scale : 1);
    }
  }
}

// Of rows that count, as fill() has them: all of other sizes, and some so small that fp16 has few bits left for what
// they make of V. Their products with e4m3 are exact in float32.
void fill_latent_scales(PlannedCase& made, const std::vector<char>& counts) {
  const PlannedProblem& p = made.problem;
  const std::vector<int64_t>& dim = made.latent_scale.layout.dim;
  for (size_t n = 0; n < counts.size(); ++n)
    for (int64_t h = 0; h < dim[2] && counts[n]; ++h) {
      tools::Random random(tools::mix(tools::mix(p.seed, 5), n * uint64_t(dim[2]) + uint64_t(h)));
      for (int64_t g = 0; g < dim[3]; ++g) {
        const int64_t index[] = {int64_t(n) / dim[1], int64_t(n) % dim[1], h, g};
        const float size = random.chance(0.05) ? 0x1p-16f : 1;
        const float scale = usual_scale * size * std::exp2(3 * float(random.uniform()) - 1.5f);
        made.latent_scale.write(made.images, made.latent_scale.layout.position(index),
                                std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & ~0xfu));
      }
    }
}

// A token of a latent cache: V, its scales and K, each at a multiple of 16 bytes.
void add_tokens(PlannedCase& made) {
  const PlannedProblem& p = made.problem;
  const auto rounded = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  const int64_t scales_at = p.head_dim_v, k_at = scales_at + rounded(4 * p.latent_scales());
  const Layout bytes = lay_out(p.k, FA3_DTYPE_E4M3, p.entries_k, p.rows_k, p.heads_kv, k_at + rounded(2 * p.head_dim));
  made.v = add_view(made.images, bytes, FA3_DTYPE_E4M3, p.guard ? 16 * p.k.shift : 0, p.guard);
  const auto view = [&](int64_t at, fa3_dtype dtype, int64_t columns) {
    View v = made.v;
    v.first += at, v.dtype = dtype, v.layout.dim[3] = columns;
    for (int i = 0; i < 3; ++i) v.layout.stride[size_t(i)] /= tools::element_bytes(dtype);
    return v;
  };
  made.k = view(k_at, p.dtype, p.head_dim), made.latent_scale = view(scales_at, FA3_DTYPE_FP32, p.latent_scales());
  made.v.layout.dim[3] = p.head_dim_v;
}

}  // namespace

PlannedCase::PlannedCase(const PlannedProblem& chosen) : problem(chosen) {
  const PlannedProblem& p = problem;
  const int64_t entries_q = p.packed_q ? 1 : p.batch;
  const auto place = [&](const Storage& s, fa3_dtype dtype, int64_t entries, int64_t rows, int64_t heads, int64_t d) {
    return add_view(images, lay_out(s, dtype, entries, rows, heads, d), dtype, p.guard ? 16 * s.shift : 0, p.guard);
  };
  q = place(p.q, p.dtype, entries_q, p.rows_q, p.heads, p.head_dim);
  if (p.one_buffer) {
    add_tokens(*this);
  } else {
    k = place(p.k, p.key_dtype(), p.entries_k, p.rows_k, p.heads_kv, p.head_dim);
    if (p.v_in_k) v = k, v.layout.dim[3] = p.head_dim_v;
    else v = place(p.v, p.value_dtype(), p.entries_k, p.rows_k, p.heads_kv, p.head_dim_v);
    if (p.e4m3_latent) {  // rows stand at multiples of 16 bytes; nothing is behind the last one's scales
      Layout layout =
          lay_out(p.v, FA3_DTYPE_FP32, p.entries_k, p.rows_k, p.heads_kv, (p.latent_scales() + 3) / 4 * 4);
      layout.dim[3] = p.latent_scales();
      latent_scale = add_view(images, layout, FA3_DTYPE_FP32, p.guard ? 16 * p.v.shift : 0, p.guard);
    }
  }
  if (p.has_qv) qv = place(p.o, p.dtype, entries_q, p.rows_q, p.heads, p.head_dim_v);
  o = place(p.o, p.output_dtype(), entries_q, p.rows_q, p.heads, p.head_dim_v);
  if (p.want_lse)
    lse = add_view(images, lay_out_lse(p.lse, entries_q, p.heads, p.rows_q), FA3_DTYPE_FP32,
                   p.guard ? 16 * p.lse.shift : 0, p.guard);
  if (p.has_sinks) {
    Layout layout = Layout::packed({p.heads});
    layout.stride[0] = 1 + p.k.shift % 2;
    sinks = add_numbers(*this, layout, FA3_DTYPE_FP32);
  }
  if (p.has_slopes) {
    Layout layout = p.slopes_each ? Layout::make({p.batch, p.heads}, {0, 1}, {0, p.k.shift % 2})
                                  : Layout::packed({p.heads});
    slopes = add_numbers(*this, layout, FA3_DTYPE_FP32);
  }
  const std::pair<View*, const std::vector<int32_t>*> lists[] = {
      {&cu_q, &p.cu_q},           {&cu_k, &p.cu_k},           {&used_q, &p.used_q},
      {&used_k, &p.used_k},       {&leftpad_k, &p.leftpad_k}, {&cache_batch_idx, &p.cache_batch_idx}};
  for (const auto& [view, numbers] : lists)
    if (!numbers->empty())
      *view = add_numbers(*this, Layout::packed({int64_t(numbers->size())}), FA3_DTYPE_INT32);
  if (p.page_size) {
    const int64_t gap = p.q.shift % 3;  // between rows of the table
    page_table = add_numbers(*this, Layout::make({p.batch, p.pages_each}, {0, 1}, {0, gap}), FA3_DTYPE_INT32);
  }
  write_numbers();

  std::vector<char> counts_q(size_t(entries_q * p.rows_q)), counts_k(size_t(p.entries_k * p.rows_k));
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.poisoned[size_t(b)]) continue;
    const PlannedSequence s = p.sequence(b);
    for (int64_t i = 0; i < s.queries; ++i) counts_q[size_t(s.entry_q * p.rows_q + s.first_query + i)] = true;
    const PlannedProblem::Range near = p.keys_near(s);
    for (int64_t j = near.begin; j < near.end; ++j) {
      const RowPlace at = p.place_of(s, j);
      counts_k[size_t(at.entry * p.rows_k + at.row)] = true;
    }
  }
  fill(*this, 0, counts_q), fill(*this, 1, counts_k);
  if (!p.v_in_k) fill(*this, 2, counts_k);
  if (p.e4m3_latent) fill_latent_scales(*this, counts_k);
  if (p.has_qv) fill(*this, 4, counts_q);
  if (p.has_e4m3_keys()) add_scales(*this);
}

float PlannedCase::value_at(int64_t v_position, int64_t scale_position, int64_t column) const {
  const float value = v.read(images, v_position + column);
  return problem.e4m3_latent
             ? value * latent_scale.read(images, scale_position + column / FA3_LATENT_SCALE_COLUMNS)
             : value;
}
float PlannedCase::scale_of(const View& scale, int64_t sequence, int64_t head) const {
  if (scale.image < 0) return 1;
  const int64_t index[] = {scale.layout.dim[0] == 1 ? 0 : sequence, scale.layout.dim[1] == 1 ? 0 : head, 0};
  return scale.read(images, scale.layout.position(index));
}
float PlannedCase::mean_of(int64_t sequence, int64_t head_kv, int64_t column) const {
  const int64_t index[] = {sequence, head_kv, column};
  return v_mean.image < 0 ? 0 : v_mean.read(images, v_mean.layout.position(index));
}
float PlannedCase::offset_of(const PlannedSequence& s, int64_t query, int64_t head) const {
  const bool is_used = lse_offset.image >= 0 && (problem.want_lse || problem.has_sinks);
  return is_used ? lse_offset.read(images, query_position(lse_offset, s, query, head)) : 0;
}
float PlannedCase::output_scale() const { return o_scale.image < 0 ? 1 : o_scale.read(images, 0); }

void PlannedCase::write_numbers() {
  const PlannedProblem& p = problem;
  write(*this, cu_q, p.cu_q), write(*this, cu_k, p.cu_k), write(*this, used_q, p.used_q);
  write(*this, used_k, p.used_k), write(*this, leftpad_k, p.leftpad_k), write(*this, page_table, p.page_table);
  write(*this, cache_batch_idx, p.cache_batch_idx), write(*this, sinks, p.sinks);
  write(*this, slopes, p.slopes);
}

void PlannedCase::poison_outputs() {
  for (const View* view : {&o, &lse})
    if (view->image >= 0) view->layout.for_each([&](int64_t at) { view->write_poison(images, at); });
}

int64_t PlannedCase::query_position(const View& view, const PlannedSequence& s, int64_t query, int64_t head) const {
  const int64_t row = s.first_query + query;
  const int64_t lse_at[] = {s.entry_q, head, row}, rows_at[] = {s.entry_q, row, head, 0};
  return view.layout.position(view.layout.rank() == 3 ? lse_at : rows_at);
}

int64_t PlannedCase::key_position(const View& view, const PlannedSequence& s, int64_t key, int64_t head_kv) const {
  const RowPlace at = problem.place_of(s, key);
  const int64_t index[] = {at.entry, at.row, head_kv, 0};
  return view.layout.position(index);
}

fa3_forward_params PlannedCase::params(const std::vector<void*>& bases) const {
  const PlannedProblem& p = problem;
  fa3_forward_params params = tools::forward_params();
  // Packed tensors have no dimension of batch entries.
  const auto tensor = [&](const View& view, bool packed) {
    View v = view;
    if (packed) v.layout.dim.erase(v.layout.dim.begin()), v.layout.stride.erase(v.layout.stride.begin());
    return v.tensor(bases);
  };
  params.q = tensor(q, p.packed_q), params.o = tensor(o, p.packed_q);
  params.k = tensor(k, p.packed_k), params.v = tensor(v, p.packed_k);
  if (p.want_lse) params.lse = tensor(lse, p.packed_q);
  if (p.has_qv) params.qv = tensor(qv, p.packed_q);
  const std::pair<fa3_tensor*, const View*> optional[] = {
      {&params.alibi_slopes, &slopes},
      {&params.sinks, &sinks},           {&params.cu_seqlens_q, &cu_q}, {&params.cu_seqlens_k, &cu_k},
      {&params.seqused_q, &used_q},      {&params.seqused_k, &used_k},  {&params.leftpad_k, &leftpad_k},
      {&params.page_table, &page_table}, {&params.cache_batch_idx, &cache_batch_idx},
      {&params.q_scale, &q_scale},       {&params.k_scale, &k_scale},   {&params.v_scale, &v_scale},
      {&params.o_scale, &o_scale},       {&params.v_mean, &v_mean}};
  for (const auto& [to, view] : optional)
    if (view->image >= 0) *to = view->tensor(bases);
  if (lse_offset.image >= 0) params.lse_offset = tensor(lse_offset, p.packed_q);
  if (latent_scale.image >= 0) params.v_scale = tensor(latent_scale, p.packed_k);
  params.mask = p.mask, params.window_left = p.window_left, params.window_right = p.window_right;
  params.max_seqlen_q = p.max_seqlen_q, params.max_seqlen_k = p.max_seqlen_k;
  params.softmax_scale = p.softmax_scale;
  params.flags = FA3_FLAG_DETERMINISTIC | (p.batch_invariant ? uint64_t{FA3_FLAG_BATCH_INVARIANT} : 0);
  params.softcap = p.softcap;
  params.kernel = p.kernel;
  return params;
}

fa3_forward_params PlannedCase::host_params() {
  std::vector<void*> bases;
  for (Image& image : images) bases.push_back(image.data());
  return params(bases);
}

std::vector<int> PlannedCase::outputs() const {
  std::vector<int> outputs = {o.image};
  if (problem.want_lse) outputs.push_back(lse.image);
  return outputs;
}

void PlannedCase::copy_inputs(const PlannedCase& from, int64_t b, int64_t first_query, int64_t own) {
  const PlannedProblem& p = problem;
  const PlannedSequence theirs = from.problem.sequence(b), mine = p.sequence(own);
  const auto copy = [&](const View& to, int64_t to_position, const View& source, int64_t position) {
    const int64_t width = tools::element_bytes(to.dtype);
    std::memcpy(to.data<unsigned char>(images) + width * to_position,
                source.data<unsigned char>(from.images) + width * position, size_t(width * to.layout.dim[3]));
  };
  for (int64_t i = 0; i < mine.queries; ++i)
    for (int64_t h = 0; h < p.heads; ++h) {
      copy(q, query_position(q, mine, i, h), from.q, from.query_position(from.q, theirs, first_query + i, h));
      if (p.has_qv)
        copy(qv, query_position(qv, mine, i, h), from.qv, from.query_position(from.qv, theirs, first_query + i, h));
    }
  const PlannedProblem::Range near = p.keys_near(mine);
  for (int64_t j = near.begin; j < near.end; ++j)
    for (int64_t h = 0; h < p.heads_kv; ++h) {
      copy(k, key_position(k, mine, j, h), from.k, from.key_position(from.k, theirs, j, h));
      copy(v, key_position(v, mine, j, h), from.v, from.key_position(from.v, theirs, j, h));
      if (p.e4m3_latent)
        copy(latent_scale, key_position(latent_scale, mine, j, h), from.latent_scale,
             from.key_position(from.latent_scale, theirs, j, h));
    }
  if (!p.has_e4m3_keys()) return;
  const auto write_number = [&](const View& to, int64_t n, int64_t head, int64_t i, float value) {
    const int64_t index[] = {to.layout.dim[0] == 1 ? 0 : n, to.layout.dim[1] == 1 ? 0 : head, i};
    to.write(images, to.layout.position(index), value);
  };
  for (int64_t h = 0; h < p.heads; ++h) {
    if (p.is_e4m3()) write_number(q_scale, own, h, 0, from.scale_of(from.q_scale, b, h));
    for (int64_t i = 0; i < mine.queries && p.lse_offset; ++i)
      lse_offset.write(images, query_position(lse_offset, mine, i, h),
                       from.lse_offset.read(from.images, from.query_position(from.lse_offset, theirs,
                                                                             first_query + i, h)));
  }
  for (int64_t h = 0; h < p.heads_kv; ++h) {
    write_number(k_scale, own, h, 0, from.scale_of(from.k_scale, b, h));
    write_number(v_scale, own, h, 0, from.scale_of(from.v_scale, b, h));
    for (int64_t c = 0; c < p.head_dim_v && p.v_mean; ++c) write_number(v_mean, own, h, c, from.mean_of(b, h, c));
  }
}

Output gather(const PlannedCase& made, const std::vector<PlannedRow>& rows) {
  Output out;
  for (const auto& [sequence, query, head] : rows) {
    const int64_t at = made.query_position(made.o, sequence, query, head);
    for (int64_t c = 0; c < made.problem.head_dim_v; ++c)
      out.o.push_back(made.o.read(made.images, at + c) * made.output_scale());
    if (made.problem.want_lse)
      out.lse.push_back(made.lse.read(made.images, made.query_position(made.lse, sequence, query, head)));
  }
  return out;
}

std::string check_outside(const PlannedCase& made) {
  // Elements may have been written or not.
  const auto check = [&](const View& view, const char* name) {
    std::vector<Image> images = made.images;
    std::vector<char> elements = elements_of(images, view);
    view.layout.for_each([&](int64_t at) { view.write_poison(images, at); });
    std::fill(elements.begin(), elements.end(), false);
    return check_poison(images, view, elements, name);
  };
  const std::string bad = check(made.o, "o");
  return bad.empty() && made.problem.want_lse ? check(made.lse, "lse") : bad;
}

}  // namespace fa3::test
