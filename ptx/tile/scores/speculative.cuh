// Softmax without maxima. m is a reference, not necessarily the row maximum: any m gives the same O and LSE as long as
// P = exp2(S c - m) neither overflows nor vanishes, because P, l and O all use the same one. The main loop uses that to
// do without maxima: it computes P against the old m, and the row sums, needed anyway, tell afterwards whether that was
// sound, since a sum of positive numbers bounds the largest. That saves a third of the instructions, and the branch
// behind the exponentials keeps ptxas from moving the wait for PV above them.
//
// "Sound" is stricter than safe from overflow: P is rounded to 16 bits, l is not. Where one key dominates a row, O
// would be off by the rounding of its P, unless that is 1, which rounds exactly. So the branch is taken as soon as a
// lane's sum exceeds twice what the whole row had when its bound was set. There m stays, as long as P is far from
// overflow, and the rounding of each lane's largest P is remembered instead (excess.cuh): at the end O is multiplied by
// what it has made of the row's sum. So rows of large scores, whose maxima rise again and again, cost little more than
// others. Where P may overflow, m moves up by multiplication of P, l and O. If they are beyond even that (very rare), S
// is computed again from Q and K, still in shared memory, and the block takes the ordinary online path.
//
// In the block at a bound on the right, or of the last few keys, a row may see too few keys for a bound to mean
// anything. So there it is set one block later, which goes through the branch.
//
// P in 8 bits is so coarse that a row's P should be exact wherever one dominates: there m moves up at once, and the
// bound is what the whole row had, not twice that. Until a bound is set m moves up to any P that weighs more than all
// the rest of its row (`peaked`).
#pragma once
#include "excess.cuh"
#include "score_transform.cuh"
#include "softmax.cuh"

namespace fa3 {

// For each of a thread's two rows: a branch is taken if its share of a block's row sum exceeds this. 0: not set yet.
struct Bound {
  float sum[2];
};
inline constexpr float bound_factor = is_8bit ? 1.f : 2.f;

FA3_DEVICE void set_bound(Bound& bound, const RowState& state, Score score) {
#pragma unroll
  for (int i = 0; i < 2; i++) bound.sum[i] = fminf(bound_factor * score.scaled(quad_sum(state.l[i])), p_limit);
}
// May the bound be set one block later?
inline constexpr bool sets_bound_late = bounded_right || !is_8bit;

// After a piece's first block, which begins so many keys before the end of all. A quarter of a block is enough: the
// next one's sums, a quarter of a row each, are then rarely twice as large.
FA3_DEVICE void first_bound(Bound& bound, const RowState& state, Score score, int keys) {
  if (sets_bound_late && (bounded_right || keys < Bc / 4)) bound.sum[0] = bound.sum[1] = 0.f;
  else set_bound(bound, state, score);
}

// Does one of this thread's P weigh more than all the rest that its row has seen so far? sum: this thread's, of P.
FA3_DEVICE bool peaked(const float (&P)[Bc / 2], const RowState& state, const float (&sum)[2], Score score) {
  int max[2] = {0, 0};  // bits of numbers that are not negative, which are ordered as integers are
#pragma unroll
  for (int i = 0; i < Bc / 2; i += 4) {
    max[0] = __vimax3_s32(max[0], __float_as_int(P[i]), __float_as_int(P[i + 1]));
    max[1] = __vimax3_s32(max[1], __float_as_int(P[i + 2]), __float_as_int(P[i + 3]));
  }
  const float row_sum[2] = {quad_sum(score.scaled(state.l[0]) + sum[0]), quad_sum(score.scaled(state.l[1]) + sum[1])};
  return (2.f * __int_as_float(max[0]) > row_sum[0]) | (2.f * __int_as_float(max[1]) > row_sum[1]);
}

// S = Q K^T for the warp's 16 rows, with mma.sync: the accumulator layout is the same as wgmma's.
FA3_DEVICE void recompute_scores(float (&S)[Bc / 2], const Element* q, const Element* k, int warp) {
  using namespace ptx;
  const int lane = threadIdx.x % 32;
  // Where ldmatrix.x4 reads: 16 query rows at k 0-7 (lanes 0-15) and 8-15; 8 keys at k 0-7 and 8-15, and the next 8
  // keys. The swizzle is an xor, so step k of a slab is 32 k away by xor, too.
  const uint32_t a_address =
      shared_address(q) + (warp * 16 + lane % 16) * slab_row_bytes + ((lane / 16 ^ swizzled(lane)) << 4);
  const uint32_t b_address = shared_address(k) + (lane % 8 + lane / 16 * 8) * slab_row_bytes +
                             ((lane / 8 % 2 ^ swizzled(lane)) << 4);
#pragma unroll
  for (int i = 0; i < Bc / 2; i++)
    S[i] = planned && is_8bit ? ptx::mov_f32(0.f) : 0.f;  // plain zeros are set before the branch
#pragma unroll 1
  for (int slab = 0; slab < q_slabs; slab++)
#pragma unroll 1  // downwards, for want of registers
    for (int within = slab_row_bytes - 32; within >= 0; within -= 32) {
      uint32_t a[4];
      ldmatrix_x4(a, (a_address ^ within) + slab * 64 * slab_row_bytes);
#pragma unroll
      for (int g = 0; g < Bc / 8; g += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, (b_address ^ within) + (slab * Bc + g * 8) * slab_row_bytes);
#pragma unroll
        for (int h = 0; h < 2; h++) mma(&S[4 * (g + h)], a, b[2 * h], b[2 * h + 1]);
      }
    }
}

