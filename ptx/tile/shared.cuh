// The thread block's shared memory. Each kernel lays one struct over it.
#pragma once
#include "../isa/common.cuh"

namespace fa3 {

FA3_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char shared[];
  return shared;
}

}  // namespace fa3
