// Trait::shares_keys: two consumer warpgroups have the same 64 rows and take turns at their K/V blocks (EverySecondUse
// in walk.cuh), each with an O, m and l of its own. One alone, which waits for its products and exponentials one after
// the other, is slower than memory.
#pragma once
#include "../row_sums.cuh"
#include "packed.cuh"

namespace fa3 {

// The end of a piece: the second warpgroup hands its sums over in shared memory, and the first adds them to its own.
class SharedKeys {
 public:
  FA3_DEVICE SharedKeys(Smem& smem, int warpgroup) : smem_(smem), warpgroup_(warpgroup) {}

  // O, m and l of both warpgroups, in the first one's registers. Returns whether this is the first. l: row sums, of the
  // whole quad; fit: what makes O fit them, which it then does.
  FA3_DEVICE bool put_together(float (&O)[o_columns / 2], RowState& state, float (&l)[2], float (&fit)[2],
                               const Params& p, const RowBlock& block, int warp) {
    fit_rows(O, fit);
    Handed& handed = smem_.handed[0];
    const int thread = threadIdx.x % 128;
    // Is any row of the warp a row of the problem?
    const bool exists = place_of(p, block, block.row + 16 * warp).query < visible(p, block).seqlen_q;
    if (warpgroup_ == 1) {
      if (has_handed_) ptx::bar_sync(taken, 256);
      if (exists) {
#pragma unroll
        for (int k = 0; k < o_columns / 8; k++)
          handed.o[k][thread] = make_float4(O[4 * k], O[4 * k + 1], O[4 * k + 2], O[4 * k + 3]);
        handed.state[thread] = make_float4(state.m[0], state.m[1], l[0], l[1]);
      }
      ptx::bar_arrive(complete, 256);
      has_handed_ = true;
      return false;
    }
    ptx::bar_sync(complete, 256);
    if (exists) {
      const float4 other = handed.state[thread];
      const float other_m[2] = {other.x, other.y}, other_l[2] = {other.z, other.w};
      float own_weight[2], other_weight[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float m = fmaxf(state.m[i], other_m[i]);
        own_weight[i] = part_weight(state.m[i], m);
        other_weight[i] = part_weight(other_m[i], m);
        l[i] = add_in_any_order(own_weight[i] * l[i], other_weight[i], other_l[i]);
        state.m[i] = m;
      }
      scale_rows(O, own_weight);
#pragma unroll
      for (int k = 0; k < o_columns / 8; k++) add_four<add_in_any_order>(O, k, other_weight, handed.o[k][thread]);
    }
    ptx::bar_arrive(taken, 256);
    return true;
  }

  // After the last piece.
  FA3_DEVICE void close() const {
    if (has_handed_) ptx::bar_sync(taken, 256);
  }

 private:
  // Named barriers: of what is handed over. Rows of the table that take turns at tensor cores have other uses for them.
  static constexpr int complete = barrier_turn, taken = barrier_turn + 1;

  Smem& smem_;
  int warpgroup_;
  bool has_handed_ = false;
};

}  // namespace fa3
