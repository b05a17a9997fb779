// dK and dV as the sums over the parts of a K/V head (key_sums.cuh), in the parts' order.
#pragma once
#include "fp32_rows.cuh"
#include "key_sums.cuh"

namespace fa3 {

// Of 16 keys, by a warp. sums: this lane's, of the first part; the others' lie `next_part` behind one another. at:
// where this lane's first row is in the gradient; rows: so many there are from that one on.
FA3_DEVICE void sum_keys(const BackwardParams& p, bool is_dv, const float4* sums, int64_t next_part, int64_t at,
                         int rows) {
  constexpr int groups = 8;  // of 8 columns, whose loads are under way at once
  const int lane = threadIdx.x % 32;
  const bool odd = lane % 2;
  const RowStrides& stride = is_dv ? p.keys.dv_stride : p.keys.dk_stride;
  const int left = (is_dv ? p.keys.head_dim_v : p.keys.head_dim) - 8 * odd;
  const float scale = is_dv ? 1.f : p.softmax_scale;
  uint16_t* const gradient = is_dv ? p.keys.dv : p.keys.dk;
  uint16_t* const to = gradient + at + 8 * odd + lane % 4 / 2 * 4;
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
