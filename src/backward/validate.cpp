#include <array>
#include <cstring>

#include "backward/backward.h"
#include "error.h"
#include "rules/attention.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

static_assert(sizeof(fa3_backward_params) ==
              sizeof(size_t) + sizeof(uint64_t) + 16 * sizeof(fa3_tensor) + 5 * sizeof(int32_t) + sizeof(float) +
                  sizeof(const char*));

// A tensor of the call, and what it becomes.
struct Argument {
  const char* name;
  const fa3_tensor& tensor;
  View& view;
  int rank;
  bool output;

  Expected expected(Rules rules) const {
    const bool host = rules == Rules::reference;
    return {name, rank, output, !host && rank == 4, rules != Rules::shapes, host};
  }
};
// The outputs first.
constexpr size_t outputs = 3, argument_count = 10;
std::array<Argument, argument_count> arguments_of(const fa3_backward_params& p, BackwardProblem& problem) {
  return {{{"dq", p.dq, problem.dq, 4, true},
           {"dk", p.dk, problem.dk, 4, true},
           {"dv", p.dv, problem.dv, 4, true},
           {"q", p.q, problem.q, 4, false},
           {"k", p.k, problem.k, 4, false},
           {"v", p.v, problem.v, 4, false},
           {"o", p.o, problem.o, 4, false},
           {"dout", p.dout, problem.dout, 4, false},
           {"lse", p.lse, problem.lse, 3, false},
           {"dlse", p.dlse, problem.dlse, 3, false}}};
}
std::array<NamedView, argument_count> tensors(const BackwardProblem& p) {
  return {{{"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}, {"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o},
           {"dout", &p.dout}, {"lse", &p.lse}, {"dlse", &p.dlse}}};
}

// Has this tensor a dtype that some call takes?
Status check_dtype_of(const char* name, int32_t dtype, bool device) {
  if (Status status = check_dtype(name, dtype)) return status;
  if (dtype == FA3_DTYPE_E4M3)
    return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is e4m3, which has no backward pass", name);
  if (device && dtype == FA3_DTYPE_FP32)
    return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is fp32; the kernels take bf16 and fp16", name);
  return FA3_OK;
}

// k and v are of q's dtype; on the device so are all others. q comes first, so that none is asked to be as it before it
// is right itself.
Status check_dtypes(const fa3_backward_params& p, const std::array<Argument, argument_count>& arguments, Rules rules) {
  const bool device = rules != Rules::reference;
  if (Status status = check_dtype_of("q", p.q.dtype, device)) return status;
  for (const Argument& argument : arguments) {
    if (argument.rank == 3) continue;
    const int32_t dtype = argument.tensor.dtype;
    if (Status status = check_dtype_of(argument.name, dtype, device)) return status;
    const bool as_q = device || &argument.tensor == &p.k || &argument.tensor == &p.v;
    if (as_q && dtype != p.q.dtype)
      return fail(invalid, "%s.dtype is %s, must be %s as q's", argument.name, dtype_name(dtype),
                  dtype_name(p.q.dtype));
  }
  return FA3_OK;
}

// The first `count` dims of `tensor` must be those of `like`.
Status check_like(const char* name, const fa3_tensor& tensor, const char* like_name, const fa3_tensor& like,
                  int count) {
  for (int i = 0; i < count; ++i) {
    if (tensor.dim[i] == like.dim[i]) continue;
    return fail(invalid, "%s.dim[%d] is %lld, must equal %s.dim[%d], which is %lld", name, i,
                ll(tensor.dim[i]), like_name, i, ll(like.dim[i]));
  }
  return FA3_OK;
}

// (batch, heads, seqlen_q) of q.
Status check_rows(const char* name, const fa3_tensor& tensor, const fa3_tensor& q) {
  constexpr int of_q[3] = {0, 2, 1};
  for (int i = 0; i < 3; ++i) {
    if (tensor.dim[i] == q.dim[of_q[i]]) continue;
    return fail(invalid, "%s.dim[%d] is %lld, must equal q.dim[%d], which is %lld", name, i,
                ll(tensor.dim[i]), of_q[i], ll(q.dim[of_q[i]]));
  }
  return FA3_OK;
}

