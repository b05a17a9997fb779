// Masks, applied only to the blocks that a boundary crosses: the end of the keys and the causal diagonal.
#pragma once
#include "schedule.cuh"

namespace fa3 {

// Does block j need a mask for the 64 rows from `row` on?
FA3_DEVICE bool crosses_boundary(const ForwardParams& p, int j, int row) {
  const int end = (j + 1) * Bc;
  return end > p.seqlen_k || (causal && end > row + p.causal_offset + 1);
}

// Blocks before the first one that does.
FA3_DEVICE int plain_blocks(const ForwardParams& p, int row) {
  int keys = p.seqlen_k;
  if constexpr (causal) keys = min(keys, row + p.causal_offset + 1);
  return keys / Bc;
}

// S[row][column] = -inf where the key does not exist or lies beyond the diagonal. warp_row: first of the warp's 16 rows.
FA3_DEVICE void mask(float (&S)[Bc / 2], const ForwardParams& p, int j, int warp_row) {
  const int lane = threadIdx.x % 32;
  const int column = j * Bc + 2 * (lane & 3);  // of S[0]
  int visible[2] = {p.seqlen_k - column, p.seqlen_k - column};
  if constexpr (causal) {
    const int diagonal = warp_row + lane / 4 + p.causal_offset + 1 - column;
    visible[0] = min(visible[0], diagonal);
    visible[1] = min(visible[1], diagonal + 8);
  }
#pragma unroll
  for (int i = 0; i < Bc / 2; i++)
    if (8 * (i >> 2) + (i & 1) >= visible[i >> 1 & 1]) S[i] = -INFINITY;
}

}  // namespace fa3
