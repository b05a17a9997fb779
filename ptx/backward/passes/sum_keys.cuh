// dK and dV of 64 keys from the sums of a K/V head's parts (key_sums.cuh), in the parts' order, by a thread block: of
// one gradient, 16 rows for each warp.
#pragma once
#include "../../isa/grid.cuh"
#include "../tile/fp32_rows.cuh"
#include "../tile/key_sums.cuh"

namespace fa3 {

// The n-th of all of dK, then of all of dV.
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

}  // namespace fa3
