// What rows take that change scores before they are masked (Trait::softcap, Trait::alibi). Plain C++, read by both
// sides.
#pragma once
#include <cstdint>

#include "../plan/sequence.h"

namespace fa3 {

// tanh(x) is x (1 + c0 x^2 + c1 x^4 ...) for |x| up to a limit, in float32 to 7.5e-7 of it. That makes P wrong by 3e-5
// at most where the cap is 50; rounding to 16 bits adds more. Beyond the limits both rise on, as the last coefficients
// are positive.
inline constexpr int narrow_terms = 2, wide_terms = 4;
inline constexpr double narrow_limit = 0.26, wide_limit = 0.746;
inline constexpr double narrow_tanh[narrow_terms] = {-0.3332315795, 0.1284103447};
inline constexpr double wide_tanh[wide_terms] = {-0.3332997001, 0.1327179318, -0.0503962815, 0.0132240890};

// In units of S = q k, so that what is capped has these, too.
struct Softcap {
  float cap;               // softcap / softmax_scale
  float inverse_cap;       // 1 / cap
  float limit;             // of |S| for the wide polynomial; below 0: it never holds
  float wide[wide_terms];  // its coefficients, for S in place of x
  float exponent;          // cap tanh(S / cap) = cap - 2 cap / (1 + exp2(S exponent))

  // The same times softmax_scale_log2, for exponents: m as in tile/scores/softmax.cuh.
  float cap_scaled;
  float narrow_scaled[narrow_terms], wide_scaled[wide_terms];
  // Of the narrow and the wide one: it holds for exponents up to highest - m; and, if the row's sum of exponentials is
  // 2^lowest at least, for all scores below, as those that are far below have no weight.
  float highest[2], lowest[2];
};

// The backward pass needs tanh(S / cap) itself, as the derivative is 1 - tanh^2: S times a polynomial in S^2. An
// exponent is tanh times cap_log2.
struct SoftcapTanh {
  float narrow[narrow_terms + 1], wide[wide_terms + 1];
  float cap_log2;
};

// The rows of q that sequences have in use, as sequence_of has them: where do those of b end?
struct UsedRows {
  const int32_t *cu, *used;  // as in Lengths
  int32_t total, max;

  constexpr int32_t end_of(int32_t b) const {
    const Range given{read_or_zero(cu, b), read_or_zero(cu, b + 1)};
    return rows_of_sequence(cu, given, total, max, read_or_zero(used, b), used).end;
  }
};
// Sequence b's head h has the slope slopes[b * stride_batch + h * stride_head].
struct Alibi {
  const float* slopes;
  int64_t stride_batch, stride_head;
  UsedRows q, k;
  float inverse_scale;  // 1 / softmax_scale: slopes in units of S; in the backward pass with softcap 1 / softcap
  int32_t reserved;
};
struct ScoreTransforms {
  Softcap softcap;
  Alibi alibi;
};

}  // namespace fa3
