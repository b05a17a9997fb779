#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>

#include "error.h"

namespace fa3 {
namespace {

constexpr const char* library_name = "libcuda.so.1";

Driver table;
bool found;
char reason[256];
pthread_once_t once = PTHREAD_ONCE_INIT;

void* lookup(void* library, const char* symbol) {
  void* address = dlsym(library, symbol);
  if (address == nullptr && reason[0] == '\0')
    std::snprintf(reason, sizeof reason, "%s has no %s: the driver is older than CUDA 12.0", library_name, symbol);
  return address;
}

void open() {
  // Never closed: the driver does not survive being unloaded.
  void* library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    std::snprintf(reason, sizeof reason, "no CUDA driver: %s", error ? error : library_name);
    return;
  }
#define FA3_LOOKUP(name, symbol, arguments) \
  table.name = reinterpret_cast<CUresult(*) arguments>(lookup(library, symbol));
  FA3_DRIVER_FUNCTIONS(FA3_LOOKUP)
#undef FA3_LOOKUP
  found = reason[0] == '\0';
}

}  // namespace

fa3_status get_driver(const Driver*& driver) {
  pthread_once(&once, open);
  if (!found) return fail(FA3_ERROR_NO_DRIVER, "%s", reason);
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
