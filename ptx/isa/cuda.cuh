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
__device__ __device_builtin__ float copysignf(float, float);
__device__ __device_builtin__ int max(int, int);
__device__ __device_builtin__ int min(int, int);
__device__ __device_builtin__ unsigned umax(unsigned, unsigned);
__device__ __device_builtin__ unsigned umin(unsigned, unsigned);
__device__ __device_builtin__ long long llmax(long long, long long);
__device__ __device_builtin__ long long llmin(long long, long long);
__device__ __device_builtin__ long clock();
__device__ __device_builtin__ long long clock64();
}
#define FA3_OVERLOAD(type, max_of, min_of)                                                  \
  __device__ __forceinline__ type max(const type a, const type b) { return max_of(a, b); } \
  __device__ __forceinline__ type min(const type a, const type b) { return min_of(a, b); }
FA3_OVERLOAD(float, fmaxf, fminf)
FA3_OVERLOAD(unsigned, umax, umin)
FA3_OVERLOAD(long, llmax, llmin)
FA3_OVERLOAD(long long, llmax, llmin)
#undef FA3_OVERLOAD

#include <crt/device_functions.h>
#include <sm_20_intrinsics.h>
#include <sm_30_intrinsics.h>
#include <sm_32_atomic_functions.h>
#include <sm_32_intrinsics.h>
