// Online softmax on the accumulator layout of wgmma: a thread holds two rows of S, row i in registers 4 g + 2 i + c, and
// the four lanes of a quad share them.
//
// m is a reference, not necessarily the maximum: any m gives the same O and LSE, as long as exp2((S - m) c) does not
// overflow, because P, l and O all use the same one. So O is rescaled only when a row's maximum has grown past m by more
// than 2^8 since, which after the first block is rare.
#pragma once
#include "../isa/math.cuh"
#include "config.cuh"

namespace fa3 {

// State of a thread's two rows. c = softmax_scale * log2(e).
struct RowState {
  float m[2];  // reference, in units of S
  float l[2];  // this thread's part of the row sum; the quad's parts are added once, at the end
};

inline constexpr float growth_limit = 8.f;  // log2

FA3_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
FA3_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// rowmax(S)
FA3_DEVICE void row_max(const float (&S)[Bc / 2], float (&max)[2]) {
  float t[4] = {S[0], S[1], S[2], S[3]};  // two chains a row
#pragma unroll
  for (int i = 4; i < Bc / 2; i++) t[i & 3] = fmaxf(t[i & 3], S[i]);
  max[0] = quad_max(fmaxf(t[0], t[1]));
  max[1] = quad_max(fmaxf(t[2], t[3]));
}

// S = exp2((S - m) c), sum = this thread's part of the row sums
FA3_DEVICE void exponentiate(float (&S)[Bc / 2], const float (&m)[2], float (&sum)[2], float c) {
  const float mc[2] = {m[0] * c, m[1] * c};
  float t[4];
#pragma unroll
  for (int i = 0; i < Bc / 2; i++) {
    S[i] = ptx::ex2_approx_ftz(fmaf(S[i], c, -mc[i >> 1 & 1]));
    t[i & 3] = i < 4 ? S[i] : t[i & 3] + S[i];
  }
  sum[0] = t[0] + t[1];
  sum[1] = t[2] + t[3];
}

// The first block of a row: m is the true maximum. A row that sees no key here gets a finite m far below any score, so
// that S - m is -inf and never NaN.
FA3_DEVICE void softmax_first(float (&S)[Bc / 2], RowState& state, float c) {
  row_max(S, state.m);
  state.m[0] = fmaxf(state.m[0], -1e30f);
  state.m[1] = fmaxf(state.m[1], -1e30f);
  exponentiate(S, state.m, state.l, c);
}

// Any later block. Returns whether O is to be multiplied by alpha (the same answer in all lanes of the warp).
FA3_DEVICE bool softmax(float (&S)[Bc / 2], RowState& state, float (&alpha)[2], float c) {
  float max[2], sum[2];
  row_max(S, max);
  const bool rescale =
      __any_sync(0xffffffffu, fmaxf(max[0] - state.m[0], max[1] - state.m[1]) * c > growth_limit);
  if (rescale) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float m = fmaxf(state.m[i], max[i]);
      alpha[i] = ptx::ex2_approx_ftz((state.m[i] - m) * c);
      state.m[i] = m;
      state.l[i] *= alpha[i];
    }
  }
  exponentiate(S, state.m, sum, c);
  state.l[0] += sum[0];
  state.l[1] += sum[1];
  return rescale;
}

FA3_DEVICE uint32_t pack(float low, float high) {
  if constexpr (is_bf16) return ptx::cvt_rn_bf16x2_f32(high, low);
  else return ptx::cvt_rn_f16x2_f32(high, low);
}

// P = S in 16 bits. The accumulator layout of S, packed in pairs, is the register layout of wgmma's A operand.
FA3_DEVICE void convert(const float (&S)[Bc / 2], uint32_t (&P)[Bc / 4]) {
#pragma unroll
  for (int i = 0; i < Bc / 4; i++) P[i] = pack(S[2 * i], S[2 * i + 1]);
}

FA3_DEVICE void scale_rows(float (&O)[d / 2], const float (&alpha)[2]) {
#pragma unroll
  for (int i = 0; i < d / 2; i++) O[i] *= alpha[i >> 1 & 1];
}

}  // namespace fa3
