// Rings of shared-memory buffers between producer and consumers.
//
// Both sides count uses from 0 on, over all tiles of the thread block: use i takes buffer i % size, and the parity of its
// barriers is (i / size) & 1. Nothing is drained between tiles.
#pragma once
#include "smem.cuh"

namespace fa3 {

FA3_DEVICE void wait(const uint64_t& barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::shared_address(&barrier), parity)) {
  }
#ifdef FA3_DELAYS
  // A build for the stress test: one wait in 16 takes up to 8 microseconds more, so that faults in the order of things that
  // timing usually hides come to light.
  uint32_t random = (uint32_t(clock64()) ^ ptx::shared_address(&barrier) ^ blockIdx.x * 977) * 2654435761u;
  random = __shfl_sync(__activemask(), random, __ffs(__activemask()) - 1);
  if (random >> 28 == 0) __nanosleep(random >> 8 & 8191);
  __syncwarp(__activemask());
#endif
}

// The K/V ring. Use i of the ring holds K of one block and V of the block before it (of the previous tile's last block, if
// K is the first of its tile). A stage is released by each consumer warp, once (with split_stage: once for K, once for V).
//
// A barrier tells only the parity of its phase. So every warp waits for every use, also for blocks that its rows do not see:
// one that went on to a later use of a stage could mistake the end of an earlier phase for the one it waits for.
struct KvRing {
  Smem& smem;
  // 31 in lane 0, which releases for its warp. By a shuffle, as ptxas reads the thread's number anew in the main loop if it can.
  int mirrored_lane = __shfl_xor_sync(0xffffffffu, threadIdx.x % 32, 31);

  static FA3_DEVICE uint32_t index(uint32_t i) { return i % config.stages; }
  static FA3_DEVICE uint32_t parity(uint32_t i) { return i / config.stages & 1; }

  FA3_DEVICE void wait_k(uint32_t i) const { wait(smem.full_k[index(i)], parity(i)); }
  FA3_DEVICE void wait_v(uint32_t i) const { wait(split_stage ? smem.full_v[index(i)] : smem.full_k[index(i)], parity(i)); }
  // The calling warp is done with K (or V) of the stage. stage_done: and with the other half too.
  FA3_DEVICE void release_k(uint32_t i, bool stage_done) const {
    if (split_stage || stage_done) arrive(smem.empty_k[index(i)]);
  }
  FA3_DEVICE void release_v(uint32_t i, bool stage_done) const {
    if constexpr (split_stage) arrive(smem.empty_v[index(i)]);
    else if (stage_done) arrive(smem.empty_k[index(i)]);
  }
  // A tile begins with use `first`, whose V belongs to the tile before and is done with; the calling warp computes from use
  // `own` on (computes: there is such a block). Releases that V and the uses up to `own`, each when it has come.
  FA3_DEVICE void skip(uint32_t first, uint32_t own, bool computes) const {
    for (uint32_t i = first; i < own; i++) {
      wait_k(i);
      if constexpr (split_stage) wait_v(i);
      release_k(i, false);
      release_v(i, true);
    }
    if (split_stage && computes) {
      wait_v(own);
      release_v(own, false);
    }
  }

 private:
  FA3_DEVICE void arrive(uint64_t& barrier) const {
    ptx::mbarrier_arrive_if(ptx::shared_address(&barrier), mirrored_lane == 31);
  }
};

// The Q slots. Use t * warpgroups + w is the Q of warpgroup w in the thread block's t-th tile; it is filled by the producer
// in this order. The full barriers are not the slots' but each warpgroup's own two: warpgroups may share slots, and one that
// waits for a slot's next phase before the last one is over would see the parity of the phase before and go on too early.
struct QRing {
  static FA3_DEVICE uint32_t index(uint32_t use) { return use % config.q_slots; }
  static FA3_DEVICE uint32_t parity(uint32_t use) { return use / config.q_slots & 1; }
  static FA3_DEVICE uint32_t full_index(uint32_t use) { return use % (2 * warpgroups); }
  static FA3_DEVICE uint32_t full_parity(uint32_t use) { return use / (2 * warpgroups) & 1; }
};

}  // namespace fa3
