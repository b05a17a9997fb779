#include <cstdio>
#include <cstring>

#include "error.h"
#include "forward/forward.h"
#include "forward/planned.h"
#include "rules/attention.h"
#include "rules/scales.h"
#include "rules/planned.h"
#include "rules/tensor.h"
#include "rules/together.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

// No field was ever put into padding, so there is none.
static_assert(sizeof(fa3_forward_params) == 2 * sizeof(size_t) + sizeof(uint64_t) + 21 * sizeof(fa3_tensor) +
                                                6 * sizeof(int32_t) + 2 * sizeof(float) + sizeof(const char*) +
                                                sizeof(const void*));

constexpr uint64_t known_flags = FA3_FLAG_DETERMINISTIC | FA3_FLAG_TWO_LEVEL | FA3_FLAG_BATCH_INVARIANT;
static_assert(known_flags < uint64_t{1} << 31, "C11 has no enumerator for this flag");

// k and v are of q's dtype, or both of e4m3 (widens_keys), or v alone (is_latent). On the device o is of q's dtype
// or of fp32, but for e4m3 it may be a 16-bit dtype, too; the reference rounds to any dtype of o that can be had
// without a scale.
Status check_dtypes(const fa3_forward_params& p, Rules rules) {
  const bool device = rules != Rules::reference, is_e4m3 = p.q.dtype == FA3_DTYPE_E4M3;
  const struct {
    const char* name;
    int32_t dtype;
    bool as_q;
  } tensors[] = {{"q", p.q.dtype, true},
                 {"k", p.k.dtype, !widens_keys(p)},
                 {"v", p.v.dtype, !widens_keys(p) && !is_latent(p)},
                 {"o", p.o.dtype, !is_e4m3 && !widens_o(p) && (device || p.o.dtype == FA3_DTYPE_E4M3)},
                 {"qv", p.qv.dtype, true}};
  for (const auto& tensor : tensors) {
    if (&tensor.dtype == &tensors[4].dtype && !is_there(p.qv)) continue;
    if (Status status = check_dtype(tensor.name, tensor.dtype)) return status;
    if (device && tensor.dtype == FA3_DTYPE_FP32 && &tensor.dtype != &tensors[3].dtype)
      return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is fp32; the kernels take bf16, fp16 and e4m3", tensor.name);
    if (tensor.as_q && tensor.dtype != p.q.dtype)
      return fail(invalid, "%s.dtype is %s, must be %s as q's", tensor.name, dtype_name(tensor.dtype),
                  dtype_name(p.q.dtype));
  }
  if ((p.flags & FA3_FLAG_TWO_LEVEL) && !is_e4m3)
    return fail(invalid, "flags has FA3_FLAG_TWO_LEVEL, which is for e4m3; q.dtype is %s", dtype_name(p.q.dtype));
  return check_presence(p);
}

// Rank and dims. A packed tensor gets a batch of 1 in front.
Status check_rows(Expected& expected, fa3_tensor& tensor, bool packed) {
  return packed ? lift(expected, tensor) : check_dims(expected, tensor);
}

Status check_shapes(const fa3_forward_params& p, int64_t batch) {
  const bool packed_q = is_there(p.cu_seqlens_q), packed_k = is_there(p.cu_seqlens_k);
  const Dims q{"q", p.q.dim, packed_q}, o{"o", p.o.dim, packed_q};
  const Dims k{"k", p.k.dim, packed_k}, v{"v", p.v.dim, packed_k};
  const Dim pairs[][2] = {{o[0], q[0]}, {o[1], q[1]}, {o[2], q[2]}, {k[3], q[3]}, {o[3], v[3]}};
  const Dim pairs_of_v[][2] = {{v[0], k[0]}, {v[1], k[1]}, {v[2], k[2]}};
  if (Status status = check_batch(p, batch)) return status;
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  for (const auto& pair : pairs_of_v)
    if (Status status = has_v_tiles(p) ? FA3_OK : must_equal(pair[0], pair[1])) return status;
  if (is_there(p.qv)) {
    const Dims qv{"qv", p.qv.dim, packed_q};
    const Dim pairs_of_qv[][2] = {{qv[0], q[0]}, {qv[1], q[1]}, {qv[2], q[2]}, {qv[3], v[3]}};
    for (const auto& pair : pairs_of_qv)
      if (Status status = must_equal(pair[0], pair[1])) return status;
  }
  return check_heads(q[2], k[2]);
}

Status check_scalars(fa3_forward_params& p) {
  if (p.flags & ~known_flags)
    return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                static_cast<unsigned long long>(p.flags));
  if (Status status = check_mask(p.mask)) return status;
  if (Status status = check_window(p.mask, p.window_left, p.window_right)) return status;
  if (Status status = check_softcap(p)) return status;
  return check_softmax_scale(p.softmax_scale);
}

// With qv, or V that is a part of K, kernels have 64 columns beside V's.
constexpr int64_t most_v = 512, most_beside_v = 64, most_apart = 512;

