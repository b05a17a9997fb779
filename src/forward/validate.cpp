#include <array>
#include <cstring>

#include "error.h"
#include "forward/forward.h"
#include "forward/scales.h"
#include "rules/attention.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

// No field was ever put into padding, so there is none.
static_assert(sizeof(fa3_forward_params) == sizeof(size_t) + sizeof(uint64_t) + 11 * sizeof(fa3_tensor) +
                                                sizeof(int32_t) + sizeof(float) + sizeof(const char*));

constexpr uint64_t known_flags = FA3_FLAG_DETERMINISTIC | FA3_FLAG_TWO_LEVEL;
static_assert(known_flags < uint64_t{1} << 31, "C11 has no enumerator for this flag");

// k and v are of q's dtype. On the device so is o, but for e4m3 it may be a 16-bit dtype, too; the reference rounds to
// any dtype of o that can be had without a scale.
Status check_dtypes(const fa3_forward_params& p, Rules rules) {
  const bool device = rules != Rules::reference, is_e4m3 = p.q.dtype == FA3_DTYPE_E4M3;
  const struct {
    const char* name;
    int32_t dtype;
    bool as_q;
  } tensors[] = {{"q", p.q.dtype, true},
                 {"k", p.k.dtype, true},
                 {"v", p.v.dtype, true},
                 {"o", p.o.dtype, !is_e4m3 && (device || p.o.dtype == FA3_DTYPE_E4M3)}};
  for (const auto& tensor : tensors) {
    if (Status status = check_dtype(tensor.name, tensor.dtype)) return status;
    if (device && tensor.dtype == FA3_DTYPE_FP32)
      return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is fp32; the kernels take bf16, fp16 and e4m3", tensor.name);
    if (tensor.as_q && tensor.dtype != p.q.dtype)
      return fail(invalid, "%s.dtype is %s, must be %s as q's", tensor.name, dtype_name(tensor.dtype),
                  dtype_name(p.q.dtype));
  }
  if ((p.flags & FA3_FLAG_TWO_LEVEL) && !is_e4m3)
    return fail(invalid, "flags has FA3_FLAG_TWO_LEVEL, which is for e4m3; q.dtype is %s", dtype_name(p.q.dtype));
  return check_presence(p);
}

Status check_shapes(const fa3_forward_params& p) {
  const int64_t *q = p.q.dim, *k = p.k.dim, *v = p.v.dim, *o = p.o.dim;
  const Named pairs[][2] = {
      {{"k.dim[0]", k[0]}, {"q.dim[0]", q[0]}}, {{"o.dim[0]", o[0]}, {"q.dim[0]", q[0]}},
      {{"o.dim[1]", o[1]}, {"q.dim[1]", q[1]}}, {{"o.dim[2]", o[2]}, {"q.dim[2]", q[2]}},
      {{"k.dim[3]", k[3]}, {"q.dim[3]", q[3]}}, {{"o.dim[3]", o[3]}, {"v.dim[3]", v[3]}},
  };
  const Named pairs_of_v[][2] = {
      {{"v.dim[0]", v[0]}, {"q.dim[0]", q[0]}},
      {{"v.dim[1]", v[1]}, {"k.dim[1]", k[1]}},
      {{"v.dim[2]", v[2]}, {"k.dim[2]", k[2]}},
  };
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  for (const auto& pair : pairs_of_v)
    if (Status status = has_v_tiles(p) ? FA3_OK : must_equal(pair[0], pair[1])) return status;
  return check_heads(p.q, p.k);
}

Status check_lse(const fa3_forward_params& p) {
  if (Status status = must_be_fp32("lse", p.lse.dtype)) return status;
  const Named pairs[][2] = {
      {{"lse.dim[0]", p.lse.dim[0]}, {"q.dim[0]", p.q.dim[0]}},
      {{"lse.dim[1]", p.lse.dim[1]}, {"q.dim[2]", p.q.dim[2]}},
      {{"lse.dim[2]", p.lse.dim[2]}, {"q.dim[1]", p.q.dim[1]}},
  };
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  return FA3_OK;
}

