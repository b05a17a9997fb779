// The K/V ring of kernels whose O is in two halves (latent/mla.cu), by halves of V's columns, in the order in which
// they are given back and come: the left one, which is the first warpgroup's, and the right one with K.
#pragma once
#include "../isa/cluster.cuh"
#include "../tile/ring.cuh"

namespace fa3 {

struct HalvesRing {
  Smem& smem;
  int mirrored_lane = __shfl_xor_sync(0xffffffffu, threadIdx.x % 32, 31);  // as in KvRing

  // Both by the first warpgroup. The second one hears of P behind that.
  FA3_DEVICE void wait_left(uint32_t i) const { wait(smem.full_v[KvRing::index(i)], KvRing::parity(i)); }
  FA3_DEVICE void wait_right(uint32_t i) const { wait(smem.full_k[KvRing::index(i)], KvRing::parity(i)); }
  // The calling warp, of the warpgroup whose half it is, is done with it.
  FA3_DEVICE void release_left(uint32_t i) const { arrive(smem.empty_v[KvRing::index(i)]); }
  FA3_DEVICE void release_right(uint32_t i) const { arrive(smem.empty_k[KvRing::index(i)]); }
  // The first warpgroup leaves out these uses, for both.
  FA3_DEVICE void skip(uint32_t first, uint32_t end) const {
#pragma unroll 1
    for (uint32_t i = first; i < end; i++) {
      wait_left(i), wait_right(i);
      release_left(i), release_right(i);
    }
  }

 private:
  FA3_DEVICE void arrive(uint64_t& barrier) const {
    const uint32_t address = ptx::shared_address(&barrier);
    if constexpr (multicasts)
      ptx::mbarrier_arrive_cluster_if(address, 31 - mirrored_lane, mirrored_lane > 31 - cluster_blocks);
    else ptx::mbarrier_arrive_if(address, mirrored_lane == 31);
  }
};

}  // namespace fa3
