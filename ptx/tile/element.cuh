// The elements of Q, K, V and P: their size in shared memory, and the instructions of their type.
#pragma once
#include "../isa/matrix.cuh"
#include "../isa/math.cuh"
#include "../isa/wgmma.cuh"
#include "tiling.cuh"

namespace fa3 {

inline constexpr bool is_8bit = config.is_8bit();  // e4m3
inline constexpr bool is_bf16 = config.dtype == Dtype::bf16;  // of Q and O
// With Q of 16 bits over K and V of 8 (VLayout::widened, copied) all that is multiplied is fp16, which holds e4m3
// exactly.
inline constexpr bool has_wide_q = config.has_wide_q(), widens = config.widens();
inline constexpr bool multiplies_bf16 = is_bf16 && !has_wide_q;
using Element = std::conditional_t<is_8bit, uint8_t, uint16_t>;
static_assert(sizeof(Element) == config.element_bytes());

// `rows` rows of Q, K, V or O lie in shared memory as slabs of [rows][slab_columns] elements, with the swizzle of TMA
// and wgmma for such rows: of 128 bytes, byte address bits 4-6 are xor-ed with bits 7-9; of 64, bits 4-5 with 7-8.
// Columns of the last slab beyond d, or dv, are zeros where TMA has loaded them.
inline constexpr int slab_columns = config.slab_columns();
inline constexpr int slab_row_bytes = config.slab_bytes();
inline constexpr int slabs = config.slabs(), v_slabs = config.v_slabs();
inline constexpr int row_elements = slabs * slab_columns, v_row_elements = v_slabs * slab_columns;
inline constexpr int q_slabs = config.q_slabs(), q_row_elements = q_slabs * slab_columns;
static_assert(slab_row_bytes == 128 || slab_row_bytes == 64);
// A row of a slab has so many chunks of 16 bytes, and so many neighbouring rows are swizzled in the same way. Where
// chunk 0 of a row stands among them.
inline constexpr int chunks = slab_row_bytes / 16, swizzle_rows = 8 / chunks;
FA3_DEVICE int swizzled(int row) { return row / swizzle_rows % chunks; }

// How much of k, the inner dimension of a product, one WGMMA takes: always 32 bytes.
inline constexpr int k_step = 32 / sizeof(Element);

// Registers of a thread's share of P, the A operand of P V.
inline constexpr int p_registers = Bc * sizeof(Element) / 8;

// P = exp2(S c - m) is 2^p_log2 where m is the row's maximum. e4m3 goes from 2^-9 to 448, so 2^4 leaves both ways open.
// Not 2^5: then a lane's sum over equal scores would exceed p_limit, and every block of such a row would move m.
inline constexpr float p_log2 = is_8bit ? 4.f : 0.f;
// What a lane's row sum may reach: half of fp16's largest number, or nearly all of e4m3's, before P could overflow; in
// bf16 half of the exponents above 1, so that as many are left for O.
inline constexpr float p_limit = is_8bit ? 440.f : multiplies_bf16 ? 0x1p64f : 0x1p15f;
static_assert(!is_8bit || 16 * Bc / 4 <= p_limit);

// The accumulators += A B, or = A B without `accumulate`; A from shared memory (ss) or registers (rs). B with n
// contiguous (TransB, as V is) or k, A with m (TransA) or k; of 8-bit types always with k.
template <int TransB = 0, int TransA = 0, int n>
FA3_DEVICE void wgmma_ss(float (&accumulators)[n], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (is_8bit) ptx::wgmma_m64k32_f32_e4m3_ss(accumulators, a, b, accumulate);
  else if constexpr (multiplies_bf16) ptx::wgmma_m64k16_f32_bf16_ss<TransA, TransB>(accumulators, a, b, accumulate);
  else ptx::wgmma_m64k16_f32_f16_ss<TransA, TransB>(accumulators, a, b, accumulate);
}
template <int TransB = 1, int n>
FA3_DEVICE void wgmma_rs(float (&accumulators)[n], const uint32_t* a, uint64_t b, int accumulate) {
  if constexpr (is_8bit) ptx::wgmma_m64k32_f32_e4m3_rs(accumulators, a[0], a[1], a[2], a[3], b, accumulate);
  else if constexpr (multiplies_bf16)
    ptx::wgmma_m64k16_f32_bf16_rs<TransB>(accumulators, a[0], a[1], a[2], a[3], b, accumulate);
  else ptx::wgmma_m64k16_f32_f16_rs<TransB>(accumulators, a[0], a[1], a[2], a[3], b, accumulate);
}

// The A operand of so many k steps, as a thread holds it: every `every`-th one, from the first on, of the warp's 16 of
// 64 rows in shared memory.
template <int steps, int every>
FA3_DEVICE void load_a(uint32_t (*A)[4], const Element* rows, int warp) {
  const int lane = threadIdx.x % 32;
  // ldmatrix.x4: 16 rows at the first 16 bytes of a k step (lanes 0-15) and at the others. The swizzle is an xor.
  const uint32_t address = ptx::shared_address(rows) + (warp * 16 + lane % 16) * slab_row_bytes +
                           ((lane / 16 ^ swizzled(lane)) << 4);
#pragma unroll
  for (int i = 0; i < steps; i++) {
    const int slab = i * every * 32 / slab_row_bytes, within = i * every * 32 % slab_row_bytes;
    ptx::ldmatrix_x4(A[i], (address ^ within) + slab * 64 * slab_row_bytes);
  }
}

// The same by one warp: accumulators of 16 rows and 8 columns += A B.
FA3_DEVICE void mma(float* s, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (is_8bit) ptx::mma_m16n8k32_f32_e4m3(s[0], s[1], s[2], s[3], a, b0, b1);
  else if constexpr (multiplies_bf16) ptx::mma_m16n8k16_f32_bf16(s[0], s[1], s[2], s[3], a, b0, b1);
  else ptx::mma_m16n8k16_f32_f16(s[0], s[1], s[2], s[3], a, b0, b1);
}

// Two e4m3 numbers, the lower or upper half of four, as fp16.
FA3_DEVICE uint32_t widened(uint32_t four, int half) {
  return ptx::cvt_rn_f16x2_e4m3x2(half ? ptx::mov_b32_high(four) : uint16_t(four));
}

// Two numbers rounded to nearest even.
FA3_DEVICE uint32_t pack(float low, float high, bool to_bf16 = is_bf16) {
  return to_bf16 ? ptx::cvt_rn_bf16x2_f32(high, low) : ptx::cvt_rn_f16x2_f32(high, low);
}
// Four, to e4m3; what exceeds 448 becomes 448.
FA3_DEVICE uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  return uint32_t{ptx::cvt_rn_satfinite_e4m3x2_f32(x1, x0)} |
         uint32_t{ptx::cvt_rn_satfinite_e4m3x2_f32(x3, x2)} << 16;
}

}  // namespace fa3
