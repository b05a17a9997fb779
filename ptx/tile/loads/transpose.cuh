// Row-major V of 8 bits, transposed on its way to a stage (the paper's section 3.3): 8-bit wgmma takes B only with k,
// the keys, contiguous. Two warps of the producer warpgroup read V by ldmatrix.trans from where TMA has put it, permute
// bytes, and write tiles of 16 keys (fa3.h) by stmatrix.
//
// ldmatrix moves 16-bit elements, here pairs of columns. Lane 4 r + q of a transposed 8 x 8 matrix has columns 2 r and
// 2 r + 1 of keys 2 q and 2 q + 1, as bytes (2 q, 2 r), (2 q, 2 r + 1), (2 q + 1, 2 r), (2 q + 1, 2 r + 1). Two such
// matrices, of keys 0-7 and 8-15, hold keys 2 q, 2 q + 1, 8 + 2 q, 8 + 2 q + 1 of both columns: one byte permutation
// takes those of the even column, another those of the odd one. As stmatrix stores four bytes of lane 4 r + q at byte
// 4 q of row r, the keys come to stand in the order that P has (convert in tile/scores/softmax.cuh), and eight even
// columns before eight odd ones.
#pragma once
#include "../../params/v_tile.h"
#include "../element.cuh"

namespace fa3 {

static_assert([] {
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 2; i++)  // which of the two columns, of the two keys, of the two matrices
      for (int e = 0; e < 2; e++) {
        const int r = lane / 4, q = lane % 4;
        if (v_tile_row(2 * r + i) != 8 * i + r || v_tile_byte(8 * i + 2 * q + e) != 4 * q + 2 * i + e) return false;
      }
  return true;
}());

// 32 keys and 16 columns at a time, for a warp's half of the columns. from, to: this lane's addresses. A few are under
// way together, as each takes some 40 clocks.
FA3_DEVICE void transpose_keys(uint32_t from, uint32_t to) {
  constexpr int groups = dv / 32, together = groups < 4 ? groups : 4;  // of 16 columns
  constexpr uint32_t even = 0x6420, odd = 0x7531;
#pragma unroll
  for (int first = 0; first < groups; first += together) {
    uint32_t keys[together][4];  // 0-7, 8-15, 16-23, 24-31
#pragma unroll
    for (int i = 0; i < together; i++) ptx::ldmatrix_x4_trans(keys[i], from ^ (first + i) << 4);
#pragma unroll
    for (int i = 0; i < together; i++)
      ptx::stmatrix_x4(to + (first + i) * 16 * v_tile_keys, __byte_perm(keys[i][0], keys[i][1], even),
                       __byte_perm(keys[i][0], keys[i][1], odd), __byte_perm(keys[i][2], keys[i][3], even),
                       __byte_perm(keys[i][2], keys[i][3], odd));
  }
}

// Mends a landing (landing.cuh): `half` of the columns of every V.
struct Transposer {
  // Where this lane reads and writes first. ldmatrix: lane l addresses key l. stmatrix: lanes 0-15 the 16 rows of a
  // tile, lanes 16-31 those of the next one.
  uint32_t from, to;

  FA3_DEVICE explicit Transposer(int half) {
    constexpr int half_bytes = dv / 2, half_slabs = half_bytes / slab_row_bytes;
    const int lane = threadIdx.x % 32;
    from = half * half_slabs * (Bc * slab_row_bytes) + lane * slab_row_bytes +
           ((half * (half_bytes / 16) % 8 ^ swizzled(lane)) << 4);
    to = (lane / 16 * dv + half * half_bytes + lane % 16) * v_tile_keys;
  }
  FA3_DEVICE void mend(uint32_t landing, uint32_t stage) const {
    const uint32_t source = landing + from, target = stage + to;
#pragma unroll 1
    for (int key = 0; key < Bc; key += 32) transpose_keys(source + key * slab_row_bytes, target + key * dv);
  }
};

}  // namespace fa3
