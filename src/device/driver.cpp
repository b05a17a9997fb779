#include "device/driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include "error.h"

namespace fa3 {
namespace {

constexpr const char* library_name = "libcuda.so.1";

Driver table;
void* library;        // null until it was opened; read and written atomically
const char* missing;  // the first entry point that it does not have
pthread_once_t once = PTHREAD_ONCE_INIT;

void* lookup(const char* symbol) {
  void* address = dlsym(__atomic_load_n(&library, __ATOMIC_ACQUIRE), symbol);
  if (address == nullptr && missing == nullptr) missing = symbol;
  return address;
}

void look_up_all() {
#define FA3_LOOKUP(name, symbol, arguments) table.name = reinterpret_cast<CUresult(*) arguments>(lookup(symbol));
  FA3_DRIVER_FUNCTIONS(FA3_LOOKUP)
#undef FA3_LOOKUP
}

}  // namespace

fa3_status get_driver(const Driver*& driver) {
  // Tried again by the next call if it fails, as it does also for want of memory. Threads that come together get the
  // same handle. Never closed: the driver does not survive being unloaded.
  if (__atomic_load_n(&library, __ATOMIC_ACQUIRE) == nullptr) {
    void* const opened = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
      const char* error = dlerror();
      return fail(FA3_ERROR_NO_DRIVER, "the driver's library cannot be loaded: %s", error ? error : library_name);
    }
    __atomic_store_n(&library, opened, __ATOMIC_RELEASE);
  }
  pthread_once(&once, look_up_all);
  if (missing)
    return fail(FA3_ERROR_NO_DRIVER, "%s has no %s: the driver is older than CUDA 12.0", library_name, missing);
  driver = &table;
  return FA3_OK;
}

fa3_status cuda_error(const Driver& driver, CUresult result, const char* call, fa3_status status) {
  const char *name = nullptr, *text = nullptr;
  driver.get_error_name(result, &name);
  driver.get_error_string(result, &text);
  if (!name || !text) return fail(status, "%s: CUDA error %d", call, static_cast<int>(result));
  return fail(status, "%s: CUDA error %d, %s (%s)", call, static_cast<int>(result), name, text);
}

}  // namespace fa3
