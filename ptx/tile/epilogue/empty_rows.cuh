// Query rows that see no key: their O = 0 and LSE = -inf are written by warps that have nothing else to do. With a
// bound on the right and more queries than keys these are the first rows; whole blocks of them are in no tile
// (Tiles::first_row).
#pragma once
#include "../../isa/common.cuh"
#include "../../params/params.h"
#include "../row_sums.cuh"

namespace fa3 {

// Writes the share of one warp, of so many warps, in the first `rows` rows of each head. The warps take blocks of
// `block_rows` rows in turn; `lanes` lanes write a row, eight columns each. O may be e4m3 if any_dtype; otherwise its
// elements have 16 bits.
template <int lanes, int block_rows, bool any_dtype>
FA3_DEVICE void write_empty_rows(const Output& output, Divisor heads, int batch_heads, int rows, int warp, int warps) {
  constexpr int warp_rows = 32 / lanes;  // that a warp writes at a time
  const int lane = threadIdx.x % 32, column = lane % lanes * 8;
  const int blocks = (rows + block_rows - 1) / block_rows;
  for (int i = warp; i < batch_heads * blocks; i += warps) {
    const int batch_head = i / blocks;
    const int first = (i - batch_head * blocks) * block_rows, end = min(first + block_rows, rows);
    const int batch = batch_head / heads, head = batch_head - batch * heads;
    if (column < output.head_dim) {
      const int64_t offset = batch * output.o_stride_batch + head * output.o_stride_head + column;
      if (any_dtype && output.dtype == Dtype::e4m3) {
        uint8_t* const o = static_cast<uint8_t*>(output.o) + offset;
#pragma unroll 1
        for (int row = first + lane / lanes; row < end; row += warp_rows)
          *reinterpret_cast<uint2*>(o + row * output.o_stride_row) = make_uint2(0, 0);
      } else {
        uint16_t* const o = static_cast<uint16_t*>(output.o) + offset;
#pragma unroll 1  // or ptxas orders the consumers otherwise, -0.2% at d 64
        for (int row = first + lane / lanes; row < end; row += warp_rows)
          *reinterpret_cast<uint4*>(o + row * output.o_stride_row) = make_uint4(0, 0, 0, 0);
      }
    }
    if (output.lse) {
      float* const lse = output.lse + batch * output.lse_stride_batch + head * output.lse_stride_head;
#pragma unroll 1
      for (int row = first + lane; row < end; row += 32) lse[row * output.lse_stride_row] = lse_without_keys;
    }
  }
}

}  // namespace fa3
