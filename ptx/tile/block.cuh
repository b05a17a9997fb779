// What every thread block does first.
#pragma once
#include "../isa/tma.cuh"
#include "smem.cuh"

namespace fa3 {

// The warp's number in the block, known to the compiler as the same in all lanes.
FA3_DEVICE int warp_of_block() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

// The block's shared memory, with its barriers set up, and the tensor maps on their way into the cache.
FA3_DEVICE Smem& set_up(const ForwardParams& p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Smem& smem = *reinterpret_cast<Smem*>(shared);
  if (warp_of_block() == 0) init_barriers(smem);
  if (threadIdx.x == 32)
    for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.o}) ptx::prefetch_tensormap(map);
  ptx::bar_sync(barrier_all, row.threads());
  return smem;
}

}  // namespace fa3