Status check_columns(const fa3_forward_params& p, Dim d, Dim dv, int unit, int unit_v) {
  const bool is_8bit = p.q.dtype == FA3_DTYPE_E4M3 || widens_keys(p);
  const int64_t most = is_8bit ? most_narrow : most_v + most_beside_v;
  if (Status status = check_head_dim(d, "head_dim", unit, most)) return status;
  if (Status status = check_head_dim(dv, "head_dim_v", unit_v, is_8bit ? most_narrow : most_v)) return status;
  if (!is_there(p.qv) || d.value <= most_beside_v) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED, "%s.dim[%d] (head_dim) is %lld; with qv it is at most %lld", d.name, d.number,
              ll(d.value), ll(most_beside_v));
}

// Why is V not the first columns of K, with no more than 64 behind them? Empty if it is. Without elements it is if its
// dims say so.
struct Reason {
  char text[160];
};
Reason why_apart(const ForwardProblem& problem) {
  const View &k = problem.k, &v = problem.v;
  const int64_t beside = k.dim[3] - v.dim[3];
  Reason reason{};
  const auto because = [&](const char* format, auto... values) {
    std::snprintf(reason.text, sizeof reason.text, format, values...);
    return reason;
  };
  if (beside <= 0 || beside > most_beside_v)
    return because("head_dim_v is %lld, not from %lld to %lld", ll(v.dim[3]), ll(k.dim[3] - most_beside_v),
                   ll(k.dim[3] - 1));
  if (v.empty()) return reason;
  const int before = problem.total_k >= 0;  // dims that the caller's tensors do not have
  for (int i = before; i < 3; ++i)
    if (v.stride[i] != k.stride[i])
      return because("v.stride[%d] is %lld, that of k %lld", i - before, ll(v.stride[i]), ll(k.stride[i]));
  if (v.data != k.data) return because("v.data is %p, k.data %p", v.data, k.data);
  return reason;
}

// Does the kernel that the caller names take K and V as they come?
bool names_apart(const char* kernel) {
  const int n = kernel ? row_named(kernel) : -1;
  return n >= 0 && rows[n].forward() && !rows[n].forward()->has(Trait::qv);
}

// A call with V in K becomes one with qv, which is the only form that its kernels know.
Status take_v_from_k(const char* kernel, Rules rules, ForwardProblem& problem) {
  if (rules == Rules::reference || problem.has_qv() || problem.head_dim <= most_narrow || names_apart(kernel))
    return FA3_OK;
  const Reason apart = why_apart(problem);
  if (apart.text[0]) {
    if (problem.head_dim <= most_apart) return FA3_OK;
    return fail(FA3_ERROR_UNSUPPORTED,
                "q.dim[%d] (head_dim) is %lld; above %lld v must be the first columns of k, all but %lld of them, and "
                "%s",
                problem.total_q >= 0 ? 2 : 3, ll(problem.head_dim), ll(most_apart), ll(most_beside_v), apart.text);
  }
  const int64_t columns = problem.head_dim_v;
  problem.qv = problem.q;
  problem.qv.dim[3] = columns;
  for (View* view : {&problem.q, &problem.k}) {
    // Whoever only asks may give any address: so the sum may wrap around.
    const auto bytes = static_cast<uintptr_t>(columns * bytes_per_element(view->dtype));
    if (view->data) view->data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view->data) + bytes);
    view->dim[3] -= columns;
  }
  problem.head_dim -= columns;
  problem.v_in_k = true;
  return FA3_OK;
}

// Of all tensors that the problem may have, those that it has, the outputs first.
constexpr size_t outputs = 2;
struct Tensors {
  View schedule;
  TensorList<15> list;

  explicit Tensors(const ForwardProblem& problem)
      : schedule{const_cast<void*>(problem.schedule),
                 FA3_DTYPE_E4M3,
                 {problem.schedule ? static_cast<int64_t>(problem.schedule_bytes) : 0, 1, 1, 1},
                 {1, 0, 0, 0}},
        list(problem, {{"o", &problem.o},
                       {"lse", &problem.lse},
                       {"q", &problem.q},
                       {"k", &problem.k},
                       {"v", &problem.v},
                       {problem.v_in_k ? "q" : "qv", &problem.qv},
                       {"q_scale", &problem.q_scale},
                       {"k_scale", &problem.k_scale},
                       {"v_scale", &problem.v_scale},
                       {"v_scale", &problem.latent_scale},
                       {"o_scale", &problem.o_scale},
                       {"v_mean", &problem.v_mean},
                       {"lse_offset", &problem.lse_offset},
                       {"page_table", &problem.page_table},
                       {"schedule", &schedule}}) {}
};

}  // namespace

