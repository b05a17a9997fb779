// Barriers in shared memory: setting one up, arriving at one, and which comes next in a ring of buffers.
#pragma once
#include "../wait.cuh"

namespace fa3 {

FA3_DEVICE void init(uint64_t& barrier, int arrivals) {
  ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
}
FA3_DEVICE void arrive(uint64_t& barrier) { ptx::mbarrier_arrive(ptx::shared_address(&barrier)); }

// Where a use of a ring of `size` buffers is.
struct Use {
  int index = 0;
  uint32_t parity = 0;
  template <int size>
  FA3_DEVICE void next() {
    if (++index == size) index = 0, parity ^= 1;
  }
};

}  // namespace fa3
