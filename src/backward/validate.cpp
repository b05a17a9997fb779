#include <array>
#include <cstring>
#include <utility>

#include "backward/backward.h"
#include "error.h"
#include "integers.h"
#include "rules/attention.h"
#include "rules/scales.h"
#include "rules/planned.h"
#include "rules/tensor.h"
#include "rules/together.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

static_assert(sizeof(fa3_backward_params) ==
              sizeof(size_t) + sizeof(uint64_t) + 22 * sizeof(fa3_tensor) + 6 * sizeof(int32_t) + 2 * sizeof(float) +
                  sizeof(const char*));

// A tensor of the call with rows of queries or keys, and what it becomes. The rank is that of a batched one; a packed
// one gets a batch of 1 in front.
struct Argument {
  const char* name;
  fa3_tensor& tensor;
  View& view;
  int rank;
  bool packed, output;

  Expected expected(Rules rules) const {
    const bool host = rules == Rules::reference;
    return {name, rank, output, !host && rank == 4, rules != Rules::shapes, host, packed ? -1 : 0};
  }
  Status check_rank_and_dims(Rules rules) const {
    Expected wanted = expected(rules);
    return packed ? lift(wanted, tensor) : check_dims(wanted, tensor);
  }
};
constexpr size_t argument_count = 10;
std::array<Argument, argument_count> arguments_of(fa3_backward_params& p, BackwardProblem& problem) {
  const bool packed_q = is_there(p.cu_seqlens_q), packed_k = is_there(p.cu_seqlens_k);
  return {{{"dq", p.dq, problem.dq, 4, packed_q, true},
           {"dk", p.dk, problem.dk, 4, packed_k, true},
           {"dv", p.dv, problem.dv, 4, packed_k, true},
           {"q", p.q, problem.q, 4, packed_q, false},
           {"k", p.k, problem.k, 4, packed_k, false},
           {"v", p.v, problem.v, 4, packed_k, false},
           {"o", p.o, problem.o, 4, packed_q, false},
           {"dout", p.dout, problem.dout, 4, packed_q, false},
           {"lse", p.lse, problem.lse, 3, packed_q, false},
           {"dlse", p.dlse, problem.dlse, 3, packed_q, false}}};
}

// All tensors of the problem, the outputs first.
constexpr size_t outputs = 4;
using Tensors = TensorList<argument_count + 6>;
Tensors tensors_of(const BackwardProblem& p) {
  return {p, {{"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}, {"dsinks", &p.dsinks}, {"q", &p.q}, {"k", &p.k},
              {"v", &p.v}, {"o", &p.o}, {"dout", &p.dout}, {"lse", &p.lse}, {"dlse", &p.dlse},
              {"q_scale", &p.q_scale}, {"k_scale", &p.k_scale}, {"v_scale", &p.v_scale}, {"v_mean", &p.v_mean},
              {"lse_offset", &p.lse_offset}}};
}

// The call whose gradients are wanted.
fa3_forward_params forward_of(const fa3_backward_params& p) {
  fa3_forward_params forward{};
  forward.q = p.q, forward.k = p.k, forward.v = p.v, forward.o = p.o, forward.lse = p.lse;
  forward.mask = p.mask, forward.softmax_scale = p.softmax_scale;
  forward.window_left = p.window_left, forward.window_right = p.window_right;
  forward.max_seqlen_q = p.max_seqlen_q, forward.max_seqlen_k = p.max_seqlen_k;
  forward.sinks = p.sinks;
  forward.cu_seqlens_q = p.cu_seqlens_q, forward.cu_seqlens_k = p.cu_seqlens_k;
  forward.seqused_q = p.seqused_q, forward.seqused_k = p.seqused_k;
  forward.softcap = p.softcap, forward.reserved = p.reserved, forward.alibi_slopes = p.alibi_slopes;
  forward.q_scale = p.q_scale, forward.k_scale = p.k_scale, forward.v_scale = p.v_scale;
  forward.v_mean = p.v_mean, forward.lse_offset = p.lse_offset;
  forward.flags = p.flags & FA3_FLAG_CENTERED_K;
  return forward;
}

// Has this tensor a dtype that some call takes?
Status check_dtype_of(const char* name, int32_t dtype, bool device, bool is_qkv) {
  if (Status status = check_dtype(name, dtype)) return status;
  if (dtype == FA3_DTYPE_E4M3 && !is_qkv)
    return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is e4m3, which only q, k and v have in the backward pass", name);
  if (device && dtype == FA3_DTYPE_FP32)
    return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is fp32; the kernels take bf16 and fp16%s", name,
                is_qkv ? ", of q, k and v also e4m3" : "");
  return FA3_OK;
}

