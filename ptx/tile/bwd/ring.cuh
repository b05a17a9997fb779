// Which buffer of a ring comes next.
#pragma once
#include "../barriers.cuh"

namespace fa3 {

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
