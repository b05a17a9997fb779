#include "fake_cuda.h"

#include <cstring>
#include <mutex>

namespace fa3::test {

FakeCuda& fake_cuda() {
  static FakeCuda fake;
  return fake;
}

namespace {

std::mutex lock;

// A loaded kernel. Modules and functions are the same thing here.
struct Kernel {
  std::string name;
  int shared = 0;
};

CUresult answer(const char* call) {
  FakeCuda& fake = fake_cuda();
  ++fake.calls;
  return fake.failing == call ? fake.failure : CUDA_SUCCESS;
}

}  // namespace
}  // namespace fa3::test

using namespace fa3::test;

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = fake_cuda().context;
  return answer("cuCtxGetCurrent");
}

CUresult cuCtxGetId(CUcontext, unsigned long long* id) {
  *id = fake_cuda().context_id;
  return answer("cuCtxGetId");
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return answer("cuCtxGetDevice");
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? fake_cuda().major
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? fake_cuda().minor
                                                                       : fake_cuda().multiprocessors;
  return answer("cuDeviceGetAttribute");
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, fake_cuda().capture_mode);
  return answer("cuThreadExchangeStreamCaptureMode");
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = fake_cuda().capture;
  ++fake_cuda().calls;
  return fake_cuda().capture_result;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  // A cubin is an ELF file.
  if (std::memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  if (CUresult result = answer("cuModuleLoadData")) return result;
  ++fake_cuda().loads;
  fake_cuda().capture_mode_at_load = fake_cuda().capture_mode;
  *module = reinterpret_cast<CUmodule>(new Kernel);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  ++fake_cuda().unloads;
  delete reinterpret_cast<Kernel*>(module);
  return answer("cuModuleUnload");
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (CUresult result = answer("cuModuleGetFunction")) return result;
  reinterpret_cast<Kernel*>(module)->name = name;
  fake_cuda().loaded.push_back(name);
  *function = reinterpret_cast<CUfunction>(module);
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) reinterpret_cast<Kernel*>(function)->shared = value;
  return answer("cuFuncSetAttribute");
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dim, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  if (CUresult result = answer("cuTensorMapEncodeTiled")) return result;
  // The driver's own rules.
  if (reinterpret_cast<uintptr_t>(map) % 64 || reinterpret_cast<uintptr_t>(data) % 16) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i < rank; ++i)
    if (dim[i] == 0 || dim[i] > 1ull << 32) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i + 1 < rank; ++i)
    if (stride[i] % 16 || stride[i] >= 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
  if (!fake_cuda().record) return CUDA_SUCCESS;
  std::lock_guard guard(lock);
  std::vector<EncodedMap>& maps = fake_cuda().maps;
  maps.push_back({type,
                  data,
                  {dim, dim + rank},
                  {stride, stride + rank - 1},
                  {box, box + rank},
                  {element_stride, element_stride + rank},
                  interleave,
                  swizzle,
                  promotion,
                  fill});
  // The map's first word is its number here, so that a launch shows which map went where.
  std::memset(map, 0, sizeof *map);
  map->opaque[0] = maps.size() - 1;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** arguments,
                        void** extra) {
  if (CUresult result = answer("cuLaunchKernel")) return result;
  const Kernel& kernel = *reinterpret_cast<Kernel*>(function);
  if (shared > 48 * 1024 && shared > static_cast<unsigned>(kernel.shared)) return CUDA_ERROR_INVALID_VALUE;
  if (extra) return CUDA_ERROR_INVALID_VALUE;
  if (!fake_cuda().record) return CUDA_SUCCESS;
  std::lock_guard guard(lock);
  fake_cuda().launches.push_back({kernel.name,
                                  {grid_x, grid_y, grid_z},
                                  {block_x, block_y, block_z},
                                  shared,
                                  stream,
                                  *static_cast<fa3::ForwardParams*>(arguments[0])});
  return CUDA_SUCCESS;
}
}
