#include "rules/rotary.h"

#include "error.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

Status check_table(const char* name, const fa3_tensor& tensor, int64_t head_dim, bool pointers, View& view) {
  const Expected expected{name, 2, false, false, pointers, false};
  if (Status status = must_be_fp32(name, tensor.dtype)) return status;
  if (Status status = check_dims(expected, tensor)) return status;
  if (tensor.dim[1] % 8 != 0 || 2 * tensor.dim[1] > head_dim)
    return fail(invalid,
                "%s.dim[1] (rotary_dim / 2) is %lld, must be a multiple of 8 up to head_dim / 2, which is %lld",
                name, ll(tensor.dim[1]), ll(head_dim / 2));
  if (Status status = check_contiguous(name, tensor)) return status;
  if (Status status = check_multiples(name, tensor, 1, 4)) return status;
  if (Status status = check_tensor(expected, tensor, view)) return status;
  if (pointers && reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0)
    return fail(invalid, "%s.data is %p, must be aligned to 16 bytes", name, tensor.data);
  return FA3_OK;
}

}  // namespace

Status check_rotary(const fa3_tensor& cos, const fa3_tensor& sin, int64_t head_dim, bool pointers, Rotary& rotary) {
  if (is_there(cos) != is_there(sin))
    return fail(invalid, "%s is absent, must be given where %s is", is_there(cos) ? "rotary_sin" : "rotary_cos",
                is_there(cos) ? "rotary_cos" : "rotary_sin");
  if (!is_there(cos)) return FA3_OK;
  if (Status status = check_table("rotary_cos", cos, head_dim, pointers, rotary.cos)) return status;
  if (Status status = check_table("rotary_sin", sin, head_dim, pointers, rotary.sin)) return status;
  if (Status status = must_equal({"rotary_sin", 1, sin.dim[1]}, {"rotary_cos", 1, cos.dim[1]})) return status;
  rotary.dim = 2 * cos.dim[1];
  return FA3_OK;
}

}  // namespace fa3
