#include "report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "half.h"
#include "params.h"

namespace fa3::info {
namespace {

using Json = nlohmann::ordered_json;

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char line[1024];
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(line, sizeof line, pattern, values);
  va_end(values);
  return line;
}

std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

const char* kind_name(int32_t kind) {
  return kind == FA3_KERNEL_FORWARD ? "forward" : kind == FA3_KERNEL_BACKWARD ? "backward" : "pass";
}

bool is_chosen(const fa3_kernel_info& kernel) { return kernel.chosen; }

std::string line_of(const fa3_kernel_info& k) {
  const bool tiles = k.kind != FA3_KERNEL_PASS;
  const std::string tile = tiles ? format("%dx%d", k.block_q, k.block_kv) : "-";
  const std::string stages = tiles ? std::to_string(k.stages) : "-";
  const std::string registers =
      k.consumer_registers ? format("%d/%d", k.producer_registers, k.consumer_registers) : "-";
  return format("%-44s %-8s %8s %6s %7d %9s %8d  %s\n", k.name, kind_name(k.kind), tile.c_str(), stages.c_str(),
                k.threads, registers.c_str(), k.shared_memory_bytes, k.chosen ? "chosen" : "by name");
}

std::string line_of(const Device& device, int ordinal, bool loaded) {
  const tools::DeviceInfo& info = device.info;
  std::string line =
      format("device %d: %s, compute capability %s, %d multiprocessors, %.1f GiB: ", ordinal, info.name.c_str(),
             info.compute_capability().c_str(), info.sms, double(info.memory) / (1 << 30));
  if (!device.problem.empty()) return line + "cannot run the kernels: " + device.problem + "\n";
  line += "runs the kernels\n";
  if (loaded)
    line += format("  first call %.1f ms, fa3_preload %.1f ms, each in a new context\n", device.load.first_call_ms,
                   device.load.preload_ms);
  return line;
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json json_of(const fa3_kernel_info& k) {
  const bool is_pass = k.kind == FA3_KERNEL_PASS;
  return {{"name", k.name},
          {"kind", kind_name(k.kind)},
          {"dtype", is_pass ? Json() : Json(tools::dtype_name(fa3_dtype(k.dtype)))},
          {"head_dim", k.head_dim},
          {"head_dim_v", k.head_dim_v},
          {"causal", bool(k.causal)},
          {"block_q", k.block_q},
          {"block_kv", k.block_kv},
          {"stages", k.stages},
          {"threads", k.threads},
          {"producer_registers", k.producer_registers},
          {"consumer_registers", k.consumer_registers},
          {"shared_memory_bytes", k.shared_memory_bytes},
          {"chosen", bool(k.chosen)}};
}

Json json_of(const Device& device, bool loaded) {
  Json json = {{"name", device.info.name},
               {"compute_capability", device.info.compute_capability()},
               {"multiprocessors", device.info.sms},
               {"memory_bytes", device.info.memory},
               {"problem", or_null(device.problem)}};
  if (loaded && device.problem.empty())
    json.update({{"first_call_ms", device.load.first_call_ms}, {"preload_ms", device.load.preload_ms}});
  return json;
}

}  // namespace

std::string Report::text() const {
  std::string text =
      format("libfa3 %s, ABI %d: ", tools::library_version().c_str(), fa3_abi_version()) + library_path() + "\n";
  if (library_load_ms) text += format("  loaded in %.2f ms\n", *library_load_ms);
  text += machine.driver_version ? "driver: CUDA " + cuda_version(machine.driver_version) + "\n" : "driver: none\n";
  for (size_t i = 0; i < machine.devices.size(); ++i)
    text += line_of(machine.devices[i], int(i), loaded);
  text += format("\n%zu kernels, of which the library chooses %td by itself:\n", kernels.size(),
                 std::count_if(kernels.begin(), kernels.end(), is_chosen));
  text += format("%-44s %-8s %8s %6s %7s %9s %8s\n", "name", "kind", "tile", "stages", "threads", "registers",
                 "shared");
  for (const fa3_kernel_info& kernel : kernels) text += line_of(kernel);
  // Last, where it is still seen behind a list that is longer than the screen.
  text += machine.problem.empty() ? "\nThis machine can run the kernels.\n"
                                  : "\nThis machine cannot run the kernels: " + machine.problem + "\n";
  return text;
}

std::string Report::json() const {
  Json json = {{"version", tools::library_version()},
               {"abi_version", fa3_abi_version()},
               {"library", library_path()},
               {"driver", machine.driver_version ? Json(cuda_version(machine.driver_version)) : Json()},
               {"problem", or_null(machine.problem)},
               {"devices", Json::array()},
               {"kernels", Json::array()}};
  if (loaded) json["library_load_ms"] = library_load_ms ? Json(*library_load_ms) : Json();
  for (const Device& device : machine.devices) json["devices"].push_back(json_of(device, loaded));
  for (const fa3_kernel_info& kernel : kernels) json["kernels"].push_back(json_of(kernel));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fa3::info