Status check_scalars(const fa3_forward_params& p) {
  if (p.flags & ~known_flags)
    return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                static_cast<unsigned long long>(p.flags));
  if (Status status = check_mask(p.mask)) return status;
  return check_softmax_scale(p.softmax_scale);
}

// The outputs first.
constexpr size_t outputs = 2, tensor_count = 11;
std::array<NamedView, tensor_count> tensors(const ForwardProblem& problem) {
  return {{{"o", &problem.o},
           {"lse", &problem.lse},
           {"q", &problem.q},
           {"k", &problem.k},
           {"v", &problem.v},
           {"q_scale", &problem.q_scale},
           {"k_scale", &problem.k_scale},
           {"v_scale", &problem.v_scale},
           {"o_scale", &problem.o_scale},
           {"v_mean", &problem.v_mean},
           {"lse_offset", &problem.lse_offset}}};
}

void resolve(const fa3_forward_params& p, ForwardProblem& problem) {
  static_cast<AttentionShape&>(problem) = shape_of(p.q, p.k, p.v, p.mask, p.softmax_scale);
  problem.kernel = p.kernel;
  problem.v_tiles = has_v_tiles(p);
  problem.two_level = p.flags & FA3_FLAG_TWO_LEVEL;
}

}  // namespace

Status validate(const fa3_forward_params* params, Rules rules, ForwardProblem& problem) {
  // Without q, k, v and o there is nothing to do; every later field has a default.
  fa3_forward_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_forward_params, lse), sizeof p, size))
    return status;
  std::memcpy(&p, params, size < sizeof p ? size : sizeof p);
  if (size < offsetof(fa3_forward_params, kernel) + sizeof p.kernel) p.kernel = nullptr;  // half a pointer is none

  const bool host = rules == Rules::reference;
  const bool pointers = rules != Rules::shapes;
  const Expected q{"q", 4, false, !host, pointers, host};
  const Expected k{"k", 4, false, !host, pointers, host};
  const Expected v{"v", 4, false, !host, pointers, host};
  const Expected o{"o", 4, true, !host, pointers, host};
  const Expected lse{"lse", 3, true, false, pointers, host};

  problem = {};
  problem.wants_lse = p.lse.data != nullptr;
  if (Status status = check_scalars(p)) return status;
  if (Status status = check_dtypes(p, rules)) return status;
  if (Status status = check_dims(q, p.q)) return status;
  if (Status status = check_dims(k, p.k)) return status;
  if (p.q.dtype == FA3_DTYPE_E4M3 && p.v.rank != 4 && p.v.rank != 5)
    return fail(invalid, "v.rank is %d, must be 4, or 5 for tiles", p.v.rank);
  if (Status status = has_v_tiles(p) ? check_v_tiles_dims(p) : check_dims(v, p.v)) return status;
  if (Status status = check_dims(o, p.o)) return status;
  // Before shapes, so that no other tensor is asked to be as one that cannot stay.
  const int unit = p.q.dtype == FA3_DTYPE_FP32 ? 1 : p.q.dtype == FA3_DTYPE_E4M3 ? 16 : 8;
  if (Status status = check_head_dims(p.q, p.v, unit)) return status;
  if (Status status = check_shapes(p)) return status;
  if (Status status = check_tensor(q, p.q, problem.q)) return status;
  if (Status status = check_tensor(k, p.k, problem.k)) return status;
  if (Status status = has_v_tiles(p) ? check_v_tiles(p, rules, problem.v) : check_tensor(v, p.v, problem.v))
    return status;
  if (Status status = check_tensor(o, p.o, problem.o)) return status;
  if (problem.wants_lse) {
    if (Status status = check_dims(lse, p.lse)) return status;
    if (Status status = check_lse(p)) return status;
    if (Status status = check_tensor(lse, p.lse, problem.lse)) return status;
  }
  if (Status status = check_scales(p, rules, problem)) return status;
  if (pointers)
    if (Status status = check_overlap(tensors(problem).data(), tensor_count, outputs)) return status;
  resolve(p, problem);
  return FA3_OK;
}

Status validate_workspace(const ForwardProblem& problem, void* workspace, size_t bytes, size_t needed) {
  return check_workspace(workspace, bytes, needed, tensors(problem).data(), tensor_count);
}

}  // namespace fa3
