// Elements of e4m3 as 16 bits, with their scales, and what goes with that (kernels/widen.cu).
//
// An element and its scale are multiplied in float32, exactly or nearly so, and rounded once. An element has 4
// significant bits and bf16 has 8, so the copies are exact where the scale has no more than 4, as powers of two do.
#pragma once
#include "../isa/math.cuh"
#include "../widen_params.h"
#include "config.cuh"
#include "unpack.cuh"

namespace fa3 {

// The sequence of a packed row: the last one that begins at or before it. Rows before the first one are no sequence's,
// and whatever is made of them is not read.
FA3_DEVICE int sequence_of_row(const int32_t* cu_seqlens, int batch, int row) {
  int sequence = 0;
#pragma unroll 1
  for (int left = batch - 1; left > 0;) {
    const int half = (left + 1) / 2;
    if (__ldg(cu_seqlens + sequence + half) <= row) sequence += half, left -= half;
    else left = half - 1;
  }
  return sequence;
}

// Where a line is.
struct WidenedLine {
  int batch, line, head;

  FA3_DEVICE WidenedLine(const WidenedTensor& t, int number) {
    const int of_heads = number / t.heads;
    head = number - of_heads * t.heads;
    batch = of_heads / t.lines_of_head;
    line = of_heads - batch * t.lines_of_head;
  }
  FA3_DEVICE const uint8_t* from(const WidenedTensor& t) const {
    return t.from + batch * t.stride_batch + line * t.stride_row + head * t.stride_head;
  }
  FA3_DEVICE uint16_t* to(const WidenedTensor& t, int row) const {
    return t.to + ((int64_t(batch) * t.rows + row) * t.heads + head) * t.head_dim;
  }
  FA3_DEVICE float scale(const WidenParams& p, const WidenedTensor& t, int row) const {
    const int sequence = t.cu_seqlens ? sequence_of_row(t.cu_seqlens, p.batch, row) : batch;
    return __ldg(t.scale + int64_t(sequence) * t.scale_stride_batch + int64_t(head) * t.scale_stride_head +
                 int64_t(row / rows_of_scale) * t.scale_stride_block);
  }
};

// Two elements, the first one in the low byte.
FA3_DEVICE uint32_t widen_pair(uint32_t pair, float scale, bool bf16) {
  const uint32_t two = ptx::cvt_rn_f16x2_e4m3x2(uint16_t(pair));
  const float low = ptx::cvt_f32_f16(uint16_t(two)) * scale, high = ptx::cvt_f32_f16(uint16_t(two >> 16)) * scale;
  return bf16 ? ptx::cvt_rn_bf16x2_f32(high, low) : ptx::cvt_rn_f16x2_f32(high, low);
}

FA3_DEVICE void widen_rows(const WidenParams& p, const WidenedTensor& t, int block) {
  constexpr int threads = config.threads();
  uint2 x[widened_pieces];
  float scale[widened_pieces];
  uint16_t* to[widened_pieces];
#pragma unroll
  for (int i = 0; i < widened_pieces; i++) {
    const int number = threadIdx.x + i * threads, line = number / t.line_pieces;
    to[i] = nullptr;
    if (line >= t.lines_of_block || block * t.lines_of_block + line >= t.lines) continue;
    const WidenedLine at(t, block * t.lines_of_block + line);
    const int column = (number - line * t.line_pieces) * widened_columns;
    x[i] = __ldcs(reinterpret_cast<const uint2*>(at.from(t) + column));
    scale[i] = at.scale(p, t, at.line);
    to[i] = at.to(t, at.line) + column;
  }
#pragma unroll
  for (int i = 0; i < widened_pieces; i++)
    if (to[i])
      *reinterpret_cast<uint4*>(to[i]) =
          make_uint4(widen_pair(x[i].x, scale[i], p.bf16), widen_pair(x[i].x >> 16, scale[i], p.bf16),
                     widen_pair(x[i].y, scale[i], p.bf16), widen_pair(x[i].y >> 16, scale[i], p.bf16));
}

// A thread has 8 columns of a V tile, which are 8 of its rows, and writes them key by key.
FA3_DEVICE void widen_tiles(const WidenParams& p, const WidenedTensor& t, int block) {
  const int line = int(threadIdx.x) / t.line_pieces;
  if (line >= t.lines_of_block || block * t.lines_of_block + line >= t.lines) return;
  const WidenedLine at(t, block * t.lines_of_block + line);
  const int column = (int(threadIdx.x) - line * t.line_pieces) * widened_columns;
  const int first = at.line * v_tile_keys, present = min(t.rows - first, v_tile_keys);
  const uint8_t* const from = at.from(t);
  const float scale = at.scale(p, t, first);
  uint16_t* const to = at.to(t, first) + column;
  const int64_t next = int64_t(t.heads) * t.head_dim;
  uint32_t columns[widened_columns][4];
#pragma unroll
  for (int c = 0; c < widened_columns; c++) {
    const uint4 keys = __ldcs(reinterpret_cast<const uint4*>(from + v_tile_row(column + c) * v_tile_keys));
    columns[c][0] = keys.x, columns[c][1] = keys.y, columns[c][2] = keys.z, columns[c][3] = keys.w;
  }
#pragma unroll
  for (int key = 0; key < v_tile_keys; key++) {
    const int word = v_tile_byte(key) / 4, byte = v_tile_byte(key) % 4;
    const auto two = [&](int c) {
      return widen_pair(__byte_perm(columns[c][word], columns[c + 1][word], byte | (4 + byte) << 4), scale, p.bf16);
    };
    if (key < present) *reinterpret_cast<uint4*>(to + key * next) = make_uint4(two(0), two(2), two(4), two(6));
  }
}

// O of the forward pass has v_mean in it, and dP of the copies has not: D, which is dO . O - dLSE, becomes what it is
// for V without the mean by as much more dLSE. And P of the copies wants LSE without what lse_offset added.
FA3_DEVICE void correct_rows(const WidenParams& p, int block) {
  constexpr int rows_at_once = config.threads() / corrected_lanes;
  const int lane = threadIdx.x % corrected_lanes;
#pragma unroll 1
  for (int r = threadIdx.x / corrected_lanes; r < corrected_rows; r += rows_at_once) {
    const int64_t number = int64_t(block) * corrected_rows + r;
    const bool exists = number < p.corrected;
    const int line = exists ? int(number) : 0;
    const int batch_head = line / p.rows, row = line - batch_head * p.rows;
    const int batch = batch_head / p.heads, head = batch_head - batch * p.heads;
    float sum = 0.f;
    if (p.dlse_to && exists) {
      const int sequence = p.cu_seqlens ? sequence_of_row(p.cu_seqlens, p.batch, row) : batch;
      const float* const mean = p.v_mean + sequence * p.mean_stride_batch + head / p.heads_per_kv * p.mean_stride_head;
      const uint16_t* const dout =
          p.dout + batch * p.dout_stride_batch + row * p.dout_stride_row + head * p.dout_stride_head;
#pragma unroll 1
      for (int column = lane * 8; column < p.head_dim_v; column += corrected_lanes * 8) {
        const uint4 eight = __ldg(reinterpret_cast<const uint4*>(dout + column));
        const float4 low = __ldg(reinterpret_cast<const float4*>(mean + column));
        const float4 high = __ldg(reinterpret_cast<const float4*>(mean + column + 4));
        const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
        float x[8];
        unpack(p.bf16, words, x);
        sum = fmaf(x[0], low.x, fmaf(x[1], low.y, fmaf(x[2], low.z, fmaf(x[3], low.w, sum))));
        sum = fmaf(x[4], high.x, fmaf(x[5], high.y, fmaf(x[6], high.z, fmaf(x[7], high.w, sum))));
      }
    }
#pragma unroll
    for (int other = corrected_lanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (lane != 0 || !exists) continue;
    if (p.dlse_to) {
      if (p.dlse)
        sum += __ldg(p.dlse + batch * p.dlse_stride_batch + head * p.dlse_stride_head + row * p.dlse_stride_row);
      p.dlse_to[line] = sum;
    }
    if (p.lse_to)
      p.lse_to[line] =
          __ldg(p.lse + batch * p.lse_stride_batch + head * p.lse_stride_head + row * p.lse_stride_row) -
          __ldg(p.lse_offset + batch * p.offset_stride_batch + head * p.offset_stride_head +
                row * p.offset_stride_row);
  }
}

}  // namespace fa3
