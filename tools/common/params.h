// Zeroed parameter structs with their size set (the header's INIT macros leave g++ -Wextra warning in C++), and the
// workspace that parameters need.
#pragma once
#include <stdexcept>
#include <string>

#include "fa3.h"

namespace fa3::tools {

inline fa3_forward_params forward_params() {
  fa3_forward_params params{};
  params.struct_size = sizeof params;
  return params;
}

inline fa3_kernel_info kernel_info() {
  fa3_kernel_info info{};
  info.struct_size = sizeof info;
  return info;
}

// For the current context's device, or one of so many multiprocessors.
inline size_t workspace_size(const fa3_forward_params& params, int multiprocessors = 0) {
  size_t bytes = 0;
  if (fa3_forward_workspace_size(&params, multiprocessors, &bytes) != FA3_OK)
    throw std::runtime_error(std::string("fa3_forward_workspace_size: ") + fa3_last_error_message());
  return bytes;
}

}  // namespace fa3::tools
