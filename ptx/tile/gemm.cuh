// The two products of attention on a warpgroup's 64 rows. They issue and never wait: fences, commits and waits stand in the
// kernel, where they can be counted.
#pragma once
#include "../isa/wgmma.cuh"
#include "smem.cuh"

namespace fa3 {

// Shared-memory descriptor of a 128-byte-swizzled operand (PTX ISA, wgmma, Matrix-Descriptor Format): address bits 4-17,
// leading and stride offsets in 16-byte units, swizzle mode 1 in bits 62-63. Adding to it moves the start, also in 16-byte
// units. Addresses are below 2^18 as there are no clusters: in one they hold the thread block's rank, from bit 24 on.
FA3_DEVICE uint64_t descriptor(const void* start, uint32_t leading_bytes, uint32_t stride_bytes) {
  return uint64_t(ptx::shared_address(start) >> 4) | uint64_t(leading_bytes >> 4) << 16 | uint64_t(stride_bytes >> 4) << 32 |
         uint64_t(1) << 62;
}
constexpr uint32_t descriptor_units(uint32_t bytes) { return bytes >> 4; }

// Q and K: K-major, 8-row groups 1024 bytes apart; the leading offset is not used with this swizzle.
FA3_DEVICE uint64_t q_descriptor(const Smem& smem, uint32_t slot) { return descriptor(&smem.q[slot], 16, 1024); }
FA3_DEVICE uint64_t k_descriptor(const Smem& smem, uint32_t stage) { return descriptor(&smem.stage[stage].k, 16, 1024); }
// From a stage's K to its V, which lies behind it. V's n (the head dimension) is contiguous: 64-column slabs are the leading
// offset apart, 8 keys the stride offset. Added to K's, because a descriptor of its own is computed anew in every iteration.
inline constexpr uint64_t k_to_v = descriptor_units(row.kv_tile_bytes()) + (uint64_t(Bc * slab_row_bytes - 16 >> 4) << 16);
static_assert(offsetof(Stage, v) == row.kv_tile_bytes());

// S = Q K^T: d/16 wgmmas of m64 n=Bc k16.
FA3_DEVICE void issue_qk(float (&S)[Bc / 2], uint64_t q, uint64_t k) {
#pragma unroll
  for (int step = 0; step < d / 16; step++) {
    const int slab = step / 4, within = step % 4 * 32;  // 16 elements are 32 bytes, four steps a slab row
    const uint64_t a = q + descriptor_units(slab * 64 * slab_row_bytes + within);
    const uint64_t b = k + descriptor_units(slab * Bc * slab_row_bytes + within);
    if constexpr (is_bf16) ptx::wgmma_m64k16_f32_bf16_ss<0>(S, a, b, step > 0);
    else ptx::wgmma_m64k16_f32_f16_ss<0>(S, a, b, step > 0);
  }
}

// O = P V, or O += P V if accumulate: Bc/16 wgmmas of m64 n=d k16, P from registers.
FA3_DEVICE void issue_pv(float (&O)[d / 2], const uint32_t (&P)[Bc / 4], uint64_t v, bool accumulate) {
#pragma unroll
  for (int step = 0; step < Bc / 16; step++) {
    const uint64_t b = v + descriptor_units(step * 16 * slab_row_bytes);
    const int scale_d = step > 0 || accumulate;
    if constexpr (is_bf16)
      ptx::wgmma_m64k16_f32_bf16_rs<1>(O, P[4 * step], P[4 * step + 1], P[4 * step + 2], P[4 * step + 3], b, scale_d);
    else
      ptx::wgmma_m64k16_f32_f16_rs<1>(O, P[4 * step], P[4 * step + 1], P[4 * step + 2], P[4 * step + 3], b, scale_d);
  }
}

}  // namespace fa3
