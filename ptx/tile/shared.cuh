// What a thread block has: shared memory, over which each kernel lays one struct, and warps.
#pragma once
#include "../isa/common.cuh"

namespace fa3 {

FA3_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char shared[];
  return shared;
}

// The thread's warp, known to the compiler as the same in all lanes.
FA3_DEVICE int warp_of_block() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

}  // namespace fa3