// Are dq, dk and dv float32? On the device all are, or none.
Status check_fp32_gradients(const fa3_backward_params& p, Rules rules, GradientStore& store) {
  const std::pair<const char*, int32_t> gradients[] = {
      {"dq", p.dq.dtype}, {"dk", p.dk.dtype}, {"dv", p.dv.dtype}};
  const bool adds = p.flags & FA3_FLAG_ACCUMULATE, device = rules != Rules::reference;
  const bool any = p.dq.dtype == FA3_DTYPE_FP32 || p.dk.dtype == FA3_DTYPE_FP32 || p.dv.dtype == FA3_DTYPE_FP32;
  store = adds ? GradientStore::added_fp32 : device && any ? GradientStore::fp32 : GradientStore::rounded;
  for (const auto& [name, dtype] : gradients)
    if (store != GradientStore::rounded && dtype != FA3_DTYPE_FP32)
      return fail(invalid, "%s.dtype is %s, must be fp32 %s", name, dtype_name(dtype),
                  adds ? "with FA3_FLAG_ACCUMULATE" : "as other gradients are");
  return FA3_OK;
}

// k and v are of q's dtype; on the device so are all others, but for e4m3 of dout's, and gradients that are float32. q
// and dout come first, so that none is asked to be as one of them before that is right itself.
Status check_dtypes(const fa3_backward_params& p, const std::array<Argument, argument_count>& arguments, Rules rules,
                    GradientStore& store) {
  const bool device = rules != Rules::reference, is_e4m3 = p.q.dtype == FA3_DTYPE_E4M3;
  if (Status status = check_dtype_of("q", p.q.dtype, device, true)) return status;
  if (is_e4m3)
    if (Status status = check_dtype_of("dout", p.dout.dtype, device, false)) return status;
  for (const Argument& argument : arguments) {
    if (argument.rank == 3) continue;
    const fa3_tensor* const tensor = &argument.tensor;
    const bool is_qkv = tensor == &p.q || tensor == &p.k || tensor == &p.v;
    const int32_t dtype = tensor->dtype, other = is_qkv || !is_e4m3 ? p.q.dtype : p.dout.dtype;
    if (argument.output && dtype == FA3_DTYPE_FP32) continue;
    if (Status status = check_dtype_of(argument.name, dtype, device, is_qkv)) return status;
    if ((device || is_qkv) && dtype != other)
      return fail(invalid, "%s.dtype is %s, must be %s as %s's", argument.name, dtype_name(dtype), dtype_name(other),
                  is_qkv || !is_e4m3 ? "q" : "dout");
  }
  if (Status status = check_fp32_gradients(p, rules, store)) return status;
  return check_presence(forward_of(p));
}

// Of v as tiles rank and dims are for check_v_tiles_dims to say.
Status check_v_rank(const fa3_backward_params& p) {
  if (p.q.dtype != FA3_DTYPE_E4M3 || is_there(p.cu_seqlens_k) || p.v.rank == 4 || p.v.rank == 5) return FA3_OK;
  return fail(invalid, "v.rank is %d, must be 4, or 5 for tiles", p.v.rank);
}

// The first `count` dims of a tensor must be those of `like`.
Status check_like(Dims tensor, Dims like, int count) {
  for (int i = 0; i < count; ++i)
    if (Status status = must_equal(tensor[i], like[i])) return status;
  return FA3_OK;
}

Status check_shapes(const fa3_backward_params& p, int64_t batch) {
  const bool packed_q = is_there(p.cu_seqlens_q), packed_k = is_there(p.cu_seqlens_k);
  const Dims q{"q", p.q.dim, packed_q}, k{"k", p.k.dim, packed_k}, v{"v", p.v.dim, packed_k};
  const Dims o{"o", p.o.dim, packed_q};
  if (Status status = check_batch(forward_of(p), batch)) return status;
  if (Status status = must_equal(k[3], q[3])) return status;
  if (Status status = check_heads(q[2], k[2])) return status;
  const bool tiles = has_v_tiles(forward_of(p));
  if (Status status = tiles ? FA3_OK : check_like(v, k, 3)) return status;
  if (Status status = check_like(o, q, 3)) return status;
  if (Status status = must_equal(o[3], v[3])) return status;
  if (Status status = check_like({"dout", p.dout.dim, packed_q}, o, 4)) return status;
  if (Status status = check_like({"dq", p.dq.dim, packed_q}, q, 4)) return status;
  if (Status status = check_like({"dk", p.dk.dim, packed_k}, k, 4)) return status;
  const Dims dv{"dv", p.dv.dim, packed_k};
  if (Status status = check_like(dv, tiles ? k : v, 3)) return status;
  if (Status status = must_equal(dv[3], v[3])) return status;
  if (Status status = check_rows_of({"lse", p.lse.dim, packed_q}, q)) return status;
  return p.dlse.rank == 0 ? FA3_OK : check_rows_of({"dlse", p.dlse.dim, packed_q}, q);
}

