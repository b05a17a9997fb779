// From a score, S = q k, to its P: the one place that scales.
#pragma once
#include "../smem.cuh"

namespace fa3 {

// c = softmax_scale * log2(e), where there are scales times those of Q and K: P = exp2(S c - m), where the reference m
// is in these units, too.
//
// With KvScales::blocks V's scale v differs from block to block. It goes into P, which is then v exp2(S c - m): so
// log2(v) is added to the scores. The row sums must not have it, so what P adds to them is divided by v.
struct Score {
  float c;
  // With KvScales::blocks:
  float c_of_piece;  // c without the scale of K
  float v_log2 = 0.f, v_inverse = 1.f;

  FA3_DEVICE explicit Score(const Params& p) : c(p.softmax_scale_log2) {}
  // With scales, each piece has its own c, unless they are in S (score_transform.cuh),
  FA3_DEVICE void receive(const RowBlock& block) {
    if constexpr (config.has_scales() && !transforms_scores) c = c_of_piece = block.c;
  }
  // and where Q has been multiplied by something, its inverse;
  FA3_DEVICE void receive_factor(float inverse) { c *= inverse; }
  // or each block of keys: that whose K is in the stage, if there is one.
  FA3_DEVICE void receive(const Smem& smem, uint32_t stage, bool exists) {
    if constexpr (config.block_scales()) {
      const BlockScales scales = exists ? smem.block_scales[stage] : BlockScales{1.f, 1.f};
      c = c_of_piece * scales.k;
      v_log2 = __log2f(scales.v);
      v_inverse = ptx::rcp_approx_ftz(scales.v);
    }
  }

  // The m of a row whose largest score this is.
  FA3_DEVICE float reference(float score) const {
    if constexpr (config.block_scales()) return fmaf(score, c, v_log2 - p_log2);
    return is_8bit ? fmaf(score, c, -p_log2) : score * c;
  }
  // What exponential() takes for m.
  FA3_DEVICE float subtrahend(float m) const { return config.block_scales() ? m - v_log2 : m; }
  FA3_DEVICE float exponential(float score, float subtrahend) const {
    return ptx::ex2_approx_ftz(fmaf(score, c, -subtrahend));
  }
  // What a sum of P adds to the row sum, and the other way round.
  FA3_DEVICE float unscaled(float sum) const { return config.block_scales() ? sum * v_inverse : sum; }
  FA3_DEVICE float scaled(float row_sum) const {
    return config.block_scales() ? __fdividef(row_sum, v_inverse) : row_sum;
  }
  // Changes nothing, but all that uses c from now on waits for `earlier`, an exponential: max(c, -exp2(...)) is c,
  // which ptxas cannot know.
  FA3_DEVICE void wait_for(float earlier) { c = fmaxf(c, -earlier); }
};

}  // namespace fa3
