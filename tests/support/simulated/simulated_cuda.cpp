// A driver without a GPU: device memory is host memory, a launch computes attention by the CPU reference from what the
// launch carries (tensor maps and parameter block). With it the GPU test suite runs on the CPU, which tests the suite
// and the host, not the kernels. It refuses what the real driver does, and parameters that contradict each other.
#include <cuda.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backward.h"
#include "driver_rules.h"
#include "maps.h"
#include "run.h"

namespace {

using Clock = std::chrono::steady_clock;

// A place for a context, used again when that is destroyed: handles come back, ids do not.
struct Context {
  unsigned long long id;  // 0: none here
};
struct Function {
  unsigned long long context_id;
  std::string name;
  unsigned shared = 0;
};
using Launch = fa3::test::Launched;
struct Stream {
  unsigned long long context_id;
  bool capturing = false;
  std::vector<Launch> captured;
};
struct Graph {
  std::vector<Launch> launches;
};
struct Event {
  Clock::time_point time;
};

Context contexts[64], primary;
unsigned long long last_id = 0;
std::mutex lock;  // of these

// Of the calling thread. Another one may have destroyed it meanwhile.
thread_local struct {
  Context* context;
  unsigned long long id;
} current{};

CUresult make_current(Context* context) {
  std::lock_guard guard(lock);
  current = {context, context ? context->id : 0};
  return CUDA_SUCCESS;
}

CUresult check_current() {
  std::lock_guard guard(lock);
  if (!current.context) return CUDA_ERROR_INVALID_CONTEXT;
  return current.context->id == current.id ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

template <class Type>
Type* as(const void* handle) {
  return static_cast<Type*>(const_cast<void*>(handle));
}

CUresult replay(const std::vector<Launch>& launches) {
  for (const Launch& launch : launches)
    if (CUresult result = run(launch)) return result;
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
                CUstream stream, void** arguments, void** extra) {
  if (CUresult result = check_current()) return result;
  if (as<Function>(function)->context_id != current.id) return CUDA_ERROR_INVALID_HANDLE;
  if (stream && as<Stream>(stream)->context_id != current.id) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = fa3::test::check_launch(grid, block, shared, as<Function>(function)->shared)) return result;
  if (extra) return CUDA_ERROR_INVALID_VALUE;
  const Launch launched(as<Function>(function)->name, arguments[0], grid[0]);
  if (stream && as<Stream>(stream)->capturing) return as<Stream>(stream)->captured.push_back(launched), CUDA_SUCCESS;
  return run(launched);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char** name) { return *name = "simulated error", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { return *text = "simulated error", CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "no GPU: simulated on the CPU", size_t(size) - 1);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int, CUdevice) { return *id = 0, CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) { return *bytes = size_t(1) << 30, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 9
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? fa3::test::multiprocessors
           : attribute == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH  ? 5120
           : attribute == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE            ? 50 << 20
                                                                       : 1980000;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice) {
  Context* made = nullptr;
  {
    std::lock_guard guard(lock);
    for (Context& place : contexts)
      if (!made && place.id == 0) made = &place;
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    made->id = ++last_id;
  }
  *context = reinterpret_cast<CUcontext>(made);
  return make_current(made);
}
CUresult cuCtxDestroy(CUcontext context) {
  if (current.context == as<Context>(context)) current = {};
  std::lock_guard guard(lock);
  return as<Context>(context)->id = 0, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  std::lock_guard guard(lock);
  if (primary.id == 0) primary.id = ++last_id;
  *context = reinterpret_cast<CUcontext>(&primary);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice) {
  std::lock_guard guard(lock);
  return primary.id = 0, CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { return make_current(as<Context>(context)); }
CUresult cuCtxGetCurrent(CUcontext* context) {
  return *context = reinterpret_cast<CUcontext>(current.context), CUDA_SUCCESS;
}
CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  if (context) return CUDA_ERROR_INVALID_HANDLE;  // it may be of a context that is no more
  return *id = current.id, check_current();
}
CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, check_current(); }
CUresult cuCtxSynchronize() { return check_current(); }

CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  return memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream) { return cuMemAlloc(pointer, bytes); }
CUresult cuMemFree(CUdeviceptr pointer) { return std::free(reinterpret_cast<void*>(pointer)), CUDA_SUCCESS; }
CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFreeHost(void* pointer) { return std::free(pointer), CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), CUDA_SUCCESS;
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char byte, size_t bytes) {
  return std::memset(reinterpret_cast<void*>(to), byte, bytes), CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t* free, size_t* total) { return *free = *total = size_t(1) << 30, CUDA_SUCCESS; }

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return *stream = reinterpret_cast<CUstream>(new Stream{current.id, false, {}}), check_current();
}
CUresult cuStreamDestroy(CUstream stream) { return delete as<Stream>(stream), CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const bool capturing = stream && as<Stream>(stream)->capturing;
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  return as<Stream>(stream)->capturing = true, CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  as<Stream>(stream)->capturing = false;
  *graph = reinterpret_cast<CUgraph>(new Graph{std::exchange(as<Stream>(stream)->captured, {})});
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  return *executable = reinterpret_cast<CUgraphExec>(new Graph(*as<Graph>(graph))), CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream) { return replay(as<Graph>(executable)->launches); }
CUresult cuGraphExecDestroy(CUgraphExec executable) { return delete as<Graph>(executable), CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph graph) { return delete as<Graph>(graph), CUDA_SUCCESS; }

CUresult cuEventCreate(CUevent* event, unsigned) {
  return *event = reinterpret_cast<CUevent>(new Event{}), CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) { return delete as<Event>(event), CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream) { return as<Event>(event)->time = Clock::now(), CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent stop) {
  *milliseconds = std::chrono::duration<float, std::milli>(as<Event>(stop)->time - as<Event>(start)->time).count();
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  if (CUresult result = check_current()) return result;
  return *module = reinterpret_cast<CUmodule>(new Function{current.id, {}, 0}), CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { return delete as<Function>(module), CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  as<Function>(module)->name = name;
  return *function = reinterpret_cast<CUfunction>(module), CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (as<Function>(function)->context_id != current.id) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      unsigned(value) > fa3::test::most_shared_memory)
    return CUDA_ERROR_INVALID_VALUE;
  return as<Function>(function)->shared = unsigned(value), CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* encoded, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dim, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank != 4 && rank != 5) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = fa3::test::check_tensor_map(encoded, type, rank, data, dim, stride, box, element_stride,
                                                    interleave, swizzle))
    return result;
  fa3::test::Map map{fa3::test::magic, data, fa3::test::dtype_of(type), rank, {}, {}, {box[0], box[1], box[2]}};
  for (cuuint32_t i = 0; i < rank; ++i) map.dim[i] = uint32_t(dim[i]);
  for (cuuint32_t i = 0; i + 1 < rank; ++i) map.stride[i] = stride[i];
  std::memcpy(encoded, &map, sizeof map);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** arguments,
                        void** extra) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, arguments, extra);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  if (CUresult result = fa3::test::check_attributes(*config)) return result;
  const CUlaunchConfig& c = *config;
  return launch(function, {c.gridDimX, c.gridDimY, c.gridDimZ}, {c.blockDimX, c.blockDimY, c.blockDimZ},
                c.sharedMemBytes, c.hStream, arguments, extra);
}
}
