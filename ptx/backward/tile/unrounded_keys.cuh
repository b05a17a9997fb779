// dK and dV that thread blocks leave as they are in their registers: as sums for a pass (key_sums.cuh), or, with
// lengths of their own, as rows of float32 (UnroundedKeys).
#pragma once
#include "fp32_rows.cuh"
#include "work.cuh"

namespace fa3 {

FA3_DEVICE bool rounds_keys(const BackwardParams& p) {
  return (planned && has(Trait::one_key_block)) || p.order.key_sums == 1;
}

// A warpgroup's 64 keys, the i-th of the key block; `warp` of its four.
FA3_DEVICE void store_unrounded(const BackwardParams& p, const float (&D)[d / 2], KeyGradient gradient,
                                const KeyWork& work, int i, int warp) {
  store_key_sums(D, key_sums(p, gradient, work.batch_head, work.block * (Bc / 64) + i), warp);
}
FA3_DEVICE void store_unrounded(const PlannedBackwardParams& p, const float (&D)[d / 2], KeyGradient gradient,
                                const KeyWork& work, int i, int warp) {
  const Sequence& sequence = sequence_of(p, work);
  const bool is_dv = gradient == KeyGradient::dv;
  const RowStrides& stride = is_dv ? p.unrounded.dv_stride : p.unrounded.dk_stride;
  const int key = work.key + 64 * i;
  float* const to = (is_dv ? p.unrounded.dv : p.unrounded.dk) + sequence.k_batch * stride.batch +
                    work.part * stride.head + (sequence.k_row + key) * stride.row;
  store_fp32(D, to, stride.row, is_dv ? p.keys.head_dim_v : p.keys.head_dim, sequence.seqlen_k - key,
             is_dv ? 1.f : p.unrounded.dk_scale, p.unrounded.adds, warp);
}

}  // namespace fa3
