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

// S[row][column] = -inf where the key does not exist or lies beyond the diagonal, in the groups of 16 keys from `begin` on and
// before `end`. warp_row: first of the warp's 16 rows.
FA3_DEVICE void mask(float (&S)[Bc / 2], const ForwardParams& p, int j, int warp_row, int begin = 0, int end = Bc / 16) {
  const int lane = threadIdx.x % 32;
  const int column = j * Bc + 2 * (lane & 3);  // of S[0]
  int visible[2] = {p.seqlen_k - column, p.seqlen_k - column};
  if constexpr (causal) {
    const int diagonal = warp_row + lane / 4 + p.causal_offset + 1 - column;
    visible[0] = min(visible[0], diagonal);
    visible[1] = min(visible[1], diagonal + 8);
  }
#pragma unroll
  for (int g = 0; g < Bc / 16; g++)
    if (g >= begin && g < end)
#pragma unroll
      for (int i = 8 * g; i < 8 * g + 8; i++)
        if ((i >> 2) * 8 + (i & 1) >= visible[i >> 1 & 1]) S[i] = -INFINITY;
}

// The same without the groups that all 16 rows see and those that none of them sees; returns where the latter begin, 1 at
// least.
FA3_DEVICE int mask_diagonal(float (&S)[Bc / 2], const ForwardParams& p, int j, int warp_row) {
  const int first_sees = min(p.seqlen_k, warp_row + p.causal_offset + 1) - j * Bc;  // keys of the block
  const int last_sees = min(p.seqlen_k, warp_row + p.causal_offset + 16) - j * Bc;
  // Shuffled, so that the branches are uniform.
  const int begin = __shfl_sync(0xffffffffu, first_sees >> 4, 0);
  const int end = __shfl_sync(0xffffffffu, min(max(last_sees + 15 >> 4, 1), Bc / 16), 0);
  mask(S, p, j, warp_row, begin, end);
  return end;
}

}  // namespace fa3
