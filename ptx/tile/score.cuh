// From a score, S = q k, to its P: the one place that scales.
#pragma once
#include "../isa/math.cuh"
#include "config.cuh"

namespace fa3 {

// c = softmax_scale * log2(e): P = exp2(S c - m), where the reference m is in these units, too.
struct Score {
  float c;

  FA3_DEVICE explicit Score(const Params& p) : c(p.softmax_scale_log2) {}

  // The m of a row whose largest score this is.
  FA3_DEVICE float reference(float score) const { return score * c; }
  FA3_DEVICE float exponential(float score, float m) const { return ptx::ex2_approx_ftz(fmaf(score, c, -m)); }
  // Changes nothing, but all that uses c from now on waits for `earlier`, an exponential: max(c, -exp2(...)) is c,
  // which ptxas cannot know.
  FA3_DEVICE void wait_for(float earlier) { c = fmaxf(c, -earlier); }
};

}  // namespace fa3
