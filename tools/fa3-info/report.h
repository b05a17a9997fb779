// What fa3-info prints.
#pragma once
#include <optional>

#include "machine.h"

namespace fa3::info {

struct Report {
  Machine machine;
  std::vector<fa3_kernel_info> kernels;
  std::optional<double> library_load_ms;  // if loading was asked for

  std::string text() const;
  std::string json() const;
};

}  // namespace fa3::info
