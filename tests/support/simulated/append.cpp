#include "append.h"

#include <algorithm>
#include <vector>

namespace fa3::test {
namespace {

fa3_tensor tensor(const void* data, int32_t dtype, std::vector<int64_t> dim, std::vector<int64_t> stride) {
  fa3_tensor t{const_cast<void*>(data), dtype, int32_t(dim.size()), {}, {}};
  for (size_t i = 0; i < dim.size(); ++i) t.dim[i] = dim[i], t.stride[i] = stride[i];
  return t;
}
fa3_tensor numbers(const void* data, bool has_64_bits, int64_t count) {
  return data ? tensor(data, has_64_bits ? FA3_DTYPE_INT64 : FA3_DTYPE_INT32, {count}, {1}) : fa3_tensor{};
}

bool is_packed(const AppendParams& p) { return p.cu_seqlens || p.slots || p.positions_of_rows; }
int64_t sequences(const AppendParams& p) {
  return p.cu_seqlens ? p.batch : is_packed(p) ? 1 : p.rows / p.rows_of_sequence;
}

// New rows, or where those of Q go.
fa3_tensor rows_of(const AppendParams& p, const AppendTensor& t, const void* data, int32_t dtype, bool output) {
  const int64_t batch = output ? t.y_stride_batch : t.x_stride_batch, row = output ? t.y_stride_row : t.x_stride_row;
  const int64_t head = output ? t.y_stride_head : t.x_stride_head, d = t.quads.chunks * append_columns;
  if (is_packed(p)) return tensor(data, dtype, {p.rows, t.heads, d}, {row, head, 1});
  return tensor(data, dtype, {sequences(p), p.rows_of_sequence, t.heads, d}, {batch, row, head, 1});
}

}  // namespace

fa3_append_params call_of(const AppendParams& p) {
  const int64_t batch = sequences(p);
  const int32_t dtype = p.bf16 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
  fa3_append_params call{};
  call.struct_size = sizeof call;
  call.flags = p.interleaved ? FA3_APPEND_ROTARY_INTERLEAVED : 0;
  const struct {
    fa3_tensor &x, &y, &scale;
  } places[] = {{call.q, call.q_out, call.q_scale},
                {call.k, call.k_cache, call.k_scale},
                {call.v, call.v_cache, call.v_scale}};
  for (int n = 0; n < 3; ++n) {
    const AppendTensor& t = p.tensors[n];
    const int32_t out = t.scale ? FA3_DTYPE_E4M3 : dtype;
    if (t.heads == 0) continue;
    places[n].x = rows_of(p, t, t.x, dtype, false);
    if (n == 0) places[n].y = rows_of(p, t, t.y, out, true);
    else
      places[n].y = tensor(t.y, out, {p.caches, p.page_table || p.slots ? p.cache_rows : p.capacity, t.heads,
                                      t.quads.chunks * append_columns},
                           {t.y_stride_batch, t.y_stride_row, t.y_stride_head, 1});
    if (t.scale)
      places[n].scale = tensor(t.scale, FA3_DTYPE_FP32, {batch, t.heads, 1},
                               {t.scale_stride_batch, t.scale_stride_head, 1});
  }
  call.cache_seqlens = numbers(p.cache_seqlens, false, batch);
  call.cu_seqlens_new = numbers(p.cu_seqlens, false, batch + 1);
  call.seqused_new = numbers(p.seqused, false, batch);
  call.cache_batch_idx = numbers(p.cache_batch_idx, false, batch);
  if (p.page_table)
    call.page_table = tensor(p.page_table, FA3_DTYPE_INT32, {batch, p.capacity / p.cache_rows},
                             {p.page_table_stride, 1});
  call.slot_mapping = numbers(p.slots, p.slots_64, p.rows);
  call.rotary_positions = numbers(p.positions, p.positions_64, p.positions_of_rows ? p.rows : batch);
  if (p.rotary_cos) {
    const int64_t half = std::max(p.tensors[0].quads.rotated, p.tensors[1].quads.rotated) * append_columns / 2;
    call.rotary_cos = tensor(p.rotary_cos, FA3_DTYPE_FP32, {p.angles, half}, {p.cos_stride, 1});
    call.rotary_sin = tensor(p.rotary_sin, FA3_DTYPE_FP32, {p.angles, half}, {p.sin_stride, 1});
  }
  return call;
}

bool is_complete(const AppendParams& p, const PassRow& row, unsigned grid) {
  int64_t first[4] = {};  // chunk of a row, of each tensor
  for (int n = 0; n < 3; ++n) first[n + 1] = first[n] + int64_t{p.tensors[n].heads} * p.tensors[n].quads.chunks;
  std::vector<int> taken(size_t(p.rows) * size_t(first[3]));
  const int32_t lanes = 1 << p.lane_shift;
  for (int64_t thread = 0; thread < int64_t{grid} * row.threads(); ++thread) {
    const int32_t warp = int32_t(thread / 32), lane = int32_t(thread % 32), group = warp / p.segments;
    const int64_t at = int64_t{group} * (32 / lanes) + lane / lanes;
    const int32_t quad_in_row = (warp - group * p.segments) * 32 + lane % lanes;
    if (at >= p.rows || quad_in_row >= p.quads) continue;
    const int n = quad_in_row < p.q_end ? 0 : quad_in_row < p.k_end ? 1 : 2;
    const AppendTensor& t = p.tensors[n];
    const int32_t quad = quad_in_row - (n == 0 ? 0 : n == 1 ? p.q_end : p.k_end), heads = quad / t.quads_of_head;
    const int32_t quad_in_head = quad - heads * t.quads_of_head;
    for (int32_t head = heads * append_heads; head < std::min((heads + 1) * append_heads, t.heads); ++head)
      for (const int32_t chunk : {t.quads.first(quad_in_head), t.quads.second(quad_in_head)}) {
        if (chunk >= t.quads.chunks) continue;
        if (t.quads.is_rotated(quad_in_head) != (chunk < t.quads.rotated)) return false;
        ++taken[size_t(at * first[3] + first[n] + int64_t{head} * t.quads.chunks + chunk)];
      }
  }
  return std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; });
}

}  // namespace fa3::test
