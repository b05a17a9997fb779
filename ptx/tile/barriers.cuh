// mbarriers in shared memory: setting one up, arriving and waiting at it. And the numbers of named barriers.
#pragma once
#include "../isa/mbarrier.cuh"

namespace fa3 {

// A build for the stress test: one wait in 16 takes up to 8 microseconds more, so that faults in the order of things
// that timing usually hides come to light.
FA3_DEVICE void delay([[maybe_unused]] uint32_t salt) {
#ifdef FA3_DELAYS
  uint32_t random = (uint32_t(clock64()) ^ salt ^ blockIdx.x * 977) * 2654435761u;
  random = __shfl_sync(__activemask(), random, __ffs(__activemask()) - 1);
  if (random >> 28 == 0) __nanosleep(random >> 8 & 8191);
  __syncwarp(__activemask());
#endif
}

FA3_DEVICE void init(uint64_t& barrier, int arrivals) {
  ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
}
FA3_DEVICE void arrive(uint64_t& barrier) { ptx::mbarrier_arrive(ptx::shared_address(&barrier)); }
// And says how many bytes are to come by TMA.
FA3_DEVICE void expect(uint64_t& full, int bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), bytes);
}
FA3_DEVICE void wait(const uint64_t& barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::shared_address(&barrier), parity)) {
  }
  delay(ptx::shared_address(&barrier));
}

enum NamedBarrier { barrier_all = 0, barrier_warpgroup = 1, barrier_turn = 5 };  // the last two + i: of warpgroup i

}  // namespace fa3
