// Rules of fa3.h that all functions have: of their structs, of tensors that must stay apart, of the workspace. Nothing
// here touches a driver, a device or the tensors' memory.
#pragma once
#include "problem.h"

namespace fa3 {

enum class Rules {
  device,     // what the kernels and TMA accept
  shapes,     // as device, but data pointers are not looked at, so that a caller may ask before it allocates
  reference,  // host memory: fp32 as well, any strides that stay apart
};

// The rule of struct_size for a caller's struct: at least `minimum` bytes, and zero beyond the `known` ones.
fa3_status check_struct_size(const char* name, const void* data, size_t minimum, size_t known, size_t& size);

// Are the first `outputs` of the tensors apart from each other and from all others? One that is absent has no elements.
struct NamedView {
  const char* name;
  const View* view;
};
fa3_status check_overlap(const NamedView* tensors, size_t count, size_t outputs);

// Of a workspace `needed` bytes are used; none of the tensors may be in them. name: the caller's, of it.
fa3_status check_workspace(void* workspace, size_t bytes, size_t needed, const NamedView* tensors, size_t count,
                           const char* name = "workspace");

// The refusal of a kernel's name that this build does not have.
fa3_status unknown_kernel(const char* name);

}  // namespace fa3
