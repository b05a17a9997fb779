// What this machine has for libfa3: the library itself, the driver, the devices, and what is in the way.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "fa3.h"

namespace fa3::info {

// The file that fa3_version is in: the library, or this program if it is linked statically.
std::string library_path();

struct Load {
  double first_call_ms = 0, preload_ms = 0;
};

struct Device {
  tools::DeviceInfo info;
  std::string problem;  // why it cannot run the kernels; "" if it can
  Load load;            // if it was asked for
};

struct Machine {
  int driver_version = 0;  // of CUDA, as in 13000; 0: none
  std::string problem;     // why no device can run the kernels; "" if one can
  std::vector<Device> devices;
};

Machine this_machine();

// Time to map the library once more, from files that the system has at hand. None if it is part of this program.
std::optional<double> library_load_ms();

// Runs a first call, and loads all kernels that the library chooses, on each device that can: both in a new context. A
// device on which that fails has a problem.
void load(Machine& machine);

std::vector<fa3_kernel_info> kernels();

}  // namespace fa3::info
