#include "cuda_driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "random.h"

namespace fa3::tools {

namespace {

struct Loaded {
  Driver driver;
  std::string problem;  // why nothing can be asked
  std::string missing;  // else why that is all

  Loaded() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      problem = "no NVIDIA driver: libcuda.so.1 cannot be loaded";
      return;
    }
#define FA3_TEXT_(name) #name
#define FA3_TEXT(name) FA3_TEXT_(name)
#define FA3_LOOK_UP(name)                                                                \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, FA3_TEXT(name))); \
  if (!driver.name) missing = "the NVIDIA driver is too old: it has no " FA3_TEXT(name);
    FA3_DRIVER_FUNCTIONS(FA3_LOOK_UP)
#undef FA3_LOOK_UP
#define FA3_IS_THERE(name) &&driver.name
    if (!(true FA3_DRIVER_QUESTIONS(FA3_IS_THERE)))
      problem = missing;
    else if (CUresult result = driver.cuInit(0); result != CUDA_SUCCESS)
      problem = "no usable GPU: cuInit returned error " + std::to_string(result);
#undef FA3_IS_THERE
  }
};

const Loaded& loaded() {
  static const Loaded instance;
  return instance;
}

#define FA3_ASK(function, ...) check(any_driver().function(__VA_ARGS__), #function)

int attribute(CUdevice_attribute which, CUdevice device) {
  int value = 0;
  FA3_ASK(cuDeviceGetAttribute, &value, which, device);
  return value;
}

}  // namespace

const Driver& any_driver() {
  if (!loaded().problem.empty()) throw CudaError(loaded().problem);
  return loaded().driver;
}

const Driver& driver() {
  if (!loaded().missing.empty()) throw CudaError(loaded().missing);
  return any_driver();
}

int driver_version() {
  int version = 0;
  if (loaded().driver.cuDriverGetVersion) loaded().driver.cuDriverGetVersion(&version);
  return version;
}

int device_count() {
  int count = 0;
  FA3_ASK(cuDeviceGetCount, &count);
  return count;
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  any_driver().cuGetErrorName(result, &name);
  throw CudaError(std::string(call) + ": " + (name ? name : std::to_string(result)));
}

std::string why_no_hopper() {
  try {
    driver();
    if (device_count() == 0) return "the driver finds no GPU";
    const DeviceInfo info = device_info();
    if (!info.is_hopper())
      return info.name + " is of compute capability " + info.compute_capability() + "; the kernels need 9.0 (Hopper)";
  } catch (const CudaError& error) {
    return error.what();
  }
  return "";
}

DeviceInfo device_info(int ordinal) {
  DeviceInfo info;
  CUdevice device;
  FA3_ASK(cuDeviceGet, &device, ordinal);
  char name[256] = {};
  FA3_ASK(cuDeviceGetName, name, sizeof name, device);
  info.name = name;
  FA3_ASK(cuDriverGetVersion, &info.driver_version);
  FA3_ASK(cuDeviceTotalMem, &info.memory, device);
  info.sms = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  info.max_clock_khz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
  info.memory_khz = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
  info.memory_bits = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
  info.cache_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
  info.major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  info.minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return info;
}

static CUcontext create_context(int ordinal) {
  CUdevice device;
  FA3_CU(cuDeviceGet, &device, ordinal);
  CUcontext context;
  FA3_CU(cuCtxCreate, &context, nullptr, CU_CTX_SCHED_AUTO, device);
  return context;
}
Context::Context(int ordinal) : Handle(create_context(ordinal)) {}

static CUstream create_stream() {
  CUstream stream;
  FA3_CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  return stream;
}
Stream::Stream() : Handle(create_stream()) {}

static CUevent create_event() {
  CUevent event;
  FA3_CU(cuEventCreate, &event, CU_EVENT_DEFAULT);
  return event;
}
Event::Event() : Handle(create_event()) {}

float Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  FA3_CU(cuEventElapsedTime, &milliseconds, start.get(), get());
  return milliseconds;
}

void Graph::begin(const Stream& stream) {
  FA3_CU(cuStreamBeginCapture, stream.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

Graph Graph::end(const Stream& stream) {
  Graph result;
  CUgraph graph;
  FA3_CU(cuStreamEndCapture, stream.get(), &graph);
  result.graph_ = Handle<CUgraph, &Driver::cuGraphDestroy>(graph);
  CUgraphExec executable;
  FA3_CU(cuGraphInstantiate, &executable, graph, 0);
  result.executable_ = Handle<CUgraphExec, &Driver::cuGraphExecDestroy>(executable);
  return result;
}

static CUdeviceptr allocate(size_t bytes) {
  static const bool from_pool = [] {
    const char* text = std::getenv("FA3_TEST_ALLOCATOR");
    return text && std::string_view(text) == "async";
  }();
  CUdeviceptr pointer;
  if (from_pool) {
    FA3_CU(cuMemAllocAsync, &pointer, bytes ? bytes : 1, nullptr);
    FA3_CU(cuStreamSynchronize, nullptr);
  } else {
    FA3_CU(cuMemAlloc, &pointer, bytes ? bytes : 1);
  }
  return pointer;
}
DeviceBuffer::DeviceBuffer(size_t bytes) : device_(allocate(bytes)), bytes_(bytes) {}

static void* allocate_on_host(size_t bytes) {
  void* pointer;
  FA3_CU(cuMemHostAlloc, &pointer, bytes ? bytes : 1, CU_MEMHOSTALLOC_DEVICEMAP);
  return pointer;
}
HostBuffer::HostBuffer(size_t bytes) : Handle(allocate_on_host(bytes)) {}

DeviceBuffer DeviceBuffer::for_tensor(size_t bytes) {
  static const double slow = [] {
    const char* text = std::getenv("FA3_TEST_SLOW_MEMORY");
    return text ? std::strtod(text, nullptr) : 0;
  }();
  static std::atomic<uint64_t> count = 51000000;
  if (slow == 0 || !Random(mix(seed_of_run(), count++)).chance(slow)) return DeviceBuffer(bytes);
  DeviceBuffer buffer;
  buffer.host_ = HostBuffer(bytes);
  buffer.bytes_ = bytes;
  return buffer;
}

// A copy from pageable memory returns before its last part reached the device, and our streams do not wait for the
// legacy stream: hence the synchronisation.
void DeviceBuffer::upload(const void* source, size_t bytes, size_t offset) const {
  if (bytes == 0) return;
  FA3_CU(cuMemcpyHtoD, get() + offset, source, bytes);
  FA3_CU(cuStreamSynchronize, nullptr);
}

void DeviceBuffer::download(void* target, size_t bytes, size_t offset) const {
  if (bytes) FA3_CU(cuMemcpyDtoH, target, get() + offset, bytes);
}

void DeviceBuffer::fill(unsigned char byte) const {
  if (bytes_ == 0) return;
  FA3_CU(cuMemsetD8, get(), byte, bytes_);
  FA3_CU(cuStreamSynchronize, nullptr);
}

}  // namespace fa3::tools
