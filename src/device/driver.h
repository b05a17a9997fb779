// The CUDA driver, found at run time: libfa3 links nothing of CUDA and loads where there is no driver.
#pragma once
#include <cuda.h>

#include "fa3.h"

namespace fa3 {

// The entry points by the names that libcuda exports. cuda.h turns some API names into later versions by macros, so the
// exported name stands here as a string and the type is spelled out. All of them exist since CUDA 12.0.
#define FA3_DRIVER_FUNCTIONS(F)                                                                                      \
  F(get_error_name, "cuGetErrorName", (CUresult, const char**))                                                      \
  F(get_error_string, "cuGetErrorString", (CUresult, const char**))                                                  \
  F(ctx_get_current, "cuCtxGetCurrent", (CUcontext*))                                                                \
  F(ctx_get_id, "cuCtxGetId", (CUcontext, unsigned long long*))                                                      \
  F(ctx_get_device, "cuCtxGetDevice", (CUdevice*))                                                                   \
  F(device_get_attribute, "cuDeviceGetAttribute", (int*, CUdevice_attribute, CUdevice))                              \
  F(thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode*))                \
  F(stream_is_capturing, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus*))                                  \
  F(module_load_data, "cuModuleLoadData", (CUmodule*, const void*))                                                  \
  F(module_unload, "cuModuleUnload", (CUmodule))                                                                     \
  F(module_get_function, "cuModuleGetFunction", (CUfunction*, CUmodule, const char*))                                \
  F(func_set_attribute, "cuFuncSetAttribute", (CUfunction, CUfunction_attribute, int))                               \
  F(tensor_map_encode_tiled, "cuTensorMapEncodeTiled",                                                               \
    (CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,  \
     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill)) \
  F(launch_kernel_ex, "cuLaunchKernelEx", (const CUlaunchConfig*, CUfunction, void**, void**))

struct Driver {
#define FA3_DECLARE(name, symbol, arguments) CUresult (*name) arguments;
  FA3_DRIVER_FUNCTIONS(FA3_DECLARE)
#undef FA3_DECLARE
};

// Opens libcuda.so.1, unless it is open. FA3_ERROR_NO_DRIVER with the reason if that fails or it is too old.
fa3_status get_driver(const Driver*& driver);

// Records "call: CUDA error 1, CUDA_ERROR_X (text)", or no more than the number where the driver does not know it, and
// returns the status.
fa3_status cuda_error(const Driver& driver, CUresult result, const char* call, fa3_status status = FA3_ERROR_CUDA);

}  // namespace fa3
