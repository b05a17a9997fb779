// The two products of attention on a warpgroup's 64 rows. They issue and never wait: fences, commits and waits stand in
// the kernel, where they can be counted.
#pragma once
#include "smem.cuh"

namespace fa3 {

// Shared-memory descriptor of a 128-byte-swizzled operand (PTX ISA, wgmma, Matrix-Descriptor Format): address bits
// 4-17, leading and stride offsets in 16-byte units, swizzle mode 1 in bits 62-63. Adding to it moves the start, also
// in 16-byte units. Addresses are below 2^18 as there are no clusters: in one they hold the thread block's rank, from
// bit 24 on.
FA3_DEVICE uint64_t descriptor(const void* start, uint32_t leading_bytes, uint32_t stride_bytes) {
  return uint64_t(ptx::shared_address(start) >> 4) | uint64_t(leading_bytes >> 4) << 16 |
         uint64_t(stride_bytes >> 4) << 32 | uint64_t(1) << 62;
}
constexpr uint32_t descriptor_units(uint32_t bytes) { return bytes >> 4; }

// The operands of the two products: those of buffer 0 and stage 0, from which the others lie at fixed distances.
struct Descriptors {
  uint64_t q0, k0;

  // Q and K: K-major, 8-row groups 1024 bytes apart; the leading offset is not used with this swizzle.
  FA3_DEVICE explicit Descriptors(const Smem& smem)
      : q0(descriptor(&smem.q[0], 16, 1024)), k0(descriptor(&smem.stage[0].k, 16, 1024)) {}

  FA3_DEVICE uint64_t q(uint32_t buffer) const {
    return q0 + uint64_t(buffer) * descriptor_units(config.q_buffer_bytes());
  }
  FA3_DEVICE uint64_t k(uint32_t stage) const {
    return k0 + uint64_t(stage) * descriptor_units(config.stage_bytes());
  }
  // V lies behind its stage's K. Its n (the head dimension) is contiguous: 64-column slabs are the leading offset
  // apart, 8 keys the stride offset. Made from K's, because a descriptor of its own is computed anew in every
  // iteration.
  FA3_DEVICE uint64_t v(uint32_t stage) const {
    return k(stage) + descriptor_units(config.k_block_bytes()) + (uint64_t(Bc * slab_row_bytes - 16 >> 4) << 16);
  }
};
static_assert(offsetof(Stage, v) == config.k_block_bytes());

// S = Q K^T: d / 16 wgmmas of m64 n=Bc k16.
FA3_DEVICE void issue_qk(float (&S)[Bc / 2], uint64_t q, uint64_t k) {
#pragma unroll
  for (int step = 0; step < d / k_step; step++) {
    const int slab = step / 4, within = step % 4 * 32;
    const uint64_t a = q + descriptor_units(slab * 64 * slab_row_bytes + within);
    const uint64_t b = k + descriptor_units(slab * Bc * slab_row_bytes + within);
    wgmma_ss(S, a, b, step > 0);
  }
}

// O = P V, or O += P V if accumulate: Bc / 16 wgmmas of m64 n=dv k16, P from registers.
FA3_DEVICE void issue_pv(float (&O)[dv / 2], const uint32_t (&P)[Bc / 4], uint64_t v, bool accumulate) {
#pragma unroll
  for (int step = 0; step < Bc / k_step; step++)
    wgmma_rs_transposed(O, &P[4 * step], v + descriptor_units(step * k_step * slab_row_bytes), step > 0 || accumulate);
}

}  // namespace fa3
