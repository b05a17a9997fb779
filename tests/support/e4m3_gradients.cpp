#include "e4m3_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "half.h"

namespace fa3::test {
namespace {

constexpr int64_t tile_keys = 16;

int64_t elements(const fa3_tensor& t) {
  int64_t count = t.rank > 0;
  for (int i = 0; i < t.rank; ++i) count *= t.dim[i];
  return count;
}

// Calls body(element's place) for all elements, in the order of the dims.
template <class Body>
void for_each(const fa3_tensor& t, const Body& body) {
  for (int64_t n = 0; n < elements(t); ++n) {
    int64_t left = n, at = 0;
    for (int i = t.rank - 1; i >= 0; --i) at += left % t.dim[i] * t.stride[i], left /= t.dim[i];
    body(at);
  }
}

fa3_dtype dtype_of(const fa3_tensor& t) { return static_cast<fa3_dtype>(t.dtype); }

}  // namespace

E4m3Call::E4m3Call(const E4m3Form& wanted, uint64_t seed) : form(wanted), random_(seed) {
  const bool packed = !form.lengths.empty();
  int64_t rows_q = form.seqlen_q, rows_k = form.seqlen_k;
  if (packed) {
    form.batch = int64_t(form.lengths.size()), rows_q = rows_k = form.seqlen_q = form.seqlen_k = 0;
    for (const auto& [q, k] : form.lengths) {
      rows_q += q, rows_k += k;
      form.seqlen_q = std::max<int64_t>(form.seqlen_q, q), form.seqlen_k = std::max<int64_t>(form.seqlen_k, k);
    }
  }
  const auto dims = [&](int64_t rows, int64_t heads, int64_t columns) {
    return packed ? std::vector<int64_t>{rows, heads, columns} : std::vector<int64_t>{form.batch, rows, heads, columns};
  };
  const int64_t d = form.head_dim, dv = form.head_dim_v, h = form.heads, hk = form.heads_kv;
  const bool by_heads = form.by_heads && !packed;
  f.mask = form.mask, f.window_left = form.window_left, f.window_right = form.window_right, f.softcap = form.softcap;
  f.q = make(FA3_DTYPE_E4M3, dims(rows_q, h, d), by_heads), f.k = make(FA3_DTYPE_E4M3, dims(rows_k, hk, d), by_heads);
  f.v = form.tiles ? make(FA3_DTYPE_E4M3, {form.batch, hk, (rows_k + tile_keys - 1) / tile_keys, dv, tile_keys})
                   : make(FA3_DTYPE_E4M3, dims(rows_k, hk, dv), by_heads);
  for (const fa3_tensor* t : {&f.q, &f.k, &f.v}) fill(*t, 100);
  f.q_scale = scale_of(h, rows_q), f.k_scale = scale_of(hk, rows_k), f.v_scale = scale_of(hk, rows_k);
  if (form.mean) f.v_mean = make(FA3_DTYPE_FP32, {form.batch, hk, dv}), fill(f.v_mean, 1);
  const std::vector<int64_t> row_dims =
      packed ? std::vector<int64_t>{h, rows_q} : std::vector<int64_t>{form.batch, h, rows_q};
  if (form.offset) f.lse_offset = make(FA3_DTYPE_FP32, row_dims), fill(f.lse_offset, 3);
  if (form.sinks) f.sinks = make(FA3_DTYPE_FP32, {h}), fill(f.sinks, 1);
  if (packed) {
    f.cu_seqlens_q = lengths_of(false), f.cu_seqlens_k = lengths_of(true);
    f.max_seqlen_q = int32_t(form.seqlen_q), f.max_seqlen_k = int32_t(form.seqlen_k);
  }
  f.o = make(form.dtype, dims(rows_q, h, dv)), f.lse = make(FA3_DTYPE_FP32, row_dims);
  if (fa3_reference_forward(&f, 1) != FA3_OK) std::abort();

  p.flags = form.flags, p.mask = f.mask, p.window_left = f.window_left, p.window_right = f.window_right;
  p.softcap = f.softcap;
  p.q = f.q, p.k = f.k, p.v = f.v, p.o = f.o, p.lse = f.lse;
  p.q_scale = f.q_scale, p.k_scale = f.k_scale, p.v_scale = f.v_scale, p.v_mean = f.v_mean;
  p.lse_offset = f.lse_offset, p.sinks = f.sinks;
  p.cu_seqlens_q = f.cu_seqlens_q, p.cu_seqlens_k = f.cu_seqlens_k;
  p.max_seqlen_q = f.max_seqlen_q, p.max_seqlen_k = f.max_seqlen_k;
  p.dout = make(form.dtype, dims(rows_q, h, dv), by_heads), fill(p.dout, 1);
  if (form.dlse) p.dlse = make(FA3_DTYPE_FP32, row_dims), fill(p.dlse, 1);
  p.dq = make(form.dtype, dims(rows_q, h, d)), p.dk = make(form.dtype, dims(rows_k, hk, d), by_heads);
  p.dv = make(form.dtype, dims(rows_k, hk, dv));
  if (form.dsinks) p.dsinks = make(FA3_DTYPE_FP32, {h});
  clear_gradients();
}

fa3_tensor E4m3Call::make(int32_t dtype, const std::vector<int64_t>& dims, bool by_heads) {
  fa3_tensor t{};
  t.dtype = dtype, t.rank = int32_t(dims.size());
  std::copy(dims.begin(), dims.end(), t.dim);
  if (fa3_tensor_pack(&t) != FA3_OK) std::abort();
  int64_t count = elements(t);
  if (by_heads) {
    t.stride[1] = t.dim[3] + 16, t.stride[2] = (t.dim[1] + 1) * t.stride[1], t.stride[0] = t.dim[2] * t.stride[2];
    count = t.dim[0] * t.stride[0];
  }
  memory_.emplace_back(size_t(count) * size_t(tools::element_bytes(dtype_of(t))) + 16);
  t.data = memory_.back().data();
  return t;
}

void E4m3Call::fill(const fa3_tensor& t, double deviation, double mean) {
  for_each(t, [&](int64_t at) {
    double sum = -6;  // of 12 uniform numbers: nearly normal
    for (int i = 0; i < 12; ++i) sum += random_.uniform();
    tools::write_element(t.data, at, float(mean + deviation * sum), dtype_of(t));
  });
}

// Of no power of two, so that products are rounded.
fa3_tensor E4m3Call::scale_of(int64_t heads, int64_t rows) {
  const bool packed = !form.lengths.empty();
  const int64_t blocks = form.scales == Granularity::block ? (rows + 63) / 64 : 1;
  const fa3_tensor t = make(FA3_DTYPE_FP32, form.scales == Granularity::tensor
                                                ? std::vector<int64_t>{1, 1, 1}
                                                : std::vector<int64_t>{form.batch, heads, packed ? 1 : blocks});
  for_each(t, [&](int64_t at) { static_cast<float*>(t.data)[at] = float(0.006 + 0.008 * random_.uniform()); });
  return t;
}

fa3_tensor E4m3Call::lengths_of(bool keys) {
  const fa3_tensor t = make(FA3_DTYPE_INT32, {form.batch + 1});
  auto* const sums = static_cast<int32_t*>(t.data);
  sums[0] = 0;
  for (size_t i = 0; i < form.lengths.size(); ++i)
    sums[i + 1] = sums[i] + (keys ? form.lengths[i].second : form.lengths[i].first);
  return t;
}

std::vector<double> E4m3Call::numbers(const fa3_tensor& t) const {
  std::vector<double> all;
  for_each(t, [&](int64_t at) { all.push_back(tools::read_element(t.data, at, dtype_of(t))); });
  return all;
}

void E4m3Call::clear_gradients() {
  for (const fa3_tensor* t : {&p.dq, &p.dk, &p.dv, &p.dsinks})
    for_each(*t, [&](int64_t at) { tools::write_element(t->data, at, NAN, dtype_of(*t)); });
}

std::vector<E4m3Form> e4m3_forms() {
  constexpr int32_t bottom_right = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return {
      {.name = "scales of heads"},
      {.name = "nothing but scales", .mean = false, .offset = false, .dlse = false},
      {.name = "one scale, fp16, causal", .seqlen_q = 130, .dtype = FA3_DTYPE_FP16, .mask = bottom_right,
       .scales = Granularity::tensor},
      {.name = "blocks", .seqlen_q = 150, .seqlen_k = 200, .mask = FA3_MASK_CAUSAL_TOP_LEFT,
       .scales = Granularity::block},
      {.name = "blocks, tiles", .seqlen_q = 150, .seqlen_k = 203, .mask = bottom_right, .scales = Granularity::block,
       .tiles = true},
      {.name = "tiles, fp16", .seqlen_q = 33, .seqlen_k = 17, .heads = 3, .heads_kv = 3, .head_dim = 48,
       .head_dim_v = 80, .dtype = FA3_DTYPE_FP16, .tiles = true, .dlse = false},
      {.name = "storage by heads", .seqlen_q = 70, .seqlen_k = 140, .head_dim = 112, .head_dim_v = 128,
       .mask = bottom_right, .scales = Granularity::block, .by_heads = true},
      {.name = "head_dim 256", .batch = 1, .seqlen_k = 130, .heads = 2, .heads_kv = 1, .head_dim = 256,
       .head_dim_v = 192, .mask = bottom_right, .tiles = true},
      {.name = "more queries than keys", .seqlen_q = 200, .seqlen_k = 100, .mask = bottom_right, .offset = false},
      {.name = "packed", .mask = bottom_right, .lengths = {{20, 40}, {0, 7}, {65, 90}, {9, 0}, {30, 12}}},
      {.name = "packed, one scale, fp16", .dtype = FA3_DTYPE_FP16, .scales = Granularity::tensor, .dlse = false,
       .lengths = {{3, 4}, {70, 150}}},
      {.name = "packed, sinks, d 128", .head_dim = 128, .head_dim_v = 128, .mask = bottom_right, .sinks = true,
       .lengths = {{20, 40}, {65, 90}}},
      {.name = "sinks with a gradient", .mask = bottom_right, .mean = false, .offset = false, .sinks = true,
       .dsinks = true, .lengths = {{20, 40}, {65, 90}}},
      {.name = "window", .mask = FA3_MASK_WINDOW, .window_left = 20, .window_right = 3},
      {.name = "softcap", .mask = bottom_right, .offset = false, .softcap = 5},
      {.name = "softcap, packed", .mask = bottom_right, .offset = false, .lengths = {{20, 40}, {65, 90}}, .softcap = 5},
      {.name = "centered", .seqlen_q = 130, .seqlen_k = 130, .mask = bottom_right, .dlse = false,
       .flags = FA3_FLAG_CENTERED_K},
      {.name = "deterministic", .seqlen_q = 200, .seqlen_k = 200, .flags = FA3_FLAG_DETERMINISTIC},
  };
}

double relative_error(const std::vector<double>& found, const std::vector<double>& right) {
  double error = 0, all = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = found[i] - right[i];
    if (!std::isfinite(difference)) return INFINITY;
    error += difference * difference, all += right[i] * right[i];
  }
  return error == 0 ? 0 : std::sqrt(error / all);
}

}  // namespace fa3::test
