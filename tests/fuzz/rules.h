// What fa3.h says of parameters, written from the header alone: an oracle that shares nothing with the library.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fa3.h"

namespace fa3::test {

enum class Mode {
  device,     // the fa3_*_check functions
  shapes,     // workspace sizes and kernel infos: data pointers are not looked at
  reference,  // fa3_reference_*
};

// Names of arguments. A call with a wrong one must be refused; one that is open may be: there the header leaves it to
// the library (what it cannot tell to be apart, strides of tensors without elements, numbers near its limits).
struct Verdict {
  std::vector<std::string> wrong, open;
  bool whole = false;  // every rule was looked at: none needed what another one found wrong

  bool may_be_accepted() const { return wrong.empty(); }
  bool may_be_refused() const { return !wrong.empty() || !open.empty(); }
  // Does a refusal's message name an argument that is wrong or open, as far as these are known?
  bool explains(const std::string& message) const;
};

// `params` are so many bytes as its struct_size says, as far as that is sensible, and 8 at least.
Verdict judge(const fa3_forward_params* params, Mode mode);
Verdict judge(const fa3_backward_params* params, Mode mode);
Verdict judge(const fa3_quantize_params* params, Mode mode);
Verdict judge(const fa3_append_params* params, Mode mode);
Verdict judge(const fa3_combine_params* params, Mode mode);
Verdict judge(const fa3_tensor& tensor);  // fa3_tensor_pack

// What the library makes of the bytes: fields that an older client does not have are zero.
template <class Params>
Params complete(const Params* params);

using Wide = __int128;

int element_bytes(int32_t dtype);
bool has_elements(const fa3_tensor& tensor);
// Of a tensor with elements: its first and last byte's distance from data, the latter exclusive.
void reach(const fa3_tensor& tensor, Wide& low, Wide& high);
// The distances of all elements from data, in bytes.
std::vector<int64_t> places(const fa3_tensor& tensor);

}  // namespace fa3::test
