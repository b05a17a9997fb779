// With Trait::centered_k. A row of dS sums up to 0, but for its rounding, and what the rounded one sums up to goes into
// dQ = dS K times the keys' mean, which may be far larger than what else there is of the keys. So it is taken off:
// dQ = dS K - (row sums of rounded dS) c. That is right for any c, so a mean of some of the keys will do.
#pragma once
#include "../isa/barrier.cuh"
#include "../isa/fence.cuh"
#include "tile/gemm.cuh"
#include "tile/work.cuh"

namespace fa3 {

// Of a sequence in the list, which may be a chunk of one of the call. Other rows of the table have none.
FA3_DEVICE const float* key_mean_of(const CenteredBackwardParams& p, int sequence, int head_kv) {
  return p.key_mean(sequence / p.call.cuts.each, head_kv, d);
}
FA3_DEVICE const float* key_mean_of(const BackwardParams&, int, int) { return nullptr; }

// That of a key block. Lengths that overlap, which nobody should give, may list none there.
FA3_DEVICE int listed_sequence(const PlannedBackwardParams& p, const KeyWork& work) {
  return max(p.tiles[p.blocks[work.batch].first_tile].sequence, 0);
}
FA3_DEVICE int listed_sequence(const BackwardParams&, const KeyWork&) { return 0; }

inline constexpr int sum_columns = 8;  // the fewest that a WGMMA has; all are the same

struct alignas(16) KeyMean {
  float mean[d];
  Element ones[sum_columns * k_step];

  // With the first threads of the thread block, before a barrier of all of it.
  FA3_DEVICE void fill_ones() {
    if (threadIdx.x >= sum_columns * k_step) return;
    ones[threadIdx.x] = is_bf16 ? 0x3f80 : 0x3c00;
    ptx::fence_proxy_async_shared();
  }
  // The mean for a key block, by the warpgroup that needs it; `barrier` is its own. All its warps have read the one
  // before.
  FA3_DEVICE void load(const Params& p, const KeyWork& work, int barrier) {
    const int thread = threadIdx.x % 128;
    const float column_mean = thread < d ? key_mean_of(p, listed_sequence(p, work), work.head_kv)[thread] : 0.f;
    ptx::bar_sync(barrier, 128);
    if (thread < d) mean[thread] = column_mean;
    ptx::bar_sync(barrier, 128);
  }
};

// Row sums of rounded dS of 64 query rows, from dS^T in shared memory, as a product with ones. (By mma, from registers,
// the backward pass took 7 to 9% longer.) sums[0]: of a thread's first row; sums[2]: of the other one.
FA3_DEVICE void issue_row_sums(float (&sums)[sum_columns / 2], uint64_t ds, const KeyMean& by) {
  const uint64_t ones = descriptor_start(by.ones) | descriptor(128, 256, Swizzle::none);
#pragma unroll
  for (int step = 0; step < Bc / k_step; step++)
    multiply_ss<1, 0>(sums, ds + descriptor_units(step * k_step * slab_row_bytes), ones, step > 0);
}

// The mean of so many columns, as a warpgroup's accumulators hold 64 rows of dQ: of each 8 columns a thread has two.
template <int columns>
struct MeanOfColumns {
  float2 of[columns / 8];

  FA3_DEVICE void load(const float* mean, int lane) {
#pragma unroll
    for (int g = 0; g < columns / 8; g++) of[g] = *reinterpret_cast<const float2*>(mean + 8 * g + 2 * (lane % 4));
  }
  // Times the sums of the thread's two rows.
  FA3_DEVICE void take_off(float (&D)[columns / 2], float sum, float sum_of_next) const {
#pragma unroll
    for (int g = 0; g < columns / 8; g++) {
      float* const x = &D[4 * g];
      x[0] = fmaf(-sum, of[g].x, x[0]), x[1] = fmaf(-sum, of[g].y, x[1]);
      x[2] = fmaf(-sum_of_next, of[g].x, x[2]), x[3] = fmaf(-sum_of_next, of[g].y, x[3]);
    }
  }
};

}  // namespace fa3
