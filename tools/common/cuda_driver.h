// The CUDA Driver API for tools and tests: libcuda is found with dlopen, so binaries start on machines without a GPU.
#pragma once
#include <cuda.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace fa3::tools {

// cuda.h renames most functions (cuMemAlloc is cuMemAlloc_v2); the macro argument is expanded first, so member and
// symbol both get the versioned name that matches the prototype.
// The first are questions about devices, which the oldest drivers answer.
#define FA3_DRIVER_QUESTIONS(X)                                                                           \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) \
  X(cuDeviceGetAttribute) X(cuDeviceTotalMem)
#define FA3_DRIVER_FUNCTIONS(X)                                                                                     \
  FA3_DRIVER_QUESTIONS(X)                                                                                           \
  X(cuDeviceGetPCIBusId) X(cuCtxCreate) X(cuCtxDestroy) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuMemAlloc)        \
  X(cuMemAllocAsync)                                                                                                \
  X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyDtoDAsync)              \
  X(cuMemsetD8) X(cuMemGetInfo) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)                         \
  X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord)                 \
  X(cuEventSynchronize) X(cuEventElapsedTime) X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphExecDestroy)          \
  X(cuGraphDestroy) X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernel)                  \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxReset)

struct Driver {
#define FA3_MEMBER(name) decltype(&::name) name = nullptr;
  FA3_DRIVER_FUNCTIONS(FA3_MEMBER)
#undef FA3_MEMBER
};

struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The loaded and initialised driver; throws CudaError with the reason if there is none.
const Driver& driver();

// The same, but only the questions need be there: the driver may be too old for the rest.
const Driver& any_driver();

// The CUDA version that the driver is for, such as 13000; 0 if there is no driver. It need not find a GPU.
int driver_version();

// Empty if device 0 can run the library's kernels; otherwise why not, in words.
std::string why_no_hopper();

void check(CUresult result, const char* call);
#define FA3_CU(function, ...) ::fa3::tools::check(::fa3::tools::driver().function(__VA_ARGS__), #function)

// Of any driver.
int device_count();

struct DeviceInfo {
  std::string name;
  int driver_version = 0, sms = 0, max_clock_khz = 0, major = 0, minor = 0;
  int memory_khz = 0, memory_bits = 0, cache_bytes = 0;
  size_t memory = 0;

  bool is_hopper() const { return major == 9 && minor == 0; }
  std::string compute_capability() const { return std::to_string(major) + "." + std::to_string(minor); }

  // Dense 16-bit tensor-core peak of Hopper: 4096 FLOP per clock and SM.
  double matrix_peak_tflops(double mhz) const { return 4096.0 * sms * mhz * 1e-6; }
  double max_clock_mhz() const { return max_clock_khz / 1000.0; }
};
DeviceInfo device_info(int ordinal = 0);  // of any driver

// Owns one driver handle: Type, and the call that frees it.
template <class Type, auto Free>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Type handle) : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, Type{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() {
    if (handle_) (void)(driver().*Free)(handle_);
  }
  Type get() const { return handle_; }

 private:
  Type handle_{};
};

// A context of its own (never the primary one), current to the creating thread until it is destroyed.
class Context : public Handle<CUcontext, &Driver::cuCtxDestroy> {
 public:
  explicit Context(int ordinal = 0);
  void make_current() const { FA3_CU(cuCtxSetCurrent, get()); }
};

class Stream : public Handle<CUstream, &Driver::cuStreamDestroy> {
 public:
  Stream();  // does not synchronise with the legacy default stream
  void synchronize() const { FA3_CU(cuStreamSynchronize, get()); }
};

class Event : public Handle<CUevent, &Driver::cuEventDestroy> {
 public:
  Event();
  void record(const Stream& stream) const { FA3_CU(cuEventRecord, get(), stream.get()); }
  void synchronize() const { FA3_CU(cuEventSynchronize, get()); }
  float milliseconds_since(const Event& start) const;
};

// A captured and instantiated graph. Capture is thread-local: other threads may load modules or allocate meanwhile.
class Graph {
 public:
  static void begin(const Stream& stream);
  static Graph end(const Stream& stream);
  void launch(const Stream& stream) const { FA3_CU(cuGraphLaunch, executable_.get(), stream.get()); }

 private:
  Handle<CUgraph, &Driver::cuGraphDestroy> graph_;
  Handle<CUgraphExec, &Driver::cuGraphExecDestroy> executable_;
};

// Memory of the host that kernels read where it is, at the same address, and slowly.
class HostBuffer : public Handle<void*, &Driver::cuMemFreeHost> {
 public:
  HostBuffer() = default;
  explicit HostBuffer(size_t bytes);
};

// Device memory, of the driver's pool if FA3_TEST_ALLOCATOR is "async": from address 0x302000000 on, as PyTorch's
// allocators have it that take `expandable_segments:True` or `backend:cudaMallocAsync`. Copies and fills have finished
// on the device when they return.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t bytes);
  // For a tensor. If FA3_TEST_SLOW_MEMORY is set, to a number from 0 to 1, this part of them lie in the host's memory:
  // what comes from there comes late, and in another order than it was sent for.
  static DeviceBuffer for_tensor(size_t bytes);
  CUdeviceptr get() const { return host_.get() ? reinterpret_cast<CUdeviceptr>(host_.get()) : device_.get(); }
  size_t size() const { return bytes_; }
  void* at(size_t offset) const { return reinterpret_cast<void*>(get() + offset); }
  void upload(const void* source, size_t bytes, size_t offset = 0) const;
  void download(void* target, size_t bytes, size_t offset = 0) const;
  void fill(unsigned char byte) const;

 private:
  Handle<CUdeviceptr, &Driver::cuMemFree> device_;
  HostBuffer host_;
  size_t bytes_ = 0;
};

}  // namespace fa3::tools
