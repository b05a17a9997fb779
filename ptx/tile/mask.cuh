// Masks, applied only to the blocks that a boundary of what rows see crosses (visible.h).
#pragma once
#include "schedule.cuh"

namespace fa3 {

// Does block j need a mask for the 64 rows from `row` on?
FA3_DEVICE bool needs_mask(const Params& p, int j, int row) {
  const Visible rows = visible(p);
  const Keys keys = rows.all(row, row + 63);
  return (j + 1) * Bc > keys.end || (rows.bounded_left && j * Bc < keys.begin);
}

// Blocks before the first one that does.
FA3_DEVICE int plain_blocks(const Params& p, int row) { return visible(p).all(row, row + 63).end / Bc; }

// S[row][column] = -inf where the row does not see the key, in the groups of 16 keys from `begin` on and before `end`. warp_row:
// first of the warp's 16 rows.
FA3_DEVICE void mask(float (&S)[Bc / 2], const Params& p, int j, int warp_row, int begin = 0, int end = Bc / 16) {
  const int lane = threadIdx.x % 32;
  const int column = j * Bc + 2 * (lane & 3);  // of S[0]
  const Visible rows = visible(p);
  const Keys seen[2] = {rows.of(warp_row + lane / 4), rows.of(warp_row + lane / 4 + 8)};
#pragma unroll
  for (int g = 0; g < Bc / 16; g++)
    if (g >= begin && g < end)
#pragma unroll
      for (int i = 8 * g; i < 8 * g + 8; i++) {
        const int at = (i >> 2) * 8 + (i & 1);
        const Keys& keys = seen[i >> 1 & 1];
        if (at >= keys.end - column || (rows.bounded_left && at < keys.begin - column)) S[i] = -INFINITY;
      }
}

// The same without the groups that all 16 rows see and those that none of them sees; returns where the latter begin, 1 at
// least.
FA3_DEVICE int mask_diagonal(float (&S)[Bc / 2], const Params& p, int j, int warp_row) {
  const int all = visible(p).of(warp_row).end - j * Bc, any = visible(p).of(warp_row + 15).end - j * Bc;  // keys of the block
  // Shuffled, so that the branches are uniform.
  const int begin = __shfl_sync(0xffffffffu, all >> 4, 0);
  const int end = __shfl_sync(0xffffffffu, min(max(any + 15 >> 4, 1), Bc / 16), 0);
  mask(S, p, j, warp_row, begin, end);
  return end;
}

}  // namespace fa3
