// What kernels use of CUDA's headers, in place of cuda_runtime.h, which the compiler would read first: its API and the
// parts of the standard library that it includes take a third of the compiler's front end, of every kernel anew.
#pragma once
#define __CUDA_RUNTIME_H__
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include <builtin_types.h>
#include <device_launch_parameters.h>
#include <vector_functions.h>

// Of the functions that math.h declares these, without the others.
#define INFINITY __builtin_inff()
extern "C" {
__device__ __device_builtin__ float fmaf(float, float, float);
__device__ __device_builtin__ float fmaxf(float, float);
__device__ __device_builtin__ float fminf(float, float);
__device__ __device_builtin__ float fabsf(float);
__device__ __device_builtin__ int clock();
__device__ __device_builtin__ long long clock64();
}
template <class T>
__device__ __forceinline__ constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
__device__ __forceinline__ constexpr T max(T a, T b) {
  return a < b ? b : a;
}

#include <crt/device_functions.h>
#include <sm_20_intrinsics.h>
#include <sm_30_intrinsics.h>
#include <sm_32_atomic_functions.h>
#include <sm_32_intrinsics.h>
