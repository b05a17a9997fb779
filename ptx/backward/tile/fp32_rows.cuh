// Gradients in float32 (GradientStore): what passes make of sums, which lie as rows.cuh says, and what a warpgroup
// has in its registers.
#pragma once
#include "key_sums.cuh"
#include "rows.cuh"

namespace fa3 {

// Of some groups of 8 columns a lane's two columns of two rows, times `scale`. to: where the first ones go; the other
// row is `other` numbers behind. columns: so many there are from the first group on; rows: so many from the first row
// on. add: to what is there, all of which is loaded before any of it is stored.
template <int groups>
FA3_DEVICE void store_fp32(float* to, int64_t other, const float4 (&x)[groups], int columns, int rows, bool add,
                           float scale) {
  float2 before[groups][2] = {};
  if (add) {
#pragma unroll
    for (int g = 0; g < groups; g++)
#pragma unroll
      for (int i = 0; i < 2; i++)
        if (8 * g < columns && 8 * i < rows) before[g][i] = *reinterpret_cast<const float2*>(to + i * other + 8 * g);
  }
#pragma unroll
  for (int g = 0; g < groups; g++) {
    float2* const two = reinterpret_cast<float2*>(to + 8 * g);
    const float2 a = before[g][0], b = before[g][1];
    if (8 * g < columns && 0 < rows) *two = {fmaf(x[g].x, scale, a.x), fmaf(x[g].y, scale, a.y)};
    float2* const below = reinterpret_cast<float2*>(to + other + 8 * g);
    if (8 * g < columns && 8 < rows) *below = {fmaf(x[g].z, scale, b.x), fmaf(x[g].w, scale, b.y)};
  }
}

// dK or dV of 16 keys, by a warp, as the sum over the parts, which lie `next_part` behind one another; the rest is as
// above.
FA3_DEVICE void sum_fp32(const BackwardParams& p, const float4* sums, int64_t next_part, float* to, int64_t other,
                         int columns, int rows, float scale) {
  constexpr int groups = 4;
#pragma unroll 1
  for (int first = 0; first < d / 8; first += groups) {
    float4 x[groups] = {};
    add_parts(x, sums, p.order.parts, next_part, first);
    store_fp32(to + 8 * first, other, x, columns - 8 * first, rows, p.rows.store == GradientStore::added_fp32, scale);
  }
}

// A warpgroup's 64 rows; `warp` of its four. to: where the first row is; columns, rows: so many there are.
FA3_DEVICE void store_fp32(const float (&D)[d / 2], float* to, int64_t row_stride, int columns, int rows, float scale,
                           bool add, int warp) {
  const int lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
  to += row * row_stride + 2 * (lane % 4);
#pragma unroll
  for (int g = 0; g < d / 8; g++) {
    const float4 x[1] = {{D[4 * g], D[4 * g + 1], D[4 * g + 2], D[4 * g + 3]}};
    store_fp32(to + 8 * g, 8 * row_stride, x, columns - 8 * g, rows - row, add, scale);
  }
}

// dQ of a tile.
FA3_DEVICE void store_dq_fp32(const BackwardParams& p, const float (&D)[d / 2], const RowTile& place, int warp) {
  store_fp32(D, reinterpret_cast<float*>(p.rows.dq) + place.offset(p.rows.dq_stride, 0), p.rows.dq_stride.row,
             p.rows.head_dim, place.rows, p.softmax_scale, p.rows.store == GradientStore::added_fp32, warp);
}

// dQ of 16 rows of a tile from its sums, by a warp; with second sums (Spread in backward_work.h), if there are any.
// tile: its number, place: where it is.
FA3_DEVICE void finish_fp32(const BackwardParams& params, const RowTile& place, int tile, int strip) {
  constexpr int groups = 2;
  const BackwardRows& p = params.rows;
  const int lane = threadIdx.x % 32, row = 16 * strip + lane / 4, visit = tile / p.tiles_per_visit;
  const int second = params.order.spread.second;
  const bool are_sums = params.visits[visit] > 0, are_second = second > 0 && params.visits[visit + second] > 0;
  const float4* const sums = reinterpret_cast<const float4*>(p.dq_sums) + int64_t(tile) * (16 * d) + strip * 256 + lane;
  const float4* const seconds = sums + int64_t(second) * p.tiles_per_visit * (16 * d);
  float* const to = reinterpret_cast<float*>(p.dq) + place.offset(p.dq_stride, row) + 2 * (lane % 4);
#pragma unroll 1
  for (int first = 0; first < d / 8; first += groups) {
    float4 x[groups] = {};
    const int at = first / 8 * 1024 + first % 8 * 32;
    if (are_sums) {
#pragma unroll
      for (int g = 0; g < groups; g++) x[g] = __ldcs(sums + at + g * 32);
    }
    if (are_second) {
#pragma unroll
      for (int g = 0; g < groups; g++) {
        const float4 y = __ldcs(seconds + at + g * 32);
        x[g] = make_float4(x[g].x + y.x, x[g].y + y.y, x[g].z + y.z, x[g].w + y.w);
      }
    }
    store_fp32(to + 8 * first, 8 * p.dq_stride.row, x, p.head_dim - 8 * first, place.rows - row,
               p.store == GradientStore::added_fp32, params.softmax_scale);
  }
}

}  // namespace fa3
