// Softcap of scores, S = q k, that a thread has: for the forward and the backward pass.
#pragma once
#include "../../isa/math.cuh"
#include "../../params/score_transforms.h"
#include "../shared.cuh"

namespace fa3 {

// c0 + c1 square + ...
template <int terms>
FA3_DEVICE float polynomial(const float (&c)[terms], float square) {
  float sum = c[terms - 1];
#pragma unroll
  for (int i = terms - 2; i >= 0; i--) sum = fmaf(sum, square, c[i]);
  return sum;
}
// cap tanh(S / cap) of small S, to some units in the last place, and of any, to that of cap.
FA3_DEVICE float small_capped(float score, const Softcap& by) {
  const float square = score * score;
  return fmaf(score, square * polynomial(by.wide, square), score);
}
FA3_DEVICE float large_capped(float score, const Softcap& by) {
  return fmaf(-2.f * by.cap, ptx::rcp_approx_ftz(1.f + ptx::ex2_approx_ftz(score * by.exponent)), by.cap);
}

// Of exp2(S exponent): beyond this 1 / (1 + exp2(S exponent)) is too small to count, and the product of four of these
// denominators is still a number.
inline constexpr float largest_exponent = 31.f;

// S becomes cap tanh(S / cap), each score for itself. NaN is no maximum.
template <int count>
FA3_DEVICE void cap_scores(float (&S)[count], const Softcap& by) {
  float largest[2] = {};
#pragma unroll
  for (int i = 0; i < count; i++) largest[i % 2] = fmaxf(largest[i % 2], fabsf(S[i]));
  if (__any_sync(0xffffffffu, fmaxf(largest[0], largest[1]) > by.limit)) {
#pragma unroll
    for (float& s : S) s = fabsf(s) > by.limit ? large_capped(s, by) : small_capped(s, by);
  } else {
#pragma unroll
    for (float& s : S) s = small_capped(s, by);
  }
}

}  // namespace fa3
