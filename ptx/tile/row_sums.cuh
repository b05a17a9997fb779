// m, l and O of a row (softmax.cuh): how those of several parts of the keys are added up, and what becomes of the sums
// of all keys. All kernels that write O and LSE ask here.
#pragma once
#include "../isa/math.cuh"

namespace fa3 {

struct FinishedRow {
  float lse;     // the logarithm of the sum of exponentials
  float weight;  // what O is multiplied by
};

// Of a row without keys; its O is 0.
inline constexpr float lse_without_keys = -INFINITY;

// m: in units of exp2.
FA3_DEVICE FinishedRow finish_row(float m, float l) {
  constexpr float ln_2 = 0.6931471805599453f;
  return {l == 0.f ? lse_without_keys : m * ln_2 + __logf(l), ptx::rcp_approx_ftz(l == 0.f ? 1.f : l)};
}
// m: in units of exp; -inf without keys.
FA3_DEVICE FinishedRow finish_natural_row(float m, float l) {
  return {m + __logf(l), ptx::rcp_approx_ftz(l == 0.f ? 1.f : l)};
}

}  // namespace fa3
