// Online softmax on the accumulator layout of wgmma: a thread holds two rows of S, row i in registers 4 g + 2 i + c, and
// the four lanes of a quad share them.
//
// m is a reference, not necessarily the row maximum: any m gives the same O and LSE as long as P = exp2((S - m) c) neither
// overflows nor vanishes, because P, l and O all use the same one. The main loop uses that to do without maxima: it
// computes P against the old m, and the row sums, needed anyway, tell afterwards whether that was sound, since a sum of
// positive numbers bounds the largest. If not (rare), S is computed again from Q and K, still in shared memory, and the
// block takes the ordinary online path. That saves a third of the instructions, and the branch behind the exponentials keeps
// ptxas from moving the wait for PV above them.
//
// "Sound" is stricter than safe from overflow: P is rounded to 16 bits, l is not. Where one key dominates a row, its P should
// be 1, which rounds exactly, or O would be off by the rounding of that P. So m moves up as soon as a lane's sum exceeds
// four times what the whole row had when its bound was set, and in any case at half of what fp16 can hold. In the block on a
// causal diagonal a row may have had too few keys for that to mean anything, so there the bound is set one block later.
#pragma once
#include "../isa/math.cuh"
#include "../isa/matrix.cuh"
#include "smem.cuh"

namespace fa3 {

// State of a thread's two rows. c = softmax_scale * log2(e).
struct RowState {
  float m[2];  // reference, in units of S
  float l[2];  // this thread's part of the row sum; the quad's parts are added once, at the end
  float bound[2];  // a block's part of the row sum above this moves m; 0: not set yet
};

inline constexpr float unset_bound = 0x1p12f;  // what counts meanwhile: far from the overflow of P in fp16

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

FA3_DEVICE void set_bound(RowState& state) {
#pragma unroll
  for (int i = 0; i < 2; i++) state.bound[i] = fminf(4.f * quad_sum(state.l[i]), 0x1p15f);
}

// The first block of a row: m is its maximum. A row that sees no key here gets a finite m far below any score, so that
// S - m is -inf and never NaN.
FA3_DEVICE void softmax_first(float (&S)[Bc / 2], RowState& state, float c) {
  row_max(S, state.m);
  state.m[0] = fmaxf(state.m[0], -1e30f);
  state.m[1] = fmaxf(state.m[1], -1e30f);
  exponentiate(S, state.m, state.l, c);
  if constexpr (causal) state.bound[0] = state.bound[1] = 0.f;
  else set_bound(state);
}

// Any later block, with the maximum of all blocks so far as m. O is to be multiplied by alpha.
FA3_DEVICE void softmax_online(float (&S)[Bc / 2], RowState& state, float (&alpha)[2], float c) {
  float max[2], sum[2];
  row_max(S, max);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float m = fmaxf(state.m[i], max[i]);
    alpha[i] = ptx::ex2_approx_ftz((state.m[i] - m) * c);
    state.m[i] = m;
  }
  exponentiate(S, state.m, sum, c);
#pragma unroll
  for (int i = 0; i < 2; i++) state.l[i] = state.l[i] * alpha[i] + sum[i];
  set_bound(state);
}

// S = Q K^T for the warp's 16 rows, with mma.sync: the accumulator layout is the same as wgmma's.
FA3_DEVICE void recompute_scores(float (&S)[Bc / 2], const uint16_t* q, const uint16_t* k, int warp) {
  using namespace ptx;
  const int lane = threadIdx.x % 32;
  // Where ldmatrix.x4 reads: 16 query rows at k 0-7 (lanes 0-15) and 8-15; 8 keys at k 0-7 and 8-15, and the next 8 keys.
  // The swizzle is an xor, so step k of a slab is 32 k away by xor, too.
  const uint32_t a_address =
      shared_address(q) + (warp * 16 + lane % 16) * slab_row_bytes + ((lane / 16 ^ lane % 8) << 4);
  const uint32_t b_address =
      shared_address(k) + (lane % 8 + lane / 16 * 8) * slab_row_bytes + ((lane / 8 % 2 ^ lane % 8) << 4);
#pragma unroll
  for (int i = 0; i < Bc / 2; i++) S[i] = 0.f;
#pragma unroll 1
  for (int step = 0; step < d / 16; step++) {
    const int slab = step / 4, within = step % 4 * 32;
    uint32_t a[4];
    ldmatrix_x4(a, (a_address ^ within) + slab * 64 * slab_row_bytes);
#pragma unroll
    for (int g = 0; g < Bc / 8; g += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, (b_address ^ within) + (slab * Bc + g * 8) * slab_row_bytes);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float* s = &S[4 * (g + h)];
        if constexpr (is_bf16) mma_m16n8k16_f32_bf16(s[0], s[1], s[2], s[3], a, b[2 * h], b[2 * h + 1]);
        else mma_m16n8k16_f32_f16(s[0], s[1], s[2], s[3], a, b[2 * h], b[2 * h + 1]);
      }
    }
  }
}

// Any later block without a mask: against the old m if the sums allow it, which is nearly always, else online. Returns
// whether O is to be multiplied by alpha (the same answer in all lanes of the warp). K is read until this returns.
FA3_DEVICE bool softmax_speculative(float (&S)[Bc / 2], RowState& state, float (&alpha)[2], float c, const uint16_t* q,
                                    const uint16_t* k, int warp) {
  float sum[2];
  exponentiate(S, state.m, sum, c);
  if (__any_sync(0xffffffffu, (sum[0] > state.bound[0]) | (sum[1] > state.bound[1]))) {
    const bool set = !causal || __any_sync(0xffffffffu, fmaxf(state.bound[0], state.bound[1]) > 0.f);
    if (set || __any_sync(0xffffffffu, fmaxf(sum[0], sum[1]) > unset_bound)) {
      recompute_scores(S, q, k, warp);
      softmax_online(S, state, alpha, c);
      return true;
    }
    state.l[0] += sum[0];
    state.l[1] += sum[1];
    set_bound(state);
    return false;
  }
  state.l[0] += sum[0];
  state.l[1] += sum[1];
  return false;
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
