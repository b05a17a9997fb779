// The two products of attention on a warpgroup's 64 rows. They issue and never wait: fences, commits and waits stand in
// the kernel, where they can be counted.
#pragma once
#include "../params/v_tile.h"
#include "descriptor.cuh"
#include "smem.cuh"

namespace fa3 {

inline constexpr Swizzle slab_swizzle = slab_row_bytes == 128 ? Swizzle::bytes_128 : Swizzle::bytes_64;
// Q and K: K-major, groups of 8 rows apart by the stride offset; the leading offset is not used with a swizzle.
inline constexpr uint64_t qk_descriptor = descriptor(16, 8 * slab_row_bytes, slab_swizzle);
// V of 16 bits: its n (the head dimension) is contiguous; slabs are the leading offset apart, 8 keys the stride offset.
// V of 8 bits, as tiles: 16 keys are the leading offset apart, 8 columns the stride offset.
inline constexpr uint64_t v_descriptor = is_8bit ? descriptor(v_tile_keys * dv, 8 * v_tile_keys, Swizzle::none)
                                                 : descriptor(Bc * slab_row_bytes, 8 * slab_row_bytes, slab_swizzle);

// The same operand, so many units on. In latent/mla.cu and mla_few.cu descriptors are many: so there only their lower
// halves are added to, which is all that differs.
FA3_DEVICE uint64_t moved(uint64_t operand, uint32_t units) {
  if constexpr (halves_columns) return (operand & ~uint64_t{0xffffffff}) | (uint32_t(operand) + units);
  else return operand + units;
}

// The operands of the two products: those of buffer 0 and stage 0, from which the others lie at fixed distances.
struct Descriptors {
  uint64_t q0, k0;

  FA3_DEVICE explicit Descriptors(const Smem& smem)
      : q0(descriptor_start(&smem.q[0]) | qk_descriptor), k0(descriptor_start(&smem.stage[0].k) | qk_descriptor) {}

  FA3_DEVICE uint64_t q(uint32_t buffer) const {
    return q0 + uint64_t(buffer) * descriptor_units(config.q_buffer_bytes());
  }
  FA3_DEVICE uint64_t k(uint32_t stage) const {
    if constexpr (halves_columns) return moved(k0, stage * descriptor_units(config.stage_bytes()));
    else return k0 + uint64_t(stage) * descriptor_units(config.stage_bytes());
  }
  // V lies behind its stage's K. Made from K's, because a descriptor of its own is computed anew in every iteration.
  FA3_DEVICE uint64_t v(uint32_t stage) const {
    if constexpr (halves_columns)
      return moved(k(stage), descriptor_units(config.k_block_bytes()) + uint32_t(v_descriptor - qk_descriptor));
    else return k(stage) + descriptor_units(config.k_block_bytes()) + (v_descriptor - qk_descriptor);
  }
};
static_assert(offsetof(Stage, v) == config.k_block_bytes());

// The first k steps of Q that stay in registers for a whole piece (Trait::q_in_registers): those of a warp's 16 rows.
inline constexpr int q_register_steps = has(Trait::q_in_registers) ? d / k_step / 2 : 0;
using QRegisters = uint32_t[q_register_steps > 0 ? q_register_steps : 1][4];
FA3_DEVICE void load_q_registers(QRegisters& Q, const Element* q, int warp) { load_a<q_register_steps, 1>(Q, q, warp); }

// S = Q K^T: a wgmma of m64 n=Bc for each k_step columns of Q. The second tensor's columns follow those of the first
// one, as V's follow K's.
inline constexpr int qk_steps = (d + (has_qv ? dv : 0)) / k_step;
FA3_DEVICE void issue_qk(float (&S)[Bc / 2], const QRegisters& Q, uint64_t q, uint64_t k) {
#pragma unroll
  for (int step = 0; step < qk_steps; step++) {
    const int slab = step * 32 / slab_row_bytes, within = step * 32 % slab_row_bytes;
    const uint64_t a = moved(q, descriptor_units(slab * 64 * slab_row_bytes + within));
    const uint64_t b = moved(k, descriptor_units(slab * Bc * slab_row_bytes + within));
    if (step < q_register_steps) wgmma_rs(S, Q[step], b, step > 0);
    else wgmma_ss(S, a, b, step > 0);
  }
}
FA3_DEVICE void issue_qk(float (&S)[Bc / 2], uint64_t q, uint64_t k) { issue_qk(S, QRegisters{}, q, k); }

// The same of so many slabs, from which q and k begin: S += Q K^T if accumulate.
template <int slabs>
FA3_DEVICE void issue_qk_slabs(float (&S)[Bc / 2], uint64_t q, uint64_t k, bool accumulate) {
  constexpr int steps = slab_row_bytes / 32;  // of a slab
#pragma unroll
  for (int step = 0; step < slabs * steps; step++) {
    const int slab = step / steps, within = step % steps * 32;
    wgmma_ss(S, moved(q, descriptor_units(slab * 64 * slab_row_bytes + within)),
             moved(k, descriptor_units(slab * Bc * slab_row_bytes + within)), step > 0 || accumulate);
  }
}

// O = P V, or O += P V if accumulate, for as many columns as O has: Bc / k_step wgmmas of m64, P from registers.
template <int n>
FA3_DEVICE void issue_pv(float (&O)[n], const uint32_t (&P)[p_registers], uint64_t v, bool accumulate) {
  constexpr uint32_t key_bytes = is_8bit ? dv : slab_row_bytes;  // from one key to the next, on average
#pragma unroll
  for (int step = 0; step < Bc / k_step; step++)
    wgmma_rs(O, &P[4 * step], moved(v, descriptor_units(step * k_step * key_bytes)), step > 0 || accumulate);
}
// The same with P of 16 bits from shared memory, in a slab as Q's.
template <int n>
FA3_DEVICE void issue_pv_shared(float (&O)[n], uint64_t p, uint64_t v, bool accumulate) {
#pragma unroll
  for (int step = 0; step < Bc / k_step; step++)
    wgmma_ss<1>(O, moved(p, descriptor_units(step * 32)), moved(v, descriptor_units(step * k_step * slab_row_bytes)),
                step > 0 || accumulate);
}

// Either, of as many columns at a time as one WGMMA takes. P: registers, or a descriptor.
template <class P, int n>
FA3_DEVICE void issue_pv_parts(float (&O)[n], const P& p, uint64_t v, bool accumulate) {
  constexpr int columns = config.pv_columns(), part_columns = columns / 2;
#pragma unroll
  for (int part = 0; part < n / part_columns; part++) {
    float(&o)[part_columns] = reinterpret_cast<float(&)[part_columns]>(O[part * part_columns]);
    const uint64_t at = moved(v, part * (columns / slab_columns) * descriptor_units(Bc * slab_row_bytes));
    if constexpr (std::is_same_v<P, uint64_t>) issue_pv_shared(o, p, at, accumulate);
    else issue_pv(o, p, at, accumulate);
  }
}

}  // namespace fa3