Status check_dsinks(const fa3_backward_params& p, Rules rules, View& dsinks) {
  if (!is_there(p.dsinks)) return FA3_OK;
  if (!is_there(p.sinks)) return fail(invalid, "dsinks.rank is %d, must be 0 (absent) without sinks", p.dsinks.rank);
  return check_of_heads({"dsinks", 1, true, false, rules != Rules::shapes, false}, p.dsinks, p.q.dim[2], dsinks);
}

}  // namespace

Status validate(const fa3_backward_params* params, Rules rules, BackwardProblem& problem) {
  // All but dlse and what stands behind it are needed; what stands before it has defaults.
  fa3_backward_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_backward_params, mask), sizeof p, size))
    return status;
  std::memcpy(&p, params, size < sizeof p ? size : sizeof p);
  if (size < offsetof(fa3_backward_params, kernel) + sizeof p.kernel) p.kernel = nullptr;  // half a pointer is none
  if (size < offsetof(fa3_backward_params, alibi_slopes)) p.softcap = 0, p.reserved = 0;  // nor is half a softcap one
  problem = {};
  const auto arguments = arguments_of(p, problem);
  const auto is_wanted = [&](const Argument& argument) {
    return &argument.tensor != &p.dlse || is_there(argument.tensor);
  };
  if (p.flags & ~uint64_t{FA3_FLAG_DETERMINISTIC | FA3_FLAG_CENTERED_K | FA3_FLAG_ACCUMULATE})
    return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                static_cast<unsigned long long>(p.flags));
  if (Status status = check_mask(p.mask)) return status;
  if (Status status = check_window(p.mask, p.window_left, p.window_right)) return status;
  if (Status status = check_softcap(forward_of(p))) return status;
  if (Status status = check_softmax_scale(p.softmax_scale)) return status;
  if (Status status = check_dtypes(p, arguments, rules, problem.store)) return status;
  if (Status status = check_together(forward_of(p), rules, {is_there(p.dlse), is_there(p.dsinks)})) return status;
  if (Status status = check_cu_seqlens(forward_of(p))) return status;
  if (Status status = check_v_rank(p)) return status;
  const bool tiles = has_v_tiles(forward_of(p));
  for (const Argument& argument : arguments) {
    if (!is_wanted(argument) || (tiles && &argument.tensor == &p.v)) continue;
    if (argument.rank == 3)
      if (Status status = must_be_fp32(argument.name, argument.tensor.dtype)) return status;
    if (Status status = argument.check_rank_and_dims(rules)) return status;
  }
  if (Status status = tiles ? check_v_tiles_dims(forward_of(p)) : FA3_OK) return status;
  // Before shapes, so that no other tensor is asked to be as one that cannot stay.
  const Dims q{"q", p.q.dim, is_there(p.cu_seqlens_q)}, v{"v", p.v.dim, is_there(p.cu_seqlens_k)};
  const int unit = p.q.dtype == FA3_DTYPE_FP32 ? 1 : p.q.dtype == FA3_DTYPE_E4M3 ? 16 : 8;
  if (Status status = check_head_dims(q[3], v[3], unit)) return status;
  const fa3_forward_params forward = forward_of(p);  // packed tensors have a batch now
  if (Status status = check_sequences(forward, rules, problem)) return status;
  if (Status status = check_maxima(forward, rules, problem)) return status;
  if (Status status = check_dsinks(p, rules, problem.dsinks)) return status;
  if (Status status = check_shapes(p, problem.batch)) return status;
  for (const Argument& argument : arguments)
    if (is_wanted(argument) && !(tiles && &argument.tensor == &p.v))
      if (Status status = check_tensor(argument.expected(rules), argument.tensor, argument.view)) return status;
  if (Status status = tiles ? check_v_tiles(forward, rules, problem.v) : FA3_OK) return status;
  if (Status status = check_scales(forward, rules, problem, true, problem)) return status;
  if (const Tensors tensors = tensors_of(problem); rules != Rules::shapes)
    if (Status status = check_overlap(tensors.data(), tensors.count(), outputs)) return status;
  resolve(forward, problem);
  problem.kernel = p.kernel;
  problem.v_tiles = tiles;
  problem.deterministic = p.flags & FA3_FLAG_DETERMINISTIC;
  problem.centered_k = p.flags & FA3_FLAG_CENTERED_K;
  return FA3_OK;
}

Status validate_workspace(const BackwardProblem& problem, void* workspace, size_t bytes, size_t needed) {
  const Tensors tensors = tensors_of(problem);
  return check_workspace(workspace, bytes, needed, tensors.data(), tensors.count());
}

}  // namespace fa3
