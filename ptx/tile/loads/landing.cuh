// V that cannot lie in a stage as it lies in memory: it lands in a buffer of its own, warps of the producer warpgroup
// that have nothing else to do mend it on its way into the stage, and then the stage is full. The K/V producer, which
// has no register left, only sends it to another place. What is mended is the mender's: Transposer in transpose.cuh.
#pragma once
#include "../../isa/fence.cuh"
#include "../ring.cuh"

namespace fa3 {

// One of the warps, which mends its share of every V.
template <class Mender>
FA3_DEVICE void mend_landings(Smem& smem, const Mender& mender) {
  using namespace ptx;
  Landing& landing = smem.landing;
  const int lane = threadIdx.x % 32;
  if (!split_stage && lane == 0) mbarrier_arrive(shared_address(&smem.full_k[0]));  // use 0 of the ring holds no V
  if (split_stage && lane == 0) mbarrier_arrive(shared_address(&smem.full_v[0]));
  for (uint32_t n = 0;; n++) {  // the n-th V goes to use n + 1 of the ring
    const uint32_t buffer = n % Landing::buffers, s = KvRing::index(n + 1);
    wait(landing.full[buffer], n / Landing::buffers & 1);
    if (__shfl_sync(0xffffffffu, lane == 0 ? landing.end[buffer] : 0, 0)) break;  // lane 0 releases: it alone reads
    wait(split_stage ? smem.empty_v[s] : smem.empty_k[s], KvRing::parity(n + 1) ^ 1);
    mender.mend(shared_address(landing.v[buffer]), shared_address(smem.stage[s].v));
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      mbarrier_arrive(shared_address(&landing.empty[buffer]));
      mbarrier_arrive(shared_address(split_stage ? &smem.full_v[s] : &smem.full_k[s]));
    }
  }
}

}  // namespace fa3
