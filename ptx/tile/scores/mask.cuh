// Masks, applied only to blocks that not all rows see as a whole (visible.h).
#pragma once
#include "../schedule.cuh"

namespace fa3 {

// Does block j need a mask for the 64 rows from `row` on?
FA3_DEVICE bool needs_mask(const Visible& seen, int j, int row) {
  const Keys keys = seen.all(row, row + 63);
  return (j + 1) * Bc > keys.end || (seen.bounded_left && j * Bc < keys.begin);
}

// The K/V blocks that these 64 rows need no mask for: those from `end` on reach beyond a bound on the right, those
// before `begin` beyond one on the left.
FA3_DEVICE Blocks plain_blocks(const Visible& seen, int row) {
  const Keys keys = seen.all(row, row + 63);
  return {(keys.begin + Bc - 1) / Bc, keys.end / Bc};
}

// The same for rows whose bits may not depend on other rows of their warp: none, so that all blocks go the way on which
// m is a row's maximum so far (softmax_online). On the other one the warp decides for all its rows when m is raised.
FA3_DEVICE Blocks plain_blocks(const ForwardParams&, const Visible& seen, int row) { return plain_blocks(seen, row); }
FA3_DEVICE Blocks plain_blocks(const PlannedForwardParams& p, const Visible& seen, int row) {
  if (p.invariant) return {no_bound, 0};
  return plain_blocks(seen, row);
}

// S = -inf where a row does not see the key. S: of block j; only its groups of 16 keys [first_group, end_group) are
// looked at. warp_row: the first of the warp's 16 rows.
FA3_DEVICE void mask(float (&S)[Bc / 2], const Visible& seen, int j, int warp_row, int first_group = 0,
                     int end_group = Bc / 16) {
  const int lane = threadIdx.x % 32;
  const int key = j * Bc + 2 * (lane & 3);  // of S[0]
  const Keys keys[2] = {seen.of(warp_row + lane / 4), seen.of(warp_row + lane / 4 + 8)};  // of the lane's two rows
#pragma unroll
  for (int g = 0; g < Bc / 16; g++)
    if (g >= first_group && g < end_group)
#pragma unroll
      for (int i = 8 * g; i < 8 * g + 8; i++) {
        const int column = (i >> 2) * 8 + (i & 1);  // of S[i], from S[0] on
        const Keys& row_keys = keys[i >> 1 & 1];
        if (column >= row_keys.end - key || (seen.bounded_left && column < row_keys.begin - key)) S[i] = -INFINITY;
      }
}

// The same for a block on the causal diagonal, only in the groups that some of the 16 rows see and others do not.
// Returns the number of groups, from the first on, that any row sees, but 1 at least.
FA3_DEVICE int mask_diagonal(float (&S)[Bc / 2], const Visible& seen, int j, int warp_row) {
  // How many of the block's keys all rows see, and how many any.
  const int all = seen.of(warp_row).end - j * Bc, any = seen.of(warp_row + 15).end - j * Bc;
  // Shuffled, so that the branches are uniform.
  const int first_group = __shfl_sync(0xffffffffu, all >> 4, 0);
  const int end_group = __shfl_sync(0xffffffffu, min(max(any + 15 >> 4, 1), Bc / 16), 0);
  mask(S, seen, j, warp_row, first_group, end_group);
  return end_group;
}

}  // namespace fa3
