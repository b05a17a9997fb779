#include "device/modules.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/cubins.h"
#include "error.h"

namespace fa3 {
namespace {

// The table finds a context's entry by its handle, an address. Entries are never removed, but a context at the address
// of a destroyed one takes over its entry: there are as many as distinct addresses, however many contexts come and go.
// Modules are never unloaded: they go with their context.
constexpr int bucket_bits = 8;
Context* buckets[1 << bucket_bits];

Context*& bucket_of(CUcontext handle) {
  constexpr uint64_t scatter = 0x9e3779b97f4a7c15;  // neighbouring addresses into different buckets (Fibonacci hashing)
  return buckets[reinterpret_cast<uintptr_t>(handle) * scatter >> (64 - bucket_bits)];
}

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct Locked {
  Locked() { pthread_mutex_lock(&lock); }
  ~Locked() { pthread_mutex_unlock(&lock); }
};

// The calling thread's last context, so that a warm call takes no lock. The id is kept beside the entry, which may be
// taken over meanwhile.
thread_local struct {
  unsigned long long id;
  Context* context;
} last;

fa3_status attribute(const Driver& driver, CUdevice device, CUdevice_attribute which, int& value) {
  if (CUresult result = driver.device_get_attribute(&value, which, device))
    return cuda_error(driver, result, "cuDeviceGetAttribute");
  return FA3_OK;
}

fa3_status examine_device(const Driver& driver, Card& card) {
  CUdevice device;
  if (CUresult result = driver.ctx_get_device(&device)) return cuda_error(driver, result, "cuCtxGetDevice");
  int major, minor;
  if (fa3_status status = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major)) return status;
  if (fa3_status status = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor)) return status;
  if (major != 9 || minor != 0)
    return fail(FA3_ERROR_WRONG_DEVICE,
                "the current context's device is of compute capability %d.%d, must be 9.0 (Hopper)", major, minor);
  int multiprocessors, memory, bits, cache, clock;
  if (fa3_status status = attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, multiprocessors))
    return status;
  if (fa3_status status = attribute(driver, device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, memory)) return status;
  if (fa3_status status = attribute(driver, device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, bits)) return status;
  if (fa3_status status = attribute(driver, device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, cache)) return status;
  if (fa3_status status = attribute(driver, device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, clock)) return status;
  card = card_of_device(multiprocessors, memory_bytes_per_us(memory, bits), cache, clock);
  return FA3_OK;
}

// Under the lock.
fa3_status find_or_add(const Driver& driver, CUcontext handle, unsigned long long id, Context*& context) {
  Context*& bucket = bucket_of(handle);
  for (context = bucket; context && context->handle != handle; context = context->next) {
  }
  if (context && context->id == id) return FA3_OK;
  Card card;
  if (fa3_status status = examine_device(driver, card)) return status;
  if (!context) {
    context = static_cast<Context*>(std::calloc(1, sizeof(Context)));
    if (!context)
      return fail(FA3_ERROR_OUT_OF_MEMORY, "no host memory for a context's entry of %zu bytes", sizeof(Context));
    context->handle = handle;
    context->next = bucket;
    bucket = context;
  }
  std::memset(context->functions, 0, sizeof context->functions);
  context->id = id;
  context->card = card;
  return FA3_OK;
}

fa3_status load_module(const Driver& driver, int row, CUfunction& function) {
  const Row& described = rows[row];
  char call[128];
  const auto failed = [&](CUresult result, const char* name) {
    std::snprintf(call, sizeof call, "%s for %s", name, described.name);
    return cuda_error(driver, result, call);
  };
  CUmodule module;
  if (CUresult result = driver.module_load_data(&module, fa3_cubins[row].data))
    return failed(result, "cuModuleLoadData");
  CUresult result = driver.module_get_function(&function, module, described.name);
  const char* name = "cuModuleGetFunction";
  if (!result) {
    name = "cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)";
    result =
        driver.func_set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, described.smem_bytes);
  }
  if (!result) return FA3_OK;
  const fa3_status status = failed(result, name);
  driver.module_unload(module);
  return status;
}

