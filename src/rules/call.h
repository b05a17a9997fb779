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

// Of the problem's workspace, `needed` bytes are used.
fa3_status validate_workspace(const Problem& problem, void* workspace, size_t bytes, size_t needed);

// fa3_tensor_pack.
fa3_status pack(fa3_tensor* tensor);

// Rules that several functions have. `unit`: the head dimensions of q and v are multiples of it.
fa3_status check_heads(const fa3_tensor& q, const fa3_tensor& k);
fa3_status check_head_dims(const fa3_tensor& q, const fa3_tensor& v, int unit);
fa3_status check_mask(int32_t mask);
fa3_status check_softmax_scale(float scale);
double resolved_softmax_scale(float scale, int64_t head_dim);  // 0 is the default
// What q, k, v, mask and softmax_scale say, all of them valid.
AttentionShape shape_of(const fa3_tensor& q, const fa3_tensor& k, const fa3_tensor& v, int32_t mask,
                        float softmax_scale);

// Are the first `outputs` of the tensors apart from each other and from all others? One that is absent has no elements.
struct NamedView {
  const char* name;
  const View* view;
};
fa3_status check_overlap(const NamedView* tensors, size_t count, size_t outputs);

// Of a workspace `needed` bytes are used; none of the tensors may be in them.
fa3_status check_workspace(void* workspace, size_t bytes, size_t needed, const NamedView* tensors, size_t count);

// The rule of struct_size for a caller's struct: at least `minimum` bytes, and zero beyond the `known` ones.
fa3_status check_struct_size(const char* name, const void* data, size_t minimum, size_t known, size_t& size);

}  // namespace fa3
