// How a thread block runs the planner's loops (plan_lengths.h).
#pragma once
#include "../isa/grid.cuh"
#include "../plan_lengths.h"
#include "shared.cuh"

namespace fa3 {

FA3_DEVICE PlanScratch& plan_scratch() {
  static_assert(sizeof(PlanScratch) <= config.smem_bytes());
  return *reinterpret_cast<PlanScratch*>(shared_memory());
}

template <int threads>
struct ThreadBlock {
  template <class F>
  FA3_DEVICE void each(int32_t count, F f) const {
    for (int32_t i = threadIdx.x; i < count; i += threads) f(i);
    __syncthreads();
  }
  FA3_DEVICE int32_t add(int32_t& sum, int32_t n) const { return atomicAdd(&sum, n); }
  FA3_DEVICE int64_t add(int64_t& sum, int64_t n) const {
    return int64_t(atomicAdd(reinterpret_cast<unsigned long long*>(&sum), static_cast<unsigned long long>(n)));
  }
  FA3_DEVICE void raise(int32_t& largest, int32_t n) const { atomicMax(&largest, n); }
  FA3_DEVICE void prefix_sums(int32_t* x, int32_t count, int32_t most) const {
    if (threadIdx.x == 0) {
      int32_t sum = 0;
      for (int32_t i = 0; i <= count; i++) {
        const int32_t own = i < count ? x[i] : 0;
        x[i] = sum;
        sum = own < most - sum ? sum + own : most;
      }
    }
    __syncthreads();
  }
};

}  // namespace fa3