Status validate(const fa3_forward_params* params, Rules rules, ForwardProblem& problem) {
  // Without q, k, v and o there is nothing to do; every later field has a default.
  fa3_forward_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_forward_params, lse), sizeof p, size))
    return status;
  std::memcpy(&p, params, size < sizeof p ? size : sizeof p);
  const auto holds = [&](size_t offset, size_t bytes) { return size >= offset + bytes; };
  if (!holds(offsetof(fa3_forward_params, kernel), sizeof p.kernel)) p.kernel = nullptr;  // half a pointer is none
  if (!holds(offsetof(fa3_forward_params, schedule_bytes), sizeof p.schedule_bytes)) {
    p.schedule = nullptr;
    p.schedule_bytes = 0;
  }
  if (!holds(offsetof(fa3_forward_params, softcap), sizeof p.softcap + sizeof p.reserved))
    p.softcap = 0, p.reserved = 0;

  const bool host = rules == Rules::reference;
  const bool pointers = rules != Rules::shapes;
  Expected q{"q", 4, false, !host, pointers, host};
  Expected k{"k", 4, false, !host, pointers, host};
  Expected v{"v", 4, false, !host, pointers, host};
  Expected qv{"qv", 4, false, !host, pointers, host};
  Expected o{"o", 4, true, !host, pointers, host};
  Expected lse{"lse", 3, true, false, pointers, host};

  problem = {};
  problem.wants_lse = p.lse.data != nullptr;
  if (Status status = check_scalars(p)) return status;
  if (Status status = check_dtypes(p, rules)) return status;
  if (Status status = check_together(p, rules)) return status;
  if (Status status = check_cu_seqlens(p)) return status;
  const bool packed_q = is_there(p.cu_seqlens_q), packed_k = is_there(p.cu_seqlens_k);
  if (Status status = check_rows(q, p.q, packed_q)) return status;
  if (Status status = check_rows(k, p.k, packed_k)) return status;
  if (p.q.dtype == FA3_DTYPE_E4M3 && why_planned(p) == nullptr && p.v.rank != 4 && p.v.rank != 5)
    return fail(invalid, "v.rank is %d, must be 4, or 5 for tiles", p.v.rank);
  if (Status status = has_v_tiles(p) ? check_v_tiles_dims(p) : check_rows(v, p.v, packed_k)) return status;
  if (is_there(p.qv))
    if (Status status = check_rows(qv, p.qv, packed_q)) return status;
  if (Status status = check_rows(o, p.o, packed_q)) return status;
  // Before shapes, so that no other tensor is asked to be as one that cannot stay.
  const int unit = p.q.dtype == FA3_DTYPE_FP32 ? 1 : p.k.dtype == FA3_DTYPE_E4M3 ? 16 : 8;
  const int unit_v = p.v.dtype == FA3_DTYPE_E4M3 ? 16 : unit;
  if (Status status =
          check_columns(p, Dims{"q", p.q.dim, packed_q}[3], Dims{"v", p.v.dim, packed_k}[3], unit, unit_v))
    return status;
  if (Status status = check_planned(p, rules, problem)) return status;
  if (Status status = check_shapes(p, problem.batch)) return status;
  if (Status status = check_tensor(q, p.q, problem.q)) return status;
  if (Status status = check_tensor(k, p.k, problem.k)) return status;
  if (Status status = has_v_tiles(p) ? check_v_tiles(p, rules, problem.v) : check_tensor(v, p.v, problem.v))
    return status;
  if (is_there(p.qv))
    if (Status status = check_tensor(qv, p.qv, problem.qv)) return status;
  if (Status status = check_tensor(o, p.o, problem.o)) return status;
  if (problem.wants_lse) {
    if (Status status = must_be_fp32("lse", p.lse.dtype)) return status;
    if (Status status = check_rows(lse, p.lse, packed_q)) return status;
    if (Status status = check_rows_of({"lse", p.lse.dim, packed_q}, {"q", p.q.dim, packed_q})) return status;
    if (Status status = check_tensor(lse, p.lse, problem.lse)) return status;
  }
  if (Status status = check_scales(p, rules, problem, problem.wants_lse || is_there(p.sinks), problem)) return status;
  if (const Tensors tensors(problem); pointers)
    if (Status status = check_overlap(tensors.list.data(), tensors.list.count(), outputs)) return status;
  resolve(p, problem);
  if (problem.has_qv())
    problem.softmax_scale = resolved_softmax_scale(p.softmax_scale, problem.head_dim + problem.head_dim_v);
  if (Status status = take_v_from_k(p.kernel, rules, problem)) return status;
  problem.kernel = p.kernel;
  problem.v_tiles = has_v_tiles(p);
  problem.two_level = p.flags & FA3_FLAG_TWO_LEVEL;
  return FA3_OK;
}

Status validate_workspace(const ForwardProblem& problem, void* workspace, size_t bytes, size_t needed) {
  const Tensors tensors(problem);
  return check_workspace(workspace, bytes, needed, tensors.list.data(), tensors.list.count());
}

Status validate_schedule(const ForwardProblem& problem, void* schedule, size_t bytes, size_t needed) {
  const Tensors tensors(problem);
  return check_workspace(schedule, bytes, needed, tensors.list.data(), tensors.list.count(), "schedule");
}

Status check_schedule(const ForwardProblem& problem, size_t needed) {
  if (!problem.schedule || problem.schedule_bytes >= needed) return FA3_OK;
  return fail(FA3_ERROR_WORKSPACE_TOO_SMALL, "schedule_bytes is %zu, must be at least %zu", problem.schedule_bytes,
              needed);
}

}  // namespace fa3
