// Trait::shares_keys: two consumer warpgroups have the same 64 rows and take turns at their K/V blocks, each with an O,
// m and l of its own. At the end of a piece the second one hands these over in shared memory, and the first adds them
// to its own and stores the whole. One warpgroup alone, which waits for its products and exponentials one after the
// other, is slower than memory.
//
// The turns go on from piece to piece: a warpgroup computes with the K of each second use of the K/V ring, and with the
// V in the uses between, where that K's block has its V (ring.cuh). So each of them releases every use just once.
#pragma once
#include "packed.cuh"

namespace fa3 {

class SharedKeys {
 public:
  FA3_DEVICE SharedKeys(Smem& smem, int warpgroup) : smem_(smem), warpgroup_(warpgroup) {}

  // Makes, of the numbers of a piece's blocks that its rows see and do not see, the number of blocks that this
  // warpgroup computes, and how many uses come before the first of these. Not a number of blocks: end_of_work.
  FA3_DEVICE void receive(int& blocks, int& skipped) {
    first_ += blocks_;
    blocks_ = blocks + skipped;
    skipped = (first_ ^ warpgroup_) & 1;
    if (blocks != RowBlock::end_of_work) blocks = (blocks_ - skipped + 1) / 2;
  }
  // Uses of the K/V ring that hold the piece's first K and its last.
  FA3_DEVICE uint32_t first() const { return first_; }
  FA3_DEVICE uint32_t last() const { return first_ + blocks_ - 1; }

  // O, m and l of both warpgroups, in the first one's registers. Returns whether this is the first. l: row sums, of the
  // whole quad.
  FA3_DEVICE bool put_together(float (&O)[dv / 2], RowState& state, float (&l)[2], const Params& p,
                               const RowBlock& block, int warp) {
    Handed& handed = smem_.handed[0];
    const int thread = threadIdx.x % 128;
    const bool exists = place_of(p, block, block.row + 16 * warp).query < visible(p, block).seqlen_q;  // any row of the warp
    if (warpgroup_ == 1) {
      if (has_handed_) ptx::bar_sync(taken, 256);
      if (exists) {
#pragma unroll
        for (int k = 0; k < dv / 8; k++)
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
        own_weight[i] = ptx::ex2_approx_ftz(state.m[i] - m);
        other_weight[i] = ptx::ex2_approx_ftz(other_m[i] - m);
        l[i] = sum(l[i], own_weight[i], other_l[i], other_weight[i]);
        state.m[i] = m;
      }
#pragma unroll
      for (int k = 0; k < dv / 8; k++) {
        const float4 o = handed.o[k][thread];
        O[4 * k] = sum(O[4 * k], own_weight[0], o.x, other_weight[0]);
        O[4 * k + 1] = sum(O[4 * k + 1], own_weight[0], o.y, other_weight[0]);
        O[4 * k + 2] = sum(O[4 * k + 2], own_weight[1], o.z, other_weight[1]);
        O[4 * k + 3] = sum(O[4 * k + 3], own_weight[1], o.w, other_weight[1]);
      }
    }
    ptx::bar_arrive(taken, 256);
    return true;
  }

  // After the last piece.
  FA3_DEVICE void close() const {
    if (has_handed_) ptx::bar_sync(taken, 256);
  }

 private:
  // Both products rounded, so that it is the same sum whichever of the two warpgroups has had which blocks.
  FA3_DEVICE static float sum(float a, float weight_a, float b, float weight_b) {
    return __fadd_rn(__fmul_rn(a, weight_a), __fmul_rn(b, weight_b));
  }

  // Named barriers: of what is handed over. Rows of the table that take turns at tensor cores have other uses for them.
  static constexpr int complete = barrier_turn, taken = barrier_turn + 1;

  Smem& smem_;
  int warpgroup_;
  uint32_t first_ = 0;
  int blocks_ = 0;  // of the piece
  bool has_handed_ = false;
};

}  // namespace fa3