// Under the lock.
fa3_status load(const Driver& driver, Context& context, int row, CUfunction& function) {
  if (context.functions[row] == nullptr) {
    // Loading enqueues nothing, so it need not disturb a capture that another thread has under way in this context.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (CUresult result = driver.thread_exchange_stream_capture_mode(&mode))
      return cuda_error(driver, result, "cuThreadExchangeStreamCaptureMode");
    const fa3_status status = load_module(driver, row, function);
    driver.thread_exchange_stream_capture_mode(&mode);
    if (status) return status;
    __atomic_store_n(&context.functions[row], function, __ATOMIC_RELEASE);
  }
  function = context.functions[row];
  return FA3_OK;
}

fa3_status captures(const Driver& driver, CUstream stream, bool& capturing) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.stream_is_capturing(stream, &capture);
  // The legacy default stream answers so while any other stream of the context captures.
  const bool implicit = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  capturing = implicit || capture != CU_STREAM_CAPTURE_STATUS_NONE;
  return !result || implicit ? FA3_OK : cuda_error(driver, result, "cuStreamIsCapturing");
}

bool means_no_context(CUresult result) {
  return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED ||
         result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

fa3_status current_context(const Driver& driver, Context*& context) {
  // Of whichever context is current: its handle may be of one that another thread has destroyed.
  unsigned long long id;
  const CUresult result = driver.ctx_get_id(nullptr, &id);
  if (means_no_context(result))
    return cuda_error(driver, result, "a context must be current in the calling thread: cuCtxGetId",
                      FA3_ERROR_NO_CONTEXT);
  if (result) return cuda_error(driver, result, "cuCtxGetId");
  if (last.context && last.id == id) {
    context = last.context;
    return FA3_OK;
  }
  CUcontext handle;
  if (CUresult failed = driver.ctx_get_current(&handle)) return cuda_error(driver, failed, "cuCtxGetCurrent");
  Locked locked;
  if (fa3_status status = find_or_add(driver, handle, id, context)) return status;
  last = {id, context};
  return FA3_OK;
}

}  // namespace

fa3_status find_device(Device& device) {
  if (fa3_status status = get_driver(device.driver)) return status;
  return current_context(*device.driver, device.context);
}

fa3_status find_card(int multiprocessors, Card& card) {
  constexpr int most = 1024;  // no GPU comes near this
  if (multiprocessors < 0 || multiprocessors > most)
    return fail(FA3_ERROR_INVALID_ARGUMENT,
                "multiprocessors is %d, must be from 1 to %d, or 0 for the current context's device", multiprocessors,
                most);
  if (multiprocessors != 0) {
    card = assumed_card(multiprocessors);
    return FA3_OK;
  }
  Device device;
  if (fa3_status status = find_device(device)) return status;
  card = device.context->card;
  return FA3_OK;
}

fa3_status get_function(const Device& device, int row, CUstream stream, CUfunction& function) {
  function = __atomic_load_n(&device.context->functions[row], __ATOMIC_ACQUIRE);
  if (function) return FA3_OK;
  bool capturing;
  if (fa3_status status = captures(*device.driver, stream, capturing)) return status;
  if (capturing)
    return fail(FA3_ERROR_NOT_LOADED,
                "%s is not loaded and the stream is capturing: %s before the capture", rows[row].name,
                rows[row].chosen ? "call fa3_preload" : "fa3_preload does not load it, run it once");
  Locked locked;
  return load(*device.driver, *device.context, row, function);
}

fa3_status load_all(const Device& device) {
  Locked locked;
  CUfunction function;
  for (int row = 0; row < row_count; ++row)
    if (rows[row].chosen)
      if (fa3_status status = load(*device.driver, *device.context, row, function)) return status;
  return FA3_OK;
}

}  // namespace fa3
