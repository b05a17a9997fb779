// dK and dV that thread blocks leave as they are in their registers: as sums for a pass (key_sums.cuh), or, with lengths
// of their own where each K/V head has one part, as the float32 that the caller wants. There both are rows of float32,
// which one piece of code stores: with two of them ptxas puts the main loop of bwd.cu in another order at d 128.
#pragma once
#include "fp32_rows.cuh"
#include "work.cuh"

namespace fa3 {

FA3_DEVICE bool rounds_keys(const BackwardParams& p) {
  return (own_lengths && has(Trait::one_key_block)) || p.order.key_sums == 1;
}

// A warpgroup's 64 keys, the i-th of the key block; `warp` of its four.
FA3_DEVICE void store_unrounded(const BackwardParams& p, const float (&D)[d / 2], KeyGradient gradient,
                                const KeyWork& work, int i, int warp) {
  store_key_sums(D, key_sums(p, gradient, work.batch_head, work.block * (Bc / 64) + i), warp);
}
FA3_DEVICE void store_unrounded(const PlannedBackwardParams& p, const float (&D)[d / 2], KeyGradient gradient,
                                const KeyWork& work, int i, int warp) {
  const bool is_dv = gradient == KeyGradient::dv, sums = p.keys.sums;
  const Sequence& sequence = sequence_of(p, work);
  const RowStrides& stride = is_dv ? p.keys.dv_stride : p.keys.dk_stride;
  const int key = work.key + 64 * i;
  float* const to = sums ? reinterpret_cast<float*>(key_sums(p, gradient, work.part, work.batch * (Bc / 64) + i))
                         : reinterpret_cast<float*>(is_dv ? p.keys.dv : p.keys.dk) + sequence.k_batch * stride.batch +
                               work.head_kv * stride.head + (sequence.k_row + key) * stride.row;
  store_fp32(D, to, sums ? d : stride.row, sums ? d : is_dv ? p.keys.head_dim_v : p.keys.head_dim,
             sums ? 64 : sequence.seqlen_k - key, is_dv || sums ? 1.f : p.softmax_scale,
             !sums && p.rows.store == GradientStore::added_fp32, warp);
}

}  // namespace fa3
