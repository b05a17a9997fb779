// Zeroed parameter structs with their size set (the header's INIT macros leave g++ -Wextra warning in C++).
#pragma once
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

}  // namespace fa3::tools
