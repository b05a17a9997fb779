// The first query rows under a causal mask with more queries than keys see no key. Whole blocks of them are in no tile
// (ForwardParams::q_origin): their O = 0 and LSE = -inf are written by warps that have nothing else to do, beside the tiles.
#pragma once
#include "config.cuh"

namespace fa3 {

// The share of one of two such warps of every thread block.
FA3_DEVICE void write_blind_rows(const ForwardParams& p, int warp) {
  constexpr int lanes = d / 8, at_once = 32 / lanes;  // lanes to a row, 16 bytes each; rows
  const int lane = threadIdx.x % 32, column = lane % lanes * 8;
  const int blocks = (p.q_origin + Br - 1) / Br;  // of each head
  for (int i = 2 * blockIdx.x + warp; i < p.batch_heads * blocks; i += 2 * gridDim.x) {
    const int batch_head = i / blocks, first = (i - batch_head * blocks) * Br, end = min(first + Br, p.q_origin);
    const int batch = batch_head / p.heads, head = batch_head - batch * p.heads;
    if (column < p.head_dim) {
      uint16_t* const o = p.o_data + batch * p.o_stride_batch + head * p.o_stride_head + column;
#pragma unroll 1  // or ptxas orders the consumers otherwise, -0.2% at d 64
      for (int row = first + lane / lanes; row < end; row += at_once)
        *reinterpret_cast<uint4*>(o + row * p.o_stride_row) = make_uint4(0, 0, 0, 0);
    }
    if (p.lse) {
      float* const lse = p.lse + batch * p.lse_stride_batch + head * p.lse_stride_head;
#pragma unroll 1
      for (int row = first + lane; row < end; row += 32) lse[row * p.lse_stride_row] = -INFINITY;
    }
  }
}

}  // namespace fa3
