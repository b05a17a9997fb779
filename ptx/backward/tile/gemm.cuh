// The products of the backward pass, of 64 rows of their results. They issue and never wait.
//
// Keys as rows (bwd.cu, bwd_keys.cu):
//   S^T  (64 keys x Br)  = K Q^T        A and B with d contiguous
//   dP^T (64 keys x Br)  = V dO^T
//   dV   (64 keys x d)  += P^T dO       A from registers, B with d contiguous, which is its n
//   dK   (64 keys x d)  += dS^T Q
//   dQ   (Br x d)        = dS K         A and B with their outer dimension contiguous
// Queries as rows (bwd_queries.cu):
//   S    (64 rows x Bc)  = Q K^T        as S^T
//   dP   (64 rows x Bc)  = dO V^T
//   dQ   (64 rows x d)  += dS K         as dV
#pragma once
#include "../../tile/descriptor.cuh"
#include "../../tile/element.cuh"

namespace fa3 {

inline constexpr uint64_t rows_descriptor = descriptor(16, 8 * slab_row_bytes, Swizzle::bytes_128);
// As B with n contiguous: slabs are the leading offset apart, 8 rows the stride offset.
constexpr uint64_t columns_descriptor(int rows) {
  return descriptor(rows * slab_row_bytes, 1024, Swizzle::bytes_128);
}
static_assert(slab_row_bytes == 128);

// D += A B, 64 rows, of 16-bit elements; TransA, TransB as in isa/wgmma.cuh.
template <int TransA, int TransB, int n>
FA3_DEVICE void multiply_ss(float (&D)[n], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (is_bf16) ptx::wgmma_m64k16_f32_bf16_ss<TransA, TransB>(D, a, b, accumulate);
  else ptx::wgmma_m64k16_f32_f16_ss<TransA, TransB>(D, a, b, accumulate);
}

// S, dP, or one of them transposed. a_rows: of the buffer in which the 64 rows of A are; B has 2 n.
template <int a_rows, int n>
FA3_DEVICE void issue_scores(float (&S)[n], uint64_t a, uint64_t b) {
#pragma unroll
  for (int step = 0; step < d / k_step; step++) {
    const int slab = step * 32 / slab_row_bytes, within = step * 32 % slab_row_bytes;
    multiply_ss<0, 0>(S, a + descriptor_units(slab * a_rows * slab_row_bytes + within),
                      b + descriptor_units(slab * 2 * n * slab_row_bytes + within), step > 0);
  }
}

// The same with every other k step of A, which has 64 rows, in registers: for an A that many products share, as shared
// memory is read less then. Every other one, so that its rate is the same all through the product.
inline constexpr int register_steps = d / k_step / 2;
using HalfOfA = uint32_t[register_steps][4];
FA3_DEVICE void load_half(HalfOfA& A, const Element* rows, int warp) { load_a<register_steps, 2>(A, rows, warp); }
template <int n>
FA3_DEVICE void issue_scores(float (&S)[n], const HalfOfA& A, uint64_t a, uint64_t b) {
#pragma unroll
  for (int step = 0; step < d / k_step; step++) {
    const int slab = step * 32 / slab_row_bytes, within = step * 32 % slab_row_bytes;
    const uint64_t to = b + descriptor_units(slab * 2 * n * slab_row_bytes + within);
    if (step % 2 == 0) wgmma_rs<0>(S, A[step / 2], to, step > 0);
    else multiply_ss<0, 0>(S, a + descriptor_units(slab * 64 * slab_row_bytes + within), to, true);
  }
}

// D += A B with A from registers: dV, dK, or dQ of queries as rows.
template <int n>
FA3_DEVICE void issue_gradient(float (&D)[d / 2], const uint32_t (&a)[n], uint64_t b) {
#pragma unroll
  for (int step = 0; step < n / 4; step++)
    wgmma_rs(D, &a[4 * step], b + descriptor_units(step * k_step * slab_row_bytes), true);
}

// Some columns of dQ from dS^T in shared memory.
template <int n>
FA3_DEVICE void issue_dq(float (&D)[n], uint64_t ds, uint64_t k) {
#pragma unroll
  for (int step = 0; step < Bc / k_step; step++) {
    const uint64_t offset = descriptor_units(step * k_step * slab_row_bytes);
    multiply_ss<1, 1>(D, ds + offset, k + offset, step > 0);
  }
}

}  // namespace fa3
