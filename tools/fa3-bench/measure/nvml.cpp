#include "measure/nvml.h"

#include <dlfcn.h>

#include "cuda_driver.h"

namespace fa3::bench {

// From nvml.h, which CUDA's compiler packages do not bring.
using Init = int (*)();
using ByBusId = int (*)(const char*, void**);
using ClockInfo = int (*)(void*, int, unsigned*);
constexpr int nvml_clock_sm = 1;

Nvml::Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (!library_) return;
  const auto init = reinterpret_cast<Init>(dlsym(library_, "nvmlInit_v2"));
  const auto by_bus_id = reinterpret_cast<ByBusId>(dlsym(library_, "nvmlDeviceGetHandleByPciBusId_v2"));
  char bus_id[32] = {};  // names the same card to both libraries, whatever CUDA_VISIBLE_DEVICES says
  CUdevice device;
  FA3_CU(cuDeviceGet, &device, 0);
  FA3_CU(cuDeviceGetPCIBusId, bus_id, sizeof bus_id, device);
  if (!init || !by_bus_id || init() != 0 || by_bus_id(bus_id, &device_) != 0) device_ = nullptr;
}

Nvml::~Nvml() {
  if (library_) dlclose(library_);
}

double Nvml::sm_clock_mhz() const {
  if (!device_) return 0;
  const auto clock_info = reinterpret_cast<ClockInfo>(dlsym(library_, "nvmlDeviceGetClockInfo"));
  unsigned mhz = 0;
  return clock_info && clock_info(device_, nvml_clock_sm, &mhz) == 0 ? mhz : 0;
}

}  // namespace fa3::bench
