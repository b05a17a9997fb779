#include "fake_cuda.h"

#include <pthread.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "driver_rules.h"
#include "fat_binary.h"

namespace fa3::test {

FakeCuda& fake_cuda() {
  static FakeCuda fake;
  return fake;
}

namespace {

std::mutex lock;

constexpr CUdevice the_device = 3;  // not the first one

// A loaded kernel. Modules and functions are the same thing here.
struct Kernel {
  unsigned long long context_id;
  const void* image;
  std::string name;
  unsigned shared = 0;
};
std::deque<Kernel> kernels;  // kept to the end: a test may look at what was unloaded

// A flag and no question to the system, as calls are timed.
bool forked = false;
const int watch_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });

// In no order, so that a race of the library is not hidden by what threads ask of the driver.
void count(std::atomic<int>& calls) { calls.fetch_add(1, std::memory_order_relaxed); }

CUresult answer(const char* call) {
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;  // a forked child has no driver
  FakeCuda& fake = fake_cuda();
  count(fake.calls);
  return fake.failing == call && fake.spared-- <= 0 ? fake.failure : CUDA_SUCCESS;
}

struct ErrorText {
  const char *name, *text;
};
ErrorText text_of(CUresult error) {
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE: return {"CUDA_ERROR_INVALID_VALUE", "invalid argument"};
    case CUDA_ERROR_OUT_OF_MEMORY: return {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"};
    case CUDA_ERROR_NOT_INITIALIZED: return {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"};
    case CUDA_ERROR_ILLEGAL_ADDRESS: return {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"};
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: return {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"};
    default: return {};
  }
}

void take_time() {
  if (fake_cuda().slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// Under the lock. Each image is unpacked once, as there are many contexts.
const std::string& unpacked(const void* image) {
  static std::map<const void*, std::string> cubins;
  const auto found = cubins.find(image);
  return found != cubins.end() ? found->second : cubins.emplace(image, cubin_of(image)).first->second;
}

// Is there a symbol of this name in the cubin?
bool names(const void* image, const std::string& name) {
  return unpacked(image).find(std::string_view(name.c_str(), name.size() + 1)) != std::string::npos;
}

bool foreign(const void* handle) {
  return static_cast<const Kernel*>(handle)->context_id != fake_cuda().context_id;
}

}  // namespace
}  // namespace fa3::test

using namespace fa3::test;

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = text_of(error).name;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = text_of(error).text;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = fake_cuda().context;
  return answer("cuCtxGetCurrent");
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  if (CUresult result = answer("cuCtxGetId")) return result;
  // A handle may be of a context that is no more, which the real driver need not survive: the current one it is to be.
  if (context) return CUDA_ERROR_INVALID_HANDLE;
  if (fake_cuda().context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *id = fake_cuda().context_id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = the_device;
  take_time();
  return answer("cuCtxGetDevice");
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (device != the_device) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = fake_cuda().major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = fake_cuda().minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = fake_cuda().multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = fake_cuda().memory_kilohertz; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = fake_cuda().memory_bits; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = fake_cuda().cache_bytes; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = fake_cuda().kilohertz; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return answer("cuDeviceGetAttribute");
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (CUresult result = answer("cuThreadExchangeStreamCaptureMode")) return result;
  std::swap(*mode, fake_cuda().capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  fake_cuda().asked_about_capture.store(stream, std::memory_order_relaxed);
  if (CUresult result = answer("cuStreamIsCapturing")) return result;
  *status = fake_cuda().capture;
  return fake_cuda().capture_result;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) try {
  if (CUresult result = answer("cuModuleLoadData")) return result;
  count(fake_cuda().loads);
  fake_cuda().capture_mode_at_load = fake_cuda().capture_mode;
  take_time();
  while (fake_cuda().held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::lock_guard guard(lock);
  if (!unpacked(image).starts_with("\177ELF")) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(&kernels.emplace_back(Kernel{fake_cuda().context_id, image, {}, 0}));
  return CUDA_SUCCESS;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleUnload(CUmodule module) {
  count(fake_cuda().unloads);
  if (foreign(module)) return CUDA_ERROR_INVALID_HANDLE;
  return answer("cuModuleUnload");
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) try {
  if (CUresult result = answer("cuModuleGetFunction")) return result;
  if (foreign(module)) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard guard(lock);
  if (!names(reinterpret_cast<Kernel*>(module)->image, name)) return CUDA_ERROR_NOT_FOUND;
  reinterpret_cast<Kernel*>(module)->name = name;
  fake_cuda().loaded.push_back(name);
  *function = reinterpret_cast<CUfunction>(module);
  return CUDA_SUCCESS;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (CUresult result = answer("cuFuncSetAttribute")) return result;
  if (foreign(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || unsigned(value) > most_shared_memory)
    return CUDA_ERROR_INVALID_VALUE;
  reinterpret_cast<Kernel*>(function)->shared = unsigned(value);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dim, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  if (CUresult result = answer("cuTensorMapEncodeTiled")) return result;
  if (CUresult result =
          check_tensor_map(map, type, rank, data, dim, stride, box, element_stride, interleave, swizzle))
    return result;
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

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  if (CUresult result = answer("cuLaunchKernelEx")) return result;
  const CUlaunchConfig& c = *config;
  const Kernel& kernel = *reinterpret_cast<Kernel*>(function);
  if (CUresult result = check_attributes(c)) return result;
  if (foreign(&kernel)) return CUDA_ERROR_INVALID_HANDLE;
  const unsigned grid[3] = {c.gridDimX, c.gridDimY, c.gridDimZ}, block[3] = {c.blockDimX, c.blockDimY, c.blockDimZ};
  if (CUresult result = check_launch(grid, block, c.sharedMemBytes, kernel.shared)) return result;
  if (extra) return CUDA_ERROR_INVALID_VALUE;
  if (!fake_cuda().record) return CUDA_SUCCESS;
  const CUlaunchAttribute* const cluster = attribute_of(c, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  std::lock_guard guard(lock);
  fake_cuda().launches.push_back({kernel.name,
                                  {grid[0], grid[1], grid[2]},
                                  {block[0], block[1], block[2]},
                                  c.sharedMemBytes,
                                  c.hStream,
                                  Launched(kernel.name, arguments[0], c.gridDimX),
                                  attribute_of(c, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) != nullptr,
                                  cluster ? cluster->value.clusterDim.x : 1});
  return CUDA_SUCCESS;
}
}
