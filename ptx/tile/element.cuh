// The elements of Q, K, V and P: their size in shared memory, and the instructions of their type.
#pragma once
#include "../isa/matrix.cuh"
#include "../isa/math.cuh"
#include "../isa/wgmma.cuh"
#include "config.cuh"

namespace fa3 {

using Element = uint16_t;  // bf16 or fp16, as bits
static_assert(sizeof(Element) == config.element_bytes());
inline constexpr bool is_bf16 = config.dtype == Dtype::bf16;

// `rows` rows of Q, K, V or O lie in shared memory as slabs of [rows][64] elements, each row 128 bytes, with the
// 128-byte swizzle of TMA and wgmma: byte address bits 4-6 are xor-ed with bits 7-9.
inline constexpr int slab_columns = box_columns;
inline constexpr int slab_row_bytes = 128;
static_assert(slab_columns * sizeof(Element) == slab_row_bytes);

// How much of k, the inner dimension of a product, one WGMMA takes: always 32 bytes, a quarter of a slab row.
inline constexpr int k_step = 32 / sizeof(Element);

// The accumulators += A B, or = A B without `accumulate`; A from shared memory (ss) or registers (rs).
template <int n>
FA3_DEVICE void wgmma_ss(float (&accumulators)[n], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (is_bf16) ptx::wgmma_m64k16_f32_bf16_ss<0>(accumulators, a, b, accumulate);
  else ptx::wgmma_m64k16_f32_f16_ss<0>(accumulators, a, b, accumulate);
}
// B transposed: its n is contiguous.
template <int n>
FA3_DEVICE void wgmma_rs_transposed(float (&accumulators)[n], const uint32_t* a, uint64_t b, int accumulate) {
  if constexpr (is_bf16) ptx::wgmma_m64k16_f32_bf16_rs<1>(accumulators, a[0], a[1], a[2], a[3], b, accumulate);
  else ptx::wgmma_m64k16_f32_f16_rs<1>(accumulators, a[0], a[1], a[2], a[3], b, accumulate);
}

// The same by one warp: accumulators of 16 rows and 8 columns += A B.
FA3_DEVICE void mma(float* s, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (is_bf16) ptx::mma_m16n8k16_f32_bf16(s[0], s[1], s[2], s[3], a, b0, b1);
  else ptx::mma_m16n8k16_f32_f16(s[0], s[1], s[2], s[3], a, b0, b1);
}

// Two numbers rounded to nearest even.
FA3_DEVICE uint32_t pack(float low, float high) {
  if constexpr (is_bf16) return ptx::cvt_rn_bf16x2_f32(high, low);
  else return ptx::cvt_rn_f16x2_f32(high, low);
}

}  // namespace fa3
