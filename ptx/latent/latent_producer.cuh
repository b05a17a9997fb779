// The producer warpgroup of this folder's kernels. Its warps are as in planned/planned_producer.cuh: two load K and V,
// one Q, and one claims pieces. Where V of e4m3 is widened in its stage, four of a second warpgroup do that.
#pragma once
#include "../isa/grid.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../planned/planned_pieces.cuh"
#include "../planned/planned_queries.cuh"
#include "latent_keys.cuh"
#include "widen_latent.cuh"

namespace fa3 {

// The producer warpgroup, or both. `warp` of its four, or of their eight.
FA3_DEVICE void latent_producer(const Params& p, Smem& smem, int warp) {
  ptx::setmaxnreg_dec<config.producer_registers()>();
  ptx::griddepcontrol_wait();               // the pass that makes the list may be under way
  ptx::griddepcontrol_launch_dependents();  // the one that adds parts up reads the list
  if (warp < 2) LatentKvProducer(p, smem, warp).run();
  else if (warp == 3) PieceProducer<Params>(p, smem).run();
  else if (warp == 2 || !widens_latent) {
    if (threadIdx.x % 32 == 0) planned_q_producer(p, smem);
  } else if constexpr (widens_latent) {
    widen_latent(smem, warp - 4);
  }
}

}  // namespace fa3
