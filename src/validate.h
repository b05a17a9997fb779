// Every rule of fa3.h about parameters. Nothing here touches a driver, a device or the tensors' memory.
#pragma once
#include "problem.h"

namespace fa3 {

enum class Rules {
  device,     // fa3_forward: what the kernels and TMA accept
  shapes,     // as device, but data pointers are not looked at, so that a caller may ask before it allocates
  reference,  // host memory: fp32 as well, any strides that stay apart
};

fa3_status validate(const fa3_forward_params* params, Rules rules, Problem& problem);

// A workspace, of which `needed` bytes are used, becomes a view; overlaps are not looked at.
fa3_status check_workspace(void* workspace, size_t bytes, size_t needed, View& view);

// Of the problem's workspace, `needed` bytes are used.
fa3_status validate_workspace(const Problem& problem, void* workspace, size_t bytes, size_t needed);

// fa3_tensor_pack.
fa3_status pack(fa3_tensor* tensor);

// The rule of struct_size for a caller's struct: at least `minimum` bytes, and zero beyond the `known` ones.
fa3_status check_struct_size(const char* name, const void* data, size_t minimum, size_t known, size_t& size);

}  // namespace fa3
