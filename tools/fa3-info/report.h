// What fa3-info prints.
#pragma once
#include "machine.h"

namespace fa3::info {

struct Report {
  Machine machine;
  std::vector<fa3_kernel_info> kernels;
  bool loaded;  // was that asked for?
  std::optional<double> library_load_ms;

  std::string text() const;
  std::string json() const;
};

}  // namespace fa3::info
