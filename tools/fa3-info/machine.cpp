#include "machine.h"

#include <dlfcn.h>

#include <chrono>
#include <filesystem>

#include "layout.h"
#include "params.h"

namespace fa3::info {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void require(fa3_status status, const char* call) {
  if (status != FA3_OK) throw tools::CudaError(std::string(call) + ": " + fa3_last_error_message());
}

std::string problem_of(const tools::DeviceInfo& device) {
  if (device.is_hopper()) return "";
  return "compute capability " + device.compute_capability() + "; the kernels need 9.0 (Hopper)";
}

// One problem of its own for all: the devices' stand with them.
std::string problem_of(const std::vector<Device>& devices) {
  for (const Device& device : devices)
    if (device.problem.empty()) return "";
  if (devices.empty()) return "the driver finds no GPU";
  return devices.size() == 1 ? devices[0].info.name + ": " + devices[0].problem : "no device can run the kernels";
}

double first_call_ms(int ordinal) {
  constexpr int64_t rows = 128, head_dim = 128;
  const tools::Context context(ordinal);
  const tools::Stream stream;
  const auto layout = tools::Layout::packed({1, rows, 1, head_dim});
  const size_t bytes = size_t(layout.count()) * 2;
  const tools::DeviceBuffer memory(4 * bytes);
  memory.fill(0);
  fa3_forward_params params = tools::forward_params();
  fa3_tensor* const tensors[] = {&params.q, &params.k, &params.v, &params.o};
  for (size_t i = 0; i < 4; ++i) *tensors[i] = layout.tensor(memory.at(i * bytes), FA3_DTYPE_BF16);
  const tools::DeviceBuffer workspace(tools::workspace_size(params));
  const auto start = Clock::now();
  require(fa3_forward(&params, workspace.at(0), workspace.size(), stream.get()), "fa3_forward");
  stream.synchronize();
  return ms_since(start);
}

double preload_ms(int ordinal) {
  const tools::Context context(ordinal);
  const auto start = Clock::now();
  require(fa3_preload(), "fa3_preload");
  return ms_since(start);
}

}  // namespace

std::string library_path() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&fa3_version), &found) == 0) return "";
  std::error_code ignored;
  const auto path = std::filesystem::canonical(found.dli_fname, ignored);
  return path.empty() ? found.dli_fname : path.string();
}

Machine this_machine() {
  Machine machine;
  machine.driver_version = tools::driver_version();
  // Without a context it gets no further than to the driver, and says whether the library can use that.
  if (fa3_preload() == FA3_ERROR_NO_DRIVER) machine.problem = fa3_last_error_message();
  try {
    for (int i = 0, count = tools::device_count(); i < count; ++i) {
      const tools::DeviceInfo info = tools::device_info(i);
      const std::string& without_driver = machine.problem;
      machine.devices.push_back({info, without_driver.empty() ? problem_of(info) : without_driver, {}});
    }
    if (machine.problem.empty()) machine.problem = problem_of(machine.devices);
  } catch (const tools::CudaError& error) {
    if (machine.problem.empty()) machine.problem = error.what();
  }
  return machine;
}

std::optional<double> library_load_ms() {
  const std::string path = library_path();
  const auto start = Clock::now();
  void* const library = dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const double ms = ms_since(start);
  if (!library) return std::nullopt;
  dlclose(library);
  return ms;
}

void load(Machine& machine) {
  for (int i = 0; i < int(machine.devices.size()); ++i) {
    Device& device = machine.devices[size_t(i)];
    if (!device.problem.empty()) continue;
    try {
      device.load = {first_call_ms(i), preload_ms(i)};
    } catch (const std::runtime_error& error) {
      device.problem = error.what();
    }
  }
  if (machine.problem.empty()) machine.problem = problem_of(machine.devices);
}

std::vector<fa3_kernel_info> kernels() {
  std::vector<fa3_kernel_info> all;
  for (int i = 0; i < fa3_kernel_count(); ++i) {
    all.push_back(tools::kernel_info());
    require(fa3_kernel_info_at(i, &all.back()), "fa3_kernel_info_at");
  }
  return all;
}

}  // namespace fa3::info
