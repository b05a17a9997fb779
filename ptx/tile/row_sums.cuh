// m, l and O of a row (softmax.cuh): how those of several parts of the keys are added up, and what becomes of the sums
// of all keys. All kernels that write O and LSE ask here.
#pragma once
#include "../isa/math.cuh"

namespace fa3 {

// What a part's l and O are multiplied by where parts are added up; largest: m of all of them.
FA3_DEVICE float part_weight(float m, float largest) { return ptx::ex2_approx_ftz(m - largest); }
// The same where m is an LSE, in units of exp. If the largest is -inf, so is each, and this is 0.
FA3_DEVICE float natural_part_weight(float lse, float largest) {
  return ptx::ex2_approx_ftz((lse - (largest == -INFINITY ? 0.f : largest)) * 1.4426950408889634f);
}

// sum + weight * x. Parts are added in the order of the keys, whoever does it, so that the bits are always the same.
FA3_DEVICE float add_in_order(float sum, float weight, float x) { return fmaf(weight, x, sum); }
// Or, if there are two, either one to the other, where `sum` is a product, too. The bits are the same, because both
// products are rounded before they are added.
FA3_DEVICE float add_in_any_order(float sum, float weight, float x) { return __fadd_rn(sum, __fmul_rn(weight, x)); }

// That for accumulators 4 i .. 4 i + 3 of O, two of each of a thread's two rows.
template <float (*add)(float, float, float), int n>
FA3_DEVICE void add_four(float (&O)[n], int i, const float (&weight)[2], const float4& o) {
  O[4 * i] = add(O[4 * i], weight[0], o.x);
  O[4 * i + 1] = add(O[4 * i + 1], weight[0], o.y);
  O[4 * i + 2] = add(O[4 * i + 2], weight[1], o.z);
  O[4 * i + 3] = add(O[4 * i + 3], weight[1], o.w);
}

struct FinishedRow {
  float lse;     // the logarithm of the sum of exponentials
  float weight;  // what O is multiplied by
};

// Of a row without keys, and without a sink; its O is 0.
inline constexpr float lse_without_keys = -INFINITY;

// m: in units of exp2.
FA3_DEVICE FinishedRow finish_row(float m, float l) {
  constexpr float ln_2 = 0.6931471805599453f;
  return {l == 0.f ? lse_without_keys : m * ln_2 + __logf(l), ptx::rcp_approx_ftz(l == 0.f ? 1.f : l)};
}
// The same with a sink, in units of exp: exp(sink) is one more addend of the sum of exponentials, one without a value.
// If it is -inf, there is none, and the bits are the same as above.
FA3_DEVICE FinishedRow finish_row(float m, float l, float sink) {
  constexpr float log2_e = 1.4426950408889634f;
  const float sink_m = sink * log2_e, largest = fmaxf(m, sink_m), weight = part_weight(m, largest);
  const FinishedRow row = finish_row(largest, add_in_order(part_weight(sink_m, largest), weight, l));
  return {l == 0.f ? sink : row.lse, weight * row.weight};
}
// m: in units of exp; -inf without keys.
FA3_DEVICE FinishedRow finish_natural_row(float m, float l) {
  return {m + __logf(l), ptx::rcp_approx_ftz(l == 0.f ? 1.f : l)};
}

}  // namespace fa3