// In 16 bits P may be multiplied if no sum is larger: far from where the factor, by which all before is multiplied,
// would be below all normal numbers, and so 0.
inline constexpr float most_lowered = 0x1p96f;

// S, which P has replaced, is not needed to move m: P, l and O are multiplied instead, by what makes the largest P of
// each row 2^p_log2. Returns false in 8 bits if that cannot be, because P or its sums have overflowed.
FA3_DEVICE bool lower(float (&P)[Bc / 2], RowState& state, const float (&sum)[2], float (&alpha)[2], Score score) {
  if (is_8bit && __any_sync(0xffffffffu, fmaxf(sum[0], sum[1]) == INFINITY)) return false;
  float max[2];
  row_max(P, max);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float moved = fmaxf(__log2f(max[i]) - p_log2, 0.f);
    alpha[i] = ptx::ex2_approx_ftz(-moved);
    state.m[i] += moved;
    state.l[i] = state.l[i] * alpha[i] + score.unscaled(sum[i] * alpha[i]);
  }
  scale_rows(P, alpha);
  return true;
}

// Any block but the first, without a mask: against the old m if the sums allow it, which is nearly always.
// Returns whether O is to be multiplied by alpha, the same in all lanes of the warp. K is read until this returns.
// transform_scores: what has been done to S, or with caps_late is to be done, and is done to recomputed scores.
template <class TransformScores>
FA3_DEVICE bool softmax_speculative(float (&S)[Bc / 2], RowState& state, Bound& bound, Excess& excess,
                                    float (&alpha)[2], Score score, const Element* q, const Element* k, int warp,
                                    ScoreTransform& transform, TransformScores transform_scores) {
  float sum[2];
  if constexpr (caps_late) transform.exponentiate(S, state.m, sum, score);
  else exponentiate(S, state.m, sum, score);
  if (__any_sync(0xffffffffu, (sum[0] > bound.sum[0]) | (sum[1] > bound.sum[1]))) {
    bool moves, lowers = true;
    if constexpr (is_8bit) {
      const bool set = !sets_bound_late || __any_sync(0xffffffffu, fmaxf(bound.sum[0], bound.sum[1]) > 0.f);
      moves = set || __any_sync(0xffffffffu, (fmaxf(sum[0], sum[1]) > p_limit) | peaked(S, state, sum, score));
    } else {
      bool wrong = fmaxf(sum[0], sum[1]) > most_lowered;
      if constexpr (caps_late) wrong |= transform.exceed(state.m, sum);  // P may be of another score
      lowers = !__any_sync(0xffffffffu, wrong);
      moves = __any_sync(0xffffffffu, wrong | (fmaxf(sum[0], sum[1]) > p_limit));
      if (!moves) excess.add(S);
    }
    if (moves) {
      if (!lowers || !lower(S, state, sum, alpha, score)) {
        recompute_scores(S, q, k, warp);
        transform_scores(S);
        softmax_online(S, state, alpha, score);
      }
      excess.scale(alpha);
      set_bound(bound, state, score);
      if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
      return true;
    }
    state.l[0] += score.unscaled(sum[0]);
    state.l[1] += score.unscaled(sum[1]);
    set_bound(bound, state, score);
    if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
    return false;
  }
  state.l[0] += score.unscaled(sum[0]);
  state.l[1] += score.unscaled(sum[1]);
  return false;
}

}  // namespace fa3
