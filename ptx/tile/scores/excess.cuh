// By how much the P that PV has used, rounded to 16 bits, exceed those that l has, of keys that may dominate their row
// (speculative.cuh).
#pragma once
#include "../element.cuh"

namespace fa3 {

// Two numbers of P.
FA3_DEVICE float2 unpack(uint32_t pair) {
  if constexpr (multiplies_bf16) return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  else return {ptx::cvt_f32_f16(pair & 0xffff), ptx::cvt_f32_f16(pair >> 16)};
}

// Of a thread's share of its two rows: two numbers in one register, as d 64 has no second one. They are at most 2^-9 of
// the shares of l, so it does no harm that they are rounded to bf16. P in 8 bits needs none.
class Excess {
 public:
  // A row that has seen nothing.
  FA3_DEVICE void clear() { pair_ = 0; }

  // Of the thread's largest P of each row.
  FA3_DEVICE void add(const float (&P)[Bc / 2]) {
    int bits[2] = {0, 0};  // of numbers that are not negative, which are ordered as integers are
#pragma unroll
    for (int i = 0; i < Bc / 2; i += 4) {
      bits[0] = __vimax3_s32(bits[0], __float_as_int(P[i]), __float_as_int(P[i + 1]));
      bits[1] = __vimax3_s32(bits[1], __float_as_int(P[i + 2]), __float_as_int(P[i + 3]));
    }
    const float max[2] = {__int_as_float(bits[0]), __int_as_float(bits[1])};
    const float2 rounded = unpack(pack(max[0], max[1], multiplies_bf16));
    pair_ = ptx::add_rn_bf16x2(pair_, pack(rounded.x - max[0], rounded.y - max[1], true));
  }

  // As l and O are multiplied.
  FA3_DEVICE void scale(const float (&alpha)[2]) {
    if constexpr (!is_8bit) pair_ = ptx::mul_rn_bf16x2(pair_, pack(alpha[0], alpha[1], true));
  }

  // What O of each row is to be multiplied by to fit l, row sums of the whole quad: l / (l + excess), by the first
  // three terms of its series.
  FA3_DEVICE void fit(const float (&l)[2], float (&weight)[2]) const {
    weight[0] = weight[1] = 1.f;
    if constexpr (!is_8bit) {
      float excess[2];
      sum_of_quad(excess);
      fit(excess, l, weight);
    }
  }
  // The same of the quad's two rows, and what follows from it.
  FA3_DEVICE void sum_of_quad(float (&excess)[2]) const {
    uint32_t sum = ptx::add_rn_bf16x2(pair_, __shfl_xor_sync(0xffffffffu, pair_, 1));
    sum = ptx::add_rn_bf16x2(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    excess[0] = __uint_as_float(sum << 16), excess[1] = __uint_as_float(sum & 0xffff0000u);
  }
  FA3_DEVICE static void fit(const float (&excess)[2], const float (&l)[2], float (&weight)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float part = excess[i] * ptx::rcp_approx_ftz(l[i] == 0.f ? 1.f : l[i]);
      weight[i] = fmaf(part, part - 1.f, 1.f);
    }
  }

 private:
  uint32_t pair_;
};

}  // namespace fa3
