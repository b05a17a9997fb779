// Zeroed parameter structs with their size set (the header's INIT macros leave g++ -Wextra warning in C++), and what
// the library says about itself and about parameters: the workspace that they need, the kernel that would run them. A
// refusal is thrown.
#pragma once
#include <stdexcept>
#include <string>

#include "fa3.h"

namespace fa3::tools {

// Of the version's numbers, as in 10203.
inline std::string library_version() {
  const int version = fa3_version();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

inline fa3_forward_params forward_params() {
  fa3_forward_params params{};
  params.struct_size = sizeof params;
  return params;
}

inline fa3_backward_params backward_params() {
  fa3_backward_params params{};
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

inline size_t workspace_size(const fa3_backward_params& params) {
  size_t bytes = 0;
  if (fa3_backward_workspace_size(&params, &bytes) != FA3_OK)
    throw std::runtime_error(std::string("fa3_backward_workspace_size: ") + fa3_last_error_message());
  return bytes;
}

// Of the forward kernel, before and behind which there may be passes; or of the last launch, if all are passes.
inline fa3_kernel_info forward_kernel_info(const fa3_forward_params& params, int multiprocessors = 0) {
  fa3_kernel_info info = kernel_info();
  for (int launch = 0; launch == 0 || (launch < info.launches && info.kind == FA3_KERNEL_PASS); ++launch)
    if (fa3_forward_kernel_info(&params, multiprocessors, launch, &info) != FA3_OK)
      throw std::runtime_error(std::string("fa3_forward_kernel_info: ") + fa3_last_error_message());
  return info;
}

// Of the call's first launch that is no pass: before the backward kernel there is one, and behind it there may be more.
inline fa3_kernel_info backward_kernel_info(const fa3_backward_params& params, int multiprocessors = 0) {
  fa3_kernel_info info = kernel_info();
  for (int launch = 0; info.kind != FA3_KERNEL_BACKWARD; ++launch)
    if (fa3_backward_kernel_info(&params, multiprocessors, launch, &info) != FA3_OK)
      throw std::runtime_error(std::string("fa3_backward_kernel_info: ") + fa3_last_error_message());
  return info;
}

}  // namespace fa3::tools
