// The simulated driver's only device, with its context current.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <cuda.h>

namespace fa3::test {

inline void make_current() {
  CUcontext context;
  REQUIRE((cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS));
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

}  // namespace fa3::test
