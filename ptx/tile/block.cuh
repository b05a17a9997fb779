// The thread block: what it does first, and who does what. The kernel itself is here, the same for all; a file of kernels/
// defines the consumer that it calls.
#pragma once
#include "../isa/tma.cuh"
#include "producer.cuh"
#include "smem.cuh"

namespace fa3 {

// A consumer warpgroup: 64 rows of each tile. `warp` of its four.
FA3_DEVICE void consumer(const ForwardParams& p, Smem& smem, int warpgroup, int warp);

// The block's shared memory, with its barriers set up, and the tensor maps on their way into the cache.
FA3_DEVICE Smem& set_up(const ForwardParams& p, int warp) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Smem& smem = *reinterpret_cast<Smem*>(shared);
  init_barriers(smem, warp);
  if (threadIdx.x == 32)
    for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.o}) ptx::prefetch_tensormap(map);
  ptx::bar_sync(barrier_all, row.threads());
  return smem;
}

}  // namespace fa3

extern "C" __global__ void __launch_bounds__(fa3::row.threads(), 1)
FA3_KERNEL(const __grid_constant__ fa3::ForwardParams p) {
  using namespace fa3;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to the compiler as the same in all lanes
  Smem& smem = set_up(p, warp);
  if (warp / 4 == warpgroups) producer(p, smem, warp % 4);
  else consumer(p, smem, warp / 4, warp % 4);
}
