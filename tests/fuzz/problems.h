// Parameters that are right, most of them small, and changes that make some of them wrong.
#pragma once
#include <string>
#include <vector>

#include "choices.h"
#include "fa3.h"

namespace fa3::test {

// The tensors of a struct: name, place, and whether the call writes it.
struct Member {
  const char* name;
  fa3_tensor* tensor;
  bool output;
};
std::vector<Member> members(fa3_forward_params& p);
std::vector<Member> members(fa3_backward_params& p);
std::vector<Member> members(fa3_quantize_params& p);
std::vector<Member> members(fa3_append_params& p);
std::vector<Member> members(fa3_combine_params& p);

// `host`: what only the reference takes may come, too.
void make(fa3_forward_params& p, Choices& choices, bool host);
void make(fa3_backward_params& p, Choices& choices, bool host);
void make(fa3_quantize_params& p, Choices& choices, bool host);
void make(fa3_append_params& p, Choices& choices, bool host);
void make(fa3_combine_params& p, Choices& choices, bool host);

int64_t odd_number(Choices& choices);
void change(fa3_tensor& tensor, Choices& choices);
// Anything but a tensor and struct_size.
void change_scalars(fa3_forward_params& p, Choices& choices);
void change_scalars(fa3_backward_params& p, Choices& choices);
void change_scalars(fa3_quantize_params& p, Choices& choices);
void change_scalars(fa3_append_params& p, Choices& choices);
void change_scalars(fa3_combine_params& p, Choices& choices);

// The name of some kernel, another text, or none.
const char* any_kernel(Choices& choices);

}  // namespace fa3::test
