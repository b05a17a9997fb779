// dK and dV of 64 keys as sums over a K/V head's parts, in the parts' order, by a thread block: of one gradient.
#pragma once
#include "../../isa/grid.cuh"
#include "../tile/fp32_rows.cuh"
#include "../tile/key_sums.cuh"

namespace fa3 {

// The n-th of all of dK, then of all of dV, 16 rows for each warp. Sums lie as key_sums.cuh says.
FA3_DEVICE void sum_keys(const BackwardParams& p, int n) {
  static_assert(config.threads() == 32 * strips);
  constexpr int groups = 8;  // of 8 columns, whose loads are under way at once
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
  const bool odd = lane % 2;
  const int all = n / p.keys.tiles, tile = n - all * p.keys.tiles;
  const int heads_each = p.order.batch_heads / p.order.parts, is_dv = all >= heads_each;
  const int batch_head = all - is_dv * heads_each;
  const int batch = batch_head / p.keys.heads, head = batch_head - batch * p.keys.heads;
  const RowStrides& stride = is_dv ? p.keys.dv_stride : p.keys.dk_stride;
  const int row = 64 * tile + 16 * strip + lane / 4, rows = p.visible.seqlen_k - row;
  const int left = (is_dv ? p.keys.head_dim_v : p.keys.head_dim) - 8 * odd;
  const float scale = is_dv ? 1.f : p.softmax_scale;
  uint16_t* const gradient = is_dv ? p.keys.dv : p.keys.dk;
  const int64_t at = batch * stride.batch + head * stride.head + row * stride.row;
  uint16_t* const to = gradient + at + 8 * odd + lane % 4 / 2 * 4;
  const float4* const sums = key_sums(p, is_dv ? KeyGradient::dv : KeyGradient::dk, batch_head * p.order.parts, tile) +
                             256 * strip + lane;
  const int64_t next_part = int64_t(p.keys.tiles) * (16 * d);
  const auto pair = [&](float low, float high) {
    return p.rows.bf16 ? ptx::cvt_rn_bf16x2_f32(high * scale, low * scale)
                       : ptx::cvt_rn_f16x2_f32(high * scale, low * scale);
  };
  if (p.rows.store != GradientStore::rounded)
    return sum_fp32(p, sums, next_part, reinterpret_cast<float*>(gradient) + at + lane % 4 * 2, 8 * stride.row,
                    left + 8 * odd, rows, scale);
#pragma unroll 1
  for (int first = 0; first < d / 8; first += groups) {
    float4 x[groups] = {};
    add_parts(x, sums, p.order.parts, next_part, first);
#pragma unroll
    for (int g = 0; g < groups; g += 2) {
      const int column = 8 * (first + g);
      const bool exists = column < left;
      store_four(to + column, exists && 0 < rows, odd, pair(x[g].x, x[g].y), pair(x[g + 1].x, x[g + 1].y));
      store_four(to + 8 * stride.row + column, exists && 8 < rows, odd, pair(x[g].z, x[g].w),
                 pair(x[g + 1].z, x[g + 1].w));
    }
  }
}

// Four columns of a row of a gradient, times `scale`.
FA3_DEVICE void write_four(const BackwardRows& p, uint16_t* gradient, int64_t at, const float4& x, float scale) {
  const float y[4] = {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
  if (p.store == GradientStore::rounded) {
    *reinterpret_cast<uint2*>(gradient + at) =
        p.bf16 ? make_uint2(ptx::cvt_rn_bf16x2_f32(y[1], y[0]), ptx::cvt_rn_bf16x2_f32(y[3], y[2]))
               : make_uint2(ptx::cvt_rn_f16x2_f32(y[1], y[0]), ptx::cvt_rn_f16x2_f32(y[3], y[2]));
    return;
  }
  float4* const to = reinterpret_cast<float4*>(reinterpret_cast<float*>(gradient) + at);
  const float4 before = p.store == GradientStore::added_fp32 ? *to : float4{};
  *to = make_float4(before.x + y[0], before.y + y[1], before.z + y[2], before.w + y[3]);
}

// The same of the n-th 64 keys, counted over the list, its heads and both gradients. Sums are rows of float32
// (UnroundedKeys).
FA3_DEVICE void sum_keys(const PlannedBackwardParams& p, int n) {
  constexpr int in_flight = 4, step = config.threads() / (d / 4);  // rows, of which a thread has four columns each
  const int all = n / p.keys.tiles, tile = n - all * p.keys.tiles;
  const int entry = tile * 64 / p.call.Bc, is_dv = all >= p.keys.heads, head = all - is_dv * p.keys.heads;
  if (entry >= p.counts->blocks) return;
  const PlannedBlock& block = p.blocks[entry];
  const Sequence& sequence = block.sequence;
  const int key = block.key + tile * 64 - entry * p.call.Bc, rows = min(sequence.seqlen_k - key, 64);
  const int column = threadIdx.x % (d / 4) * 4;
  if (column >= (is_dv ? p.keys.head_dim_v : p.keys.head_dim)) return;
  const float scale = is_dv ? 1.f : p.softmax_scale;
  const auto offset = [&](const RowStrides& stride, int head) {
    return sequence.k_batch * stride.batch + head * stride.head + (sequence.k_row + key) * stride.row + column;
  };
  const RowStrides &stride = is_dv ? p.keys.dv_stride : p.keys.dk_stride,
                   &from = is_dv ? p.unrounded.dv_stride : p.unrounded.dk_stride;
  uint16_t* const gradient = is_dv ? p.keys.dv : p.keys.dk;
  const int64_t to = offset(stride, head);
  const float* const sums = (is_dv ? p.unrounded.dv : p.unrounded.dk) + offset(from, head * p.order.parts);
#pragma unroll 1
  for (int first = threadIdx.x / (d / 4); first < rows; first += in_flight * step) {
    float4 x[in_flight] = {};
#pragma unroll 1
    for (int part = 0; part < p.order.parts; part++)
#pragma unroll
      for (int i = 0; i < in_flight; i++) {
        const int row = first + i * step;
        if (row >= rows) continue;
        const float4 more = __ldcs(reinterpret_cast<const float4*>(sums + part * from.head + row * from.row));
        x[i] = make_float4(x[i].x + more.x, x[i].y + more.y, x[i].z + more.z, x[i].w + more.w);
      }
#pragma unroll
    for (int i = 0; i < in_flight; i++) {
      const int row = first + i * step;
      if (row < rows) write_four(p.rows, gradient, to + row * stride.row, x[i], scale);
    }
  }
}

}  // namespace fa3
