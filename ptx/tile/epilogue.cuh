// O and LSE on their way out: each warp stages its 16 rows of O in the tile's dead Q slot and stores them with TMA, which
// clips what lies outside the tensor.
#pragma once
#include "../isa/matrix.cuh"
#include "../isa/tma.cuh"
#include "../isa/wgmma.cuh"
#include "softmax.cuh"
#include "smem.cuh"

namespace fa3 {

// Rows that see no key: their P was 0, but V need not have been finite. A branch of its own, kept one by wgmma_owned: a
// select for every register costs more than the whole store.
FA3_DEVICE void clear_blind_rows(float (&O)[d / 2], const float (&l)[2]) {
#pragma unroll
  for (int i = 0; i < d / 2; i++) O[i] = l[i >> 1 & 1] == 0.f ? 0.f : O[i];
  ptx::wgmma_owned(O);
}

// l: complete row sums. The caller's warpgroup has finished all reads of the slot.
FA3_DEVICE void store_o(const float (&O)[d / 2], const float (&l)[2], Smem& smem, uint32_t slot, const ForwardParams& p,
                        const RowBlock& block, int warp) {
  using namespace ptx;
  const int lane = threadIdx.x % 32;
  const uint32_t rows = shared_address(&smem.q[slot]) + warp * 16 * slab_row_bytes;
  // stmatrix: lanes 0-15 address the 16 rows of 8 columns, lanes 16-31 the same rows 8 columns on.
  const uint32_t address = rows + lane % 16 * slab_row_bytes + ((lane / 16 ^ lane % 8) << 4);
  const float inverse[2] = {rcp_approx_ftz(l[0] == 0.f ? 1.f : l[0]), rcp_approx_ftz(l[1] == 0.f ? 1.f : l[1])};
#pragma unroll
  for (int k = 0; k < d / 16; k++) {
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = pack(O[8 * k + 2 * i] * inverse[i & 1], O[8 * k + 2 * i + 1] * inverse[i & 1]);
    stmatrix_x4((address ^ k % 4 * 32) + k / 4 * 64 * slab_row_bytes, x[0], x[1], x[2], x[3]);
  }
  fence_proxy_async_shared();
  __syncwarp();
  // Rows past the end are clipped, but a store wholly at negative rows is an illegal instruction.
  if (lane == 0 && block.row >= 0) {
#pragma unroll
    for (int slab = 0; slab < slabs; slab++)
      cp_async_bulk_tensor_4d_store(&p.o, rows + slab * 64 * slab_row_bytes, slab * slab_columns, block.row + warp * 16,
                                    block.head, block.batch);
    cp_async_bulk_commit_group();
  }
}

// LSE = m * scale + ln(l), -inf for a row without keys. Lane 4 r writes row r of the warp's 16, lane 4 r + 1 row r + 8.
FA3_DEVICE void store_lse(const RowState& state, const float (&l)[2], const ForwardParams& p, const RowBlock& block, int warp) {
  const int lane = threadIdx.x % 32, i = lane % 4;
  const int within = warp * 16 + lane / 4 + 8 * i, row = block.row + within;
  if (i >= 2 || p.lse == nullptr || row < 0 || row >= p.seqlen_q) return;
  const float sum = i ? l[1] : l[0], m = i ? state.m[1] : state.m[0];
  p.lse[block.lse + within * p.lse_stride_row] = sum == 0.f ? -INFINITY : m * p.softmax_scale + __logf(sum);
}

}  // namespace fa3
