// What every thread block of a forward kernel does first.
#pragma once
#include "../isa/cluster.cuh"
#include "../isa/tma.cuh"
#include "shared.cuh"
#include "smem.cuh"

namespace fa3 {

// The thread block's shared memory, with its barriers set up, and the tensor maps on their way into the cache.
FA3_DEVICE Smem& set_up(const Params& p, int warp) {
  Smem& smem = *reinterpret_cast<Smem*>(shared_memory());
  init_barriers(smem, warp);
  if (threadIdx.x == 32) {
    for (const TensorMap* map : {&p.q, &p.k, &p.v}) ptx::prefetch_tensormap(map);
    if constexpr (!config.o_from_registers()) ptx::prefetch_tensormap(&p.o);  // otherwise there may be none
  }
  if constexpr (multicasts) ptx::barrier_cluster();  // before one arrives at a barrier of the other, or loads into it
  else ptx::bar_sync(barrier_all, config.threads());
  return smem;
}

}  // namespace fa3
