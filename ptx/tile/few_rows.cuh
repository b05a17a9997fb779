// What kernels share in which keys stand in the rows of the scores (Trait::few_rows): a lane has scores of the same
// rows as 7 others, 4 lanes apart each.
#pragma once
#include "../isa/common.cuh"

namespace fa3 {

// m may be so much less than a row's largest score, in units of exp2, that O need not be multiplied each time: P stay
// far below fp16's largest number.
inline constexpr float m_slack = 8.f;

// Over the 8 lanes that have the same rows.
FA3_DEVICE float column_sum(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}
FA3_DEVICE float column_max(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}

}  // namespace fa3
