// Waiting at an mbarrier in shared memory.
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

FA3_DEVICE void wait(const uint64_t& barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::shared_address(&barrier), parity)) {
  }
  delay(ptx::shared_address(&barrier));
}

}  // namespace fa3
