#include "rules/transforms.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "integers.h"

namespace fa3 {
namespace {

constexpr double log2_e = 1.4426950408889634;

float clamped(double x) { return static_cast<float>(std::clamp(x, -double{FLT_MAX}, double{FLT_MAX})); }

template <int terms>
double polynomial(const double (&c)[terms], double x) {
  double sum = 0;
  for (int i = terms - 1; i >= 0; --i) sum = (sum + c[i]) * x * x;
  return x + x * sum;
}

// From which sum of a row on, as a natural logarithm, do scores below -limit cap weigh so little that the polynomial
// will do for them, too? Up to there a key's weight is off by at most 1e-8 of its row's.
template <int terms>
double lowest_sum(const double (&c)[terms], double limit, double cap) {
  const double allowed = 1e-8;
  double off = std::exp(-cap * std::tanh(3.0));  // from 3 on at most
  for (double x = limit; x < 3; x += 1.0 / 64)
    off = std::max(off, std::fabs(std::exp(-cap * polynomial(c, x)) - std::exp(-cap * std::tanh(x))));
  return std::log(off / allowed);
}

// With tiny caps all scores are beyond them, and powers would be beyond all numbers: then no polynomial holds.
Softcap softcap_of(const PlannedShape& shape) {
  const double factor = shape.softmax_scale / shape.softcap;  // of S, in tanh
  const double scale_log2 = shape.softmax_scale * log2_e, cap_log2 = shape.softcap * log2_e;
  Softcap of{};
  of.cap = clamped(1 / factor), of.inverse_cap = clamped(factor), of.limit = -1;
  of.exponent = clamped(2 * log2_e * factor), of.cap_scaled = clamped(cap_log2);
  for (int i = 0; i < 2; ++i) of.highest[i] = -FLT_MAX, of.lowest[i] = FLT_MAX;
  if (factor > 1e4) return of;
  of.limit = clamped(wide_limit / factor);
  for (int i = 0; i < wide_terms; ++i) {
    const double power = std::pow(factor, 2 * i + 2);
    of.wide[i] = clamped(wide_tanh[i] * power), of.wide_scaled[i] = clamped(wide_tanh[i] * power * scale_log2);
    if (i < narrow_terms) of.narrow_scaled[i] = clamped(narrow_tanh[i] * power * scale_log2);
  }
  of.highest[0] = clamped(cap_log2 * polynomial(narrow_tanh, narrow_limit));
  of.highest[1] = clamped(cap_log2 * polynomial(wide_tanh, wide_limit));
  of.lowest[0] = clamped(log2_e * lowest_sum(narrow_tanh, narrow_limit, shape.softcap));
  of.lowest[1] = clamped(log2_e * lowest_sum(wide_tanh, wide_limit, shape.softcap));
  return of;
}

Alibi alibi_of(const PlannedShape& shape) {
  const View& slopes = shape.alibi_slopes;
  const Lengths& lengths = shape.lengths;
  const auto rows = [](const int32_t* cu, const int32_t* used, int64_t total, int32_t max) {
    return UsedRows{cu, used, narrow(std::max<int64_t>(total, 0)), max};
  };
  return {static_cast<const float*>(slopes.data), slopes.stride[0], slopes.stride[1],
          rows(lengths.cu_q, lengths.used_q, shape.total_q, lengths.max_q),
          rows(lengths.cu_k, lengths.used_k, shape.total_k, lengths.max_k), clamped(1 / shape.softmax_scale), 0};
}

}  // namespace

ScoreTransforms transforms_of(const PlannedShape& shape) {
  ScoreTransforms of{};
  if (has_softcap(shape)) of.softcap = softcap_of(shape);
  if (has_slopes(shape)) of.alibi = alibi_of(shape);
  return of;
}

// Of caps so large that no float32 score comes near them, a smaller one: tanh would be too small for a float32.
SoftcapTanh tanh_of(const PlannedShape& shape) {
  const double cap = std::min(shape.softcap, 1e15), factor = shape.softmax_scale / cap;  // of S, in tanh
  SoftcapTanh of{};
  of.narrow[0] = of.wide[0] = clamped(factor), of.cap_log2 = clamped(cap * log2_e);
  for (int i = 0; i < wide_terms; ++i) {
    const double power = std::pow(factor, 2 * i + 3);
    of.wide[i + 1] = clamped(wide_tanh[i] * power);
    if (i < narrow_terms) of.narrow[i + 1] = clamped(narrow_tanh[i] * power);
  }
  return of;
}

}  // namespace fa3
