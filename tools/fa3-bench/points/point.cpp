#include "points/point.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "half.h"
#include "layout.h"
#include "params.h"
#include "random.h"

namespace fa3::bench {

const char* name(Direction direction) { return direction == Direction::backward ? "bwd" : "fwd"; }

const char* name(VForm form) { return form == VForm::tiles ? "tiles" : "rows"; }

const char* name(Scales scales) {
  return scales == Scales::block ? "block" : scales == Scales::head ? "head" : "tensor";
}

std::string Point::kind() const {
  std::string kind = std::string(is_backward() ? "bwd " : "") + tools::dtype_name(dtype) + " d" +
                     std::to_string(head_dim);
  if (v_dim() != head_dim) kind += 'x' + std::to_string(head_dim_v);
  return kind + (causal ? " causal" : " full");
}

std::string Point::form() const {
  std::string form = is_fp8() ? std::string(" v ") + name(v) : "";
  if (is_fp8() && scales != Scales::tensor) form += std::string(" scales ") + name(scales);
  if (is_fp8() && two_level) form += " two-level";
  return form + planned.words() + (deterministic ? " deterministic" : "");
}

std::string Point::label() const {
  const std::string head_counts = " heads " + std::to_string(heads) + "/" + std::to_string(kv_heads);
  std::string label = kind();
  if (packed_q()) {
    label += " lengths " + listed(planned.lengths) + head_counts;
    if (planned.lengths_k != planned.lengths) label += " lengths_k " + listed(planned.lengths_k);
  } else {
    label += " batch " + std::to_string(batch) + " seqlen " + std::to_string(seqlen) + head_counts;
    if (seqlen_k != seqlen) label += " seqlen_k " + std::to_string(seqlen_k);
  }
  label += form();
  if (!library_chooses()) label += " " + kernel;
  return label;
}

int64_t Point::pages() const {
  int64_t all = 0;
  for (int64_t b = 0; b < batch; ++b) all += planned.page ? (keys(b) + planned.page - 1) / planned.page : 0;
  return all;
}

int64_t Point::query_rows() const {
  return packed_q() ? std::reduce(planned.lengths.begin(), planned.lengths.end()) : batch * seqlen;
}

int64_t Point::key_rows() const {
  if (planned.page) return pages() * planned.page;
  return packed_k() ? std::reduce(planned.lengths_k.begin(), planned.lengths_k.end()) : batch * seqlen_k;
}

Point::Range Point::seen(int64_t sequence, int64_t i) const {
  const int64_t n = keys(sequence), at = i + n - queries(sequence);
  int64_t begin = 0, end = causal ? at + 1 : n;
  if (planned.window >= 0) {
    begin = at - planned.window;
    if (!causal) end = at + planned.window + 1;
  } else if (planned.chunk > 0) {
    begin = (at < 0 ? -1 : at / planned.chunk) * planned.chunk;
    if (!causal) end = begin + planned.chunk;
  }
  end = std::clamp<int64_t>(end, 0, n);
  return {std::clamp<int64_t>(begin, 0, end), end};
}

float Point::slope(int64_t head) const {
  return planned.alibi ? float(std::exp2(-8.0 * double(head + 1) / double(heads))) : 0;
}

float Point::sink(int64_t head) const {
  constexpr uint64_t seed = 6;
  float sink = -INFINITY;
  if (planned.sinks) tools::normal(seed, uint64_t(head), &sink, 1);
  return sink;
}

double Point::flop() const {
  double pairs = 0;
  const bool whole = planned.window < 0 && planned.chunk == 0;
  for (int64_t b = 0; b < (packed_q() ? batch : 1); ++b) {
    const int64_t n = queries(b);
    if (whole && (!causal || n == keys(b))) pairs += double(n) * double(keys(b)) / (causal ? 2 : 1);
    else
      for (int64_t i = 0; i < n; ++i) pairs += double(seen(b, i).count());
  }
  if (!packed_q()) pairs *= double(batch);
  const int64_t columns = is_backward() ? 3 * head_dim + 2 * v_dim() : head_dim + v_dim();
  return 2 * pairs * double(columns) * double(heads);
}

double Point::kv_bytes() const {
  int64_t rows = 0;
  for (int64_t b = 0; b < batch; ++b)
    if (queries(b) > 0) rows += std::max<int64_t>(0, seen(b, queries(b) - 1).end - seen(b, 0).begin);
  const int64_t columns = head_dim + (v_in_k() ? 0 : v_dim());
  return double(rows) * double(kv_heads * columns * tools::element_bytes(key_dtype()));
}

static std::vector<int64_t> scale_dims(Scales scales, int64_t batch, int64_t heads, int64_t seqlen) {
  if (scales == Scales::tensor) return {1, 1, 1};
  return {batch, heads, scales == Scales::head ? 1 : (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS};
}

int64_t Point::scale_elements() const {
  const auto count = [&](int64_t n, int64_t length) {
    return tools::Layout::packed(scale_dims(scales, batch, n, length)).count();
  };
  if (key_dtype() != FA3_DTYPE_E4M3) return 0;
  return std::max(is_fp8() ? count(heads, seqlen) : 0, count(kv_heads, seqlen_k));
}

static fa3_tensor packed(const std::vector<int64_t>& dim, void* data, fa3_dtype dtype) {
  return tools::Layout::packed(dim).tensor(data, dtype);
}

fa3_forward_params Point::params(const Addresses& at) const {
  const auto queries = [&](int64_t columns, void* data, fa3_dtype type) {
    return packed_q() ? packed({query_rows(), heads, columns}, data, type)
                      : packed({batch, seqlen, heads, columns}, data, type);
  };
  const auto keys = [&](int64_t columns, void* data) {
    if (packed_k()) return packed({key_rows(), kv_heads, columns}, data, key_dtype());
    const int64_t entries = planned.page ? pages() : batch, rows = planned.page ? planned.page : seqlen_k;
    return packed({entries, rows, kv_heads, columns}, data, key_dtype());
  };
  fa3_forward_params params = tools::forward_params();
  params.q = queries(head_dim, at.q, dtype);
  params.k = keys(head_dim, at.k);
  params.v = keys(v_dim(), at.v);
  if (v_in_k()) params.v = params.k, params.v.dim[params.k.rank - 1] = v_dim();
  params.o = queries(v_dim(), at.o, o_dtype());
  params.lse = packed_q() ? packed({heads, query_rows()}, at.lse, FA3_DTYPE_FP32)
                          : packed({batch, heads, seqlen}, at.lse, FA3_DTYPE_FP32);
  params.mask = causal ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE;
  if (!library_chooses() && !is_backward()) params.kernel = kernel.c_str();
  add_scales(params, at);
  add_planned(params, at);
  return params;
}

void Point::add_scales(fa3_forward_params& params, const Addresses& at) const {
  const auto scale = [&](int64_t n, int64_t length) {
    return packed(scale_dims(scales, batch, n, length), at.scales, FA3_DTYPE_FP32);
  };
  if (is_fp8()) params.q_scale = scale(heads, seqlen);
  if (key_dtype() == FA3_DTYPE_E4M3) params.k_scale = params.v_scale = scale(kv_heads, seqlen_k);
  if (!is_fp8()) return;
  if (v == VForm::tiles) params.v = packed({batch, kv_heads, v_groups(), v_dim(), v_tile_keys}, at.v, dtype);
  if (two_level) params.flags = FA3_FLAG_TWO_LEVEL;
}

void Point::add_planned(fa3_forward_params& params, const Addresses& at) const {
  if (planned.window >= 0) {
    params.mask = FA3_MASK_WINDOW;
    params.window_left = int32_t(planned.window), params.window_right = causal ? 0 : int32_t(planned.window);
  } else if (planned.chunk > 0) {
    params.mask = FA3_MASK_CHUNK;
    params.window_left = int32_t(planned.chunk), params.window_right = causal ? 0 : -1;
  }
  if (packed_q()) {
    params.max_seqlen_q = int32_t(std::max<int64_t>(seqlen, 1));
    params.cu_seqlens_q = packed({batch + 1}, at.cu_q, FA3_DTYPE_INT32);
  }
  if (packed_q() || planned.page) params.max_seqlen_k = int32_t(std::max<int64_t>(seqlen_k, 1));
  if (packed_k()) params.cu_seqlens_k = packed({batch + 1}, at.cu_k, FA3_DTYPE_INT32);
  if (planned.page) {
    params.seqused_k = packed({batch}, at.used_k, FA3_DTYPE_INT32);
    params.page_table = packed({batch, pages_each()}, at.page_table, FA3_DTYPE_INT32);
  }
  if (planned.sinks) params.sinks = packed({heads}, at.sinks, FA3_DTYPE_FP32);
  if (planned.alibi) params.alibi_slopes = packed({heads}, at.slopes, FA3_DTYPE_FP32);
  params.softcap = planned.softcap;
}

fa3_backward_params Point::backward_params(const fa3_forward_params& forward, const GradientAddresses& at) const {
  fa3_backward_params params = tools::backward_params();
  params.q = params.dq = forward.q;
  params.k = params.dk = forward.k;
  params.v = params.dv = forward.v;
  params.o = params.dout = forward.o;
  params.lse = forward.lse;
  params.dout.data = at.dout, params.dq.data = at.dq, params.dk.data = at.dk, params.dv.data = at.dv;
  params.mask = forward.mask;
  params.window_left = forward.window_left, params.window_right = forward.window_right;
  params.cu_seqlens_q = forward.cu_seqlens_q, params.cu_seqlens_k = forward.cu_seqlens_k;
  if (packed_q()) params.max_seqlen_q = forward.max_seqlen_q, params.max_seqlen_k = forward.max_seqlen_k;
  params.sinks = params.dsinks = forward.sinks, params.dsinks.data = at.dsinks;
  params.alibi_slopes = forward.alibi_slopes, params.softcap = forward.softcap;
  if (!library_chooses()) params.kernel = kernel.c_str();
  if (deterministic) params.flags = FA3_FLAG_DETERMINISTIC;
  return params;
}

}  // namespace fa3::bench
