// Online softmax on the accumulator layout of wgmma: a thread holds two rows of S, row i in registers 4 g + 2 i + c,
// and the four lanes of a quad share them.
#pragma once
#include "../../params/v_tile.h"
#include "../smem.cuh"
#include "score.cuh"

namespace fa3 {

// State of a thread's two rows.
struct RowState {
  float m[2];  // what the row's exponentials are relative to: P = exp2(S c - m) (score.cuh)
  float l[2];  // this thread's share of the row sum; the quad's shares are added once, at the end
};

// Stands for a maximum of -inf: far below any score, but finite, so that S - m is -inf and never NaN in a row without
// keys.
inline constexpr float lowest_m = -1e30f;

// A row that has seen nothing: m = -inf, l = 0.
FA3_DEVICE RowState nothing_seen() { return {{lowest_m, lowest_m}, {0.f, 0.f}}; }

FA3_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
FA3_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Some functions below take a number of groups of 16 keys, and leave out those behind: the warp's rows see nothing of
// them (Trait::skip_masked).
inline constexpr int all_groups = Bc / 16;

// rowmax(S)
FA3_DEVICE void row_max(const float (&S)[Bc / 2], float (&max)[2], int groups = all_groups) {
  float t[4] = {S[0], S[1], S[2], S[3]};  // two chains a row
#pragma unroll
  for (int g = 0; g < all_groups; g++)
    if (g < groups)
#pragma unroll
      for (int i = g == 0 ? 4 : 8 * g; i < 8 * g + 8; i++) t[i & 3] = fmaxf(t[i & 3], S[i]);
  max[0] = quad_max(fmaxf(t[0], t[1]));
  max[1] = quad_max(fmaxf(t[2], t[3]));
}

// P = exp2(S c - m) in place of S, sum = this thread's share of the row sums. One chain of additions a row: the
// exponentials come no faster, and ptxas begins with the first of them after 6 multiplications rather than 10 or 17, as
// with more chains (1% at d 64). It then puts all other multiplications among the first five exponentials, at full
// rate; that delays the other warpgroups' WGMMAs and MUFUs, so with Trait::spread half of them wait for the first
// exponential. More such waits, or other places for them, gain less.
FA3_DEVICE void exponentiate(float (&S)[Bc / 2], const float (&m)[2], float (&sum)[2], Score score,
                             int groups = all_groups) {
  const float subtrahend[2] = {score.subtrahend(m[0]), score.subtrahend(m[1])};
#pragma unroll
  for (int g = 0; g < all_groups; g++) {
    if (g < groups) {
      if constexpr (has(Trait::spread))
        if (g == all_groups / 2) score.wait_for(S[0]);
#pragma unroll
      for (int i = 8 * g; i < 8 * g + 8; i++) {
        S[i] = score.exponential(S[i], subtrahend[i >> 1 & 1]);
        float& row_sum = sum[i >> 1 & 1];
        row_sum = i < 4 && i % 2 == 0 ? S[i] : row_sum + S[i];
      }
    } else {
#pragma unroll
      for (int i = 8 * g; i < 8 * g + 8; i++)
        S[i] = ptx::mov_f32(0.f);  // plain zeros are set before the branch, in other registers
    }
  }
}

// A row's first block: m is its maximum.
FA3_DEVICE void softmax_first(float (&S)[Bc / 2], RowState& state, Score score, int groups = all_groups) {
  float max[2];
  row_max(S, max, groups);
  state.m[0] = fmaxf(score.reference(max[0]), lowest_m);
  state.m[1] = fmaxf(score.reference(max[1]), lowest_m);
  exponentiate(S, state.m, state.l, score, groups);
  state.l[0] = score.unscaled(state.l[0]);
  state.l[1] = score.unscaled(state.l[1]);
}

// Any block: m is the maximum of all blocks so far. O is to be multiplied by alpha.
FA3_DEVICE void softmax_online(float (&S)[Bc / 2], RowState& state, float (&alpha)[2], Score score) {
  float max[2], sum[2];
  row_max(S, max);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float m = fmaxf(state.m[i], score.reference(max[i]));
    alpha[i] = ptx::ex2_approx_ftz(state.m[i] - m);
    state.m[i] = m;
  }
  exponentiate(S, state.m, sum, score);
#pragma unroll
  for (int i = 0; i < 2; i++) state.l[i] = state.l[i] * alpha[i] + score.unscaled(sum[i]);
}

// ptxas moves the wait for a WGMMA group up to the top of its basic block, above the exponentials that are meant to run
// under that group. A branch ends the block, and the wait stays behind it: this one is never taken, as l is a sum of
// exponentials. Rows without Trait::hold_exps show what ptxas makes of the paper's text.
FA3_DEVICE void end_basic_block(const RowState& state) {
  if constexpr (has(Trait::hold_exps))
    if (state.l[0] < 0.f) __nanosleep(1);
}

// P = S in the elements' type, in the register layout of wgmma's A operand.
//
// In 16 bits that is the accumulator layout of S, packed in pairs. In 8 bits it differs (the paper's Figures 3 and 4):
// of each 16 columns, a lane of quad position q has 2 q + e and 8 + 2 q + e of S (e 0 or 1), but 4 q .. 4 q + 3 of A.
// Instead of moving numbers between lanes, the columns get new places: column 8 b + 2 q + e of S becomes column
// 4 q + 2 b + e of A, and V's rows stand in that order, too (V as tiles, v_tile.h).
static_assert([] {
  for (int q = 0; q < 4; q++)
    for (int byte = 0; byte < 4; byte++)
      if (v_tile_key(4 * q + byte) != 8 * (byte / 2) + 2 * q + byte % 2) return false;
  return true;
}());
FA3_DEVICE void convert(const float (&S)[Bc / 2], uint32_t (&P)[p_registers]) {
  if constexpr (is_8bit) {
#pragma unroll
    for (int g = 0; g < Bc / 16; g++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float* s = &S[8 * g + 2 * i];
        P[2 * g + i] = pack_e4m3(s[0], s[1], s[4], s[5]);
      }
  } else {
#pragma unroll
    for (int i = 0; i < p_registers; i++) P[i] = pack(S[2 * i], S[2 * i + 1], multiplies_bf16);
  }
}

FA3_DEVICE void clear(float (&O)[o_columns / 2]) {
#pragma unroll
  for (int i = 0; i < o_columns / 2; i++) O[i] = 0.f;
}

// Any accumulators, each row multiplied by its alpha.
template <int n>
FA3_DEVICE void scale_rows(float (&accumulators)[n], const float (&alpha)[2]) {
#pragma unroll
  for (int i = 0; i < n; i++) accumulators[i] *= alpha[i >> 1 & 1];
}
// O of a part, before it is added to others.
FA3_DEVICE void fit_rows(float (&O)[o_columns / 2], float (&fit)[2]) {
  scale_rows(O, fit);
  fit[0] = fit[1] = 1.f;
}

}  // namespace fa3
