// Which buffer of a ring comes next, and who gives it back for a warp.
#pragma once
#include "../../tile/barriers.cuh"

namespace fa3 {

// What a warp's lanes have read or written together, one of them hands over. compute-sanitizer's racecheck does not
// follow the warp's agreement into an mbarrier; so in a build for it all lanes arrive.
#ifdef FA3_RACECHECK
inline constexpr bool all_lanes_arrive = true;
#else
inline constexpr bool all_lanes_arrive = false;
#endif
inline constexpr int warp_arrivals = all_lanes_arrive ? 32 : 1;

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
