#include "forward/planned.h"

#include "error.h"
#include "rules/scales.h"
#include "rules/planned.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

Status check_page_table(const fa3_forward_params& p, Rules rules, ForwardProblem& problem) {
  if (!is_there(p.page_table)) return FA3_OK;
  const Expected expected{"page_table", 2, false, false, rules != Rules::shapes, false};
  const int64_t batch = p.page_table.dim[0], stride = p.page_table.stride[0];
  if (Status status = must_be_int32("page_table", p.page_table.dtype)) return status;
  if (Status status = check_dims(expected, p.page_table)) return status;
  if (batch != problem.batch)
    return fail(invalid, "page_table.dim[0] is %lld, must be %s, %lld", ll(batch),
                is_there(p.cu_seqlens_q) ? "cu_seqlens_q.dim[0] - 1" : "q.dim[0]", ll(problem.batch));
  View& view = problem.page_table;
  if (Status status = check_tensor(expected, p.page_table, view)) return status;
  if (Status status = view.empty() ? FA3_OK : check_contiguous("page_table", p.page_table)) return status;
  if (!view.empty() && batch > 1 && stride > INT32_MAX)  // the kernels keep it in int32
    return fail(invalid, "page_table.stride[0] is %lld, must be at most %d", ll(stride), INT32_MAX);
  problem.page_size = p.k.dim[1];
  return FA3_OK;
}

Status check_schedule(const fa3_forward_params& p, Rules rules) {
  if (rules != Rules::device) return FA3_OK;
  if (p.schedule == nullptr && p.schedule_bytes != 0)
    return fail(invalid, "schedule is NULL, and schedule_bytes is %zu", p.schedule_bytes);
  if (reinterpret_cast<uintptr_t>(p.schedule) % 16 != 0)
    return fail(invalid, "schedule is %p, must be aligned to 16 bytes", p.schedule);
  if (uintptr_t end; p.schedule_bytes > PTRDIFF_MAX ||
                     __builtin_add_overflow(reinterpret_cast<uintptr_t>(p.schedule), p.schedule_bytes, &end))
    return fail(invalid, "schedule reaches beyond the address space from %p", p.schedule);
  return FA3_OK;
}

}  // namespace

Status check_planned(const fa3_forward_params& p, Rules rules, ForwardProblem& problem) {
  problem.batch_invariant = p.flags & FA3_FLAG_BATCH_INVARIANT;
  if (Status status = check_sequences(p, rules, problem)) return status;
  if (Status status = check_page_table(p, rules, problem)) return status;
  if (Status status = check_maxima(p, rules, problem)) return status;
  if (Status status = check_schedule(p, rules)) return status;
  if (problem.planned && rules != Rules::reference)
    problem.schedule = p.schedule, problem.schedule_bytes = p.schedule_bytes;
  return FA3_OK;
}

}  // namespace fa3