Status check_shapes(const fa3_backward_params& p) {
  const fa3_tensor &q = p.q, &k = p.k;
  if (Status status = must_equal({"k", 0, k.dim[0]}, {"q", 0, q.dim[0]})) return status;
  if (Status status = must_equal({"k", 3, k.dim[3]}, {"q", 3, q.dim[3]})) return status;
  if (Status status = check_heads({"q", 2, q.dim[2]}, {"k", 2, k.dim[2]})) return status;
  if (Status status = check_like("v", p.v, "k", k, 3)) return status;
  if (Status status = check_like("o", p.o, "q", q, 3)) return status;
  if (Status status = must_equal({"o", 3, p.o.dim[3]}, {"v", 3, p.v.dim[3]})) return status;
  if (Status status = check_like("dout", p.dout, "o", p.o, 4)) return status;
  if (Status status = check_like("dq", p.dq, "q", q, 4)) return status;
  if (Status status = check_like("dk", p.dk, "k", k, 4)) return status;
  if (Status status = check_like("dv", p.dv, "v", p.v, 4)) return status;
  if (Status status = check_rows("lse", p.lse, q)) return status;
  return p.dlse.rank == 0 ? FA3_OK : check_rows("dlse", p.dlse, q);
}

}  // namespace

Status validate(const fa3_backward_params* params, Rules rules, BackwardProblem& problem) {
  // All but dlse are needed; what stands before it has defaults.
  fa3_backward_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_backward_params, mask),
                                         offsetof(fa3_backward_params, window_left), size))
    return status;
  std::memcpy(&p, params, size < sizeof p ? size : sizeof p);
  if (size < offsetof(fa3_backward_params, kernel) + sizeof p.kernel) p.kernel = nullptr;  // half a pointer is none
  problem = {};
  const auto arguments = arguments_of(p, problem);
  const auto is_there = [&](const Argument& argument) {
    return &argument.tensor != &p.dlse || argument.tensor.rank != 0;
  };
  if (p.flags & ~uint64_t{FA3_FLAG_DETERMINISTIC})
    return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                static_cast<unsigned long long>(p.flags));
  if (Status status = check_mask(p.mask)) return status;
  if (p.mask > FA3_MASK_CAUSAL_BOTTOM_RIGHT)
    return fail(FA3_ERROR_UNSUPPORTED, "mask is FA3_MASK_%s, which has no backward pass",
                p.mask == FA3_MASK_WINDOW ? "WINDOW" : "CHUNK");
  if (Status status = check_softmax_scale(p.softmax_scale)) return status;
  if (Status status = check_dtypes(p, arguments, rules)) return status;
  for (const Argument& argument : arguments) {
    if (!is_there(argument)) continue;
    if (argument.rank == 3)
      if (Status status = must_be_fp32(argument.name, argument.tensor.dtype)) return status;
    if (Status status = check_dims(argument.expected(rules), argument.tensor)) return status;
  }
  // Before shapes, so that no other tensor is asked to be as one that cannot stay.
  if (Status status = check_head_dims({"q", 3, p.q.dim[3]}, {"v", 3, p.v.dim[3]},
                                      p.q.dtype == FA3_DTYPE_FP32 ? 1 : 8))
    return status;
  if (Status status = check_shapes(p)) return status;
  for (const Argument& argument : arguments)
    if (is_there(argument))
      if (Status status = check_tensor(argument.expected(rules), argument.tensor, argument.view)) return status;
  if (rules != Rules::shapes)
    if (Status status = check_overlap(tensors(problem).data(), argument_count, outputs)) return status;
  static_cast<AttentionShape&>(problem) = shape_of(p.q, p.k, p.v, p.mask, p.softmax_scale);
  problem.kernel = p.kernel;
  problem.deterministic = p.flags & FA3_FLAG_DETERMINISTIC;
  return FA3_OK;
}

Status validate_workspace(const BackwardProblem& problem, void* workspace, size_t bytes, size_t needed) {
  return check_workspace(workspace, bytes, needed, tensors(problem).data(), argument_count);
}

}  // namespace fa3
