#include "forward/served.h"

#include <algorithm>

#include "error.h"
#include "forward/scales.h"
#include "integers.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT, unsupported = FA3_ERROR_UNSUPPORTED;

// Are there fewer keys than k has rows, of k with rows of its own for each sequence?
bool bounds_keys(const fa3_forward_params& p) {
  return !is_there(p.cu_seqlens_k) && p.max_seqlen_k != 0 && p.max_seqlen_k != p.k.dim[1];
}

Expected numbers(const char* name, int rank, Rules rules) {
  return {name, rank, false, false, rules != Rules::shapes, false};
}

// Rows without gaps.
Status check_contiguous(const Expected& expected, const fa3_tensor& tensor, const View& view) {
  const int last = expected.rank - 1;
  if (view.empty() || view.dim[last] == 1 || tensor.stride[last] == 1) return FA3_OK;
  return fail(invalid, "%s.stride[%d] is %lld, must be 1", expected.name, last, ll(tensor.stride[last]));
}

// `count` numbers, one behind the other; `of` says of what there are so many.
Status check_numbers(const char* name, const fa3_tensor& tensor, int64_t count, const char* of, Rules rules,
                     const int32_t*& data) {
  const Expected expected = numbers(name, 1, rules);
  if (!is_there(tensor)) return FA3_OK;
  if (Status status = must_be_int32(name, tensor.dtype)) return status;
  if (Status status = check_dims(expected, tensor)) return status;
  if (tensor.dim[0] != count)
    return fail(invalid, "%s.dim[0] is %lld, must be %s, %lld", name, ll(tensor.dim[0]), of, ll(count));
  View view;
  if (Status status = check_tensor(expected, tensor, view)) return status;
  if (Status status = check_contiguous(expected, tensor, view)) return status;
  data = static_cast<const int32_t*>(tensor.data);
  return FA3_OK;
}

// How many sequences there are.
Status count_sequences(const fa3_forward_params& p, int64_t& batch) {
  batch = p.q.dim[0];
  if (!is_there(p.cu_seqlens_q)) return FA3_OK;
  if (Status status = must_be_int32("cu_seqlens_q", p.cu_seqlens_q.dtype)) return status;
  if (Status status = check_dims(numbers("cu_seqlens_q", 1, Rules::shapes), p.cu_seqlens_q)) return status;
  if (p.cu_seqlens_q.dim[0] < 1)
    return fail(invalid, "cu_seqlens_q.dim[0] is %lld, must be the number of sequences and 1",
                ll(p.cu_seqlens_q.dim[0]));
  batch = p.cu_seqlens_q.dim[0] - 1;
  return FA3_OK;
}

Status check_lengths(const fa3_forward_params& p, Rules rules, ForwardProblem& problem) {
  const int64_t batch = problem.batch;
  Lengths& lengths = problem.lengths;
  const bool packed_q = is_there(p.cu_seqlens_q);
  const char* const of = packed_q ? "cu_seqlens_q.dim[0] - 1" : "q.dim[0]";
  const struct {
    const char* name;
    const fa3_tensor& tensor;
    const int32_t*& data;
  } of_each[] = {{"seqused_q", p.seqused_q, lengths.used_q},
                 {"seqused_k", p.seqused_k, lengths.used_k},
                 {"leftpad_k", p.leftpad_k, lengths.leftpad_k},
                 {"cache_batch_idx", p.cache_batch_idx, lengths.batch_k}};
  if (Status status = check_numbers("cu_seqlens_q", p.cu_seqlens_q, batch + 1, of, rules, lengths.cu_q)) return status;
  if (Status status = check_numbers("cu_seqlens_k", p.cu_seqlens_k, batch + 1,
                                    packed_q ? "cu_seqlens_q.dim[0]" : "q.dim[0] + 1", rules, lengths.cu_k))
    return status;
  for (const auto& [name, tensor, data] : of_each)
    if (Status status = check_numbers(name, tensor, batch, of, rules, data)) return status;
  return FA3_OK;
}

Status check_page_table(const fa3_forward_params& p, Rules rules, ForwardProblem& problem) {
  if (!is_there(p.page_table)) return FA3_OK;
  const Expected expected = numbers("page_table", 2, rules);
  const int64_t batch = p.page_table.dim[0], stride = p.page_table.stride[0];
  if (Status status = must_be_int32("page_table", p.page_table.dtype)) return status;
  if (Status status = check_dims(expected, p.page_table)) return status;
  if (batch != problem.batch)
    return fail(invalid, "page_table.dim[0] is %lld, must be %s, %lld", ll(batch),
                is_there(p.cu_seqlens_q) ? "cu_seqlens_q.dim[0] - 1" : "q.dim[0]", ll(problem.batch));
  View& view = problem.page_table;
  if (Status status = check_tensor(expected, p.page_table, view)) return status;
  if (Status status = check_contiguous(expected, p.page_table, view)) return status;
  if (!view.empty() && batch > 1 && stride > INT32_MAX)  // the kernels keep it in int32
    return fail(invalid, "page_table.stride[0] is %lld, must be at most %d", ll(stride), INT32_MAX);
  problem.page_size = p.k.dim[1];
  return FA3_OK;
}

Status check_sinks(const fa3_forward_params& p, Rules rules, ForwardProblem& problem) {
  if (!is_there(p.sinks)) return FA3_OK;
  const Expected expected = numbers("sinks", 1, rules);
  if (Status status = must_be_fp32("sinks", p.sinks.dtype)) return status;
  if (Status status = check_dims(expected, p.sinks)) return status;
  if (p.sinks.dim[0] != p.q.dim[2])
    return fail(invalid, "sinks.dim[0] is %lld, must be the query heads, %lld", ll(p.sinks.dim[0]), ll(p.q.dim[2]));
  return check_tensor(expected, p.sinks, problem.sinks);
}

Status check_maximum_q(const fa3_forward_params& p, int64_t& seqlen_q) {
  const int64_t rows = p.q.dim[1];
  if (is_there(p.cu_seqlens_q)) {
    if (p.max_seqlen_q < 1)
      return fail(invalid, "max_seqlen_q is %d, must be at least 1 with cu_seqlens_q", p.max_seqlen_q);
    seqlen_q = std::min<int64_t>(p.max_seqlen_q, rows);
    return FA3_OK;
  }
  if (p.max_seqlen_q != 0 && p.max_seqlen_q != rows)
    return fail(invalid, "max_seqlen_q is %d, must be 0 or q.dim[1], which is %lld, without cu_seqlens_q",
                p.max_seqlen_q, ll(rows));
  seqlen_q = rows;
  return FA3_OK;
}

Status check_maximum_k(const fa3_forward_params& p, int64_t& seqlen_k) {
  const bool pages = is_there(p.page_table);
  const int64_t rows = pages ? p.page_table.dim[1] * p.k.dim[1] : p.k.dim[1];
  if (is_there(p.cu_seqlens_k)) {
    if (p.max_seqlen_k < 1)
      return fail(invalid, "max_seqlen_k is %d, must be at least 1 with cu_seqlens_k", p.max_seqlen_k);
    seqlen_k = std::min<int64_t>(p.max_seqlen_k, rows);
    return FA3_OK;
  }
  if (p.max_seqlen_k < 0 || p.max_seqlen_k > rows)
    return fail(invalid, "max_seqlen_k is %d, must be from 0 to %s, which is %lld", p.max_seqlen_k,
                pages ? "page_table.dim[1] * k.dim[1]" : "k.dim[1]", ll(rows));
  seqlen_k = p.max_seqlen_k ? p.max_seqlen_k : rows;
  return FA3_OK;
}

// Sums of a row, a bound and a tile's rows stay within int32.
Status check_sizes(const fa3_forward_params& p, const ForwardProblem& problem) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"q.dim[0] (rows)", problem.total_q},
               {"k.dim[0] (rows)", problem.total_k},
               {"q.dim[1] (sequence length)", problem.seqlen_q},
               {problem.page_size ? "page_table.dim[1] * k.dim[1] (sequence length)" : "k.dim[1] (sequence length)",
                problem.seqlen_k}};
  for (const auto& [name, value] : sizes)
    if (value > most_packed_rows)
      return fail(unsupported, "%s is %lld; with %s it is at most %d", name, ll(value), served_by(p),
                  most_packed_rows);
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

Window window_of(const fa3_forward_params& p) {
  switch (p.mask) {
    case FA3_MASK_CAUSAL_TOP_LEFT: return {-1, 0, false};
    case FA3_MASK_CAUSAL_BOTTOM_RIGHT: return {-1, 0, true};
    case FA3_MASK_WINDOW: return {p.window_left, p.window_right, true};
    case FA3_MASK_CHUNK: return {-1, p.window_right, true};
    default: return {-1, -1, false};
  }
}

// So many numbers without gaps, or none.
View numbers_at(const int32_t* data, int64_t count) {
  return {const_cast<int32_t*>(data), FA3_DTYPE_INT32, {data ? count : 0, 1, 1, 1}, {1, 0, 0, 0}};
}

}  // namespace

const char* served_by(const fa3_forward_params& p) {
  const struct {
    const char* name;
    bool given;
  } all[] = {{"mask FA3_MASK_WINDOW", p.mask == FA3_MASK_WINDOW},
             {"mask FA3_MASK_CHUNK", p.mask == FA3_MASK_CHUNK},
             {"cu_seqlens_q", is_there(p.cu_seqlens_q)},
             {"cu_seqlens_k", is_there(p.cu_seqlens_k)},
             {"seqused_q", is_there(p.seqused_q)},
             {"seqused_k", is_there(p.seqused_k)},
             {"leftpad_k", is_there(p.leftpad_k)},
             {"page_table", is_there(p.page_table)},
             {"cache_batch_idx", is_there(p.cache_batch_idx)},
             {"sinks", is_there(p.sinks)},
             {"FA3_FLAG_BATCH_INVARIANT", (p.flags & FA3_FLAG_BATCH_INVARIANT) != 0},
             {"max_seqlen_k", bounds_keys(p)}};
  for (const auto& [name, given] : all)
    if (given) return name;
  return nullptr;
}

Status check_window(fa3_forward_params& p) {
  const int32_t left = p.window_left, right = p.window_right;
  if (p.mask == FA3_MASK_WINDOW) {
    if (left < -1) return fail(invalid, "window_left is %d, must be at least -1", left);
    if (right < -1) return fail(invalid, "window_right is %d, must be at least -1", right);
    if (left >= 0 || right > 0) return FA3_OK;
    p.mask = right < 0 ? FA3_MASK_NONE : FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    p.window_left = p.window_right = 0;
    return FA3_OK;
  }
  if (p.mask == FA3_MASK_CHUNK) {
    if (left < 1) return fail(invalid, "window_left is %d, must be at least 1: a chunk has so many positions", left);
    if (right == 0 || right == -1) return FA3_OK;
    return fail(invalid, "window_right is %d, must be 0 or -1 with FA3_MASK_CHUNK", right);
  }
  if (left == 0 && right == 0) return FA3_OK;
  return fail(invalid, "window_%s is %d, must be 0: mask is neither FA3_MASK_WINDOW nor FA3_MASK_CHUNK",
              left != 0 ? "left" : "right", left != 0 ? left : right);
}

Status check_combinations(const fa3_forward_params& p) {
  const struct {
    const char* name;
    const fa3_tensor& tensor;
    const char* other_name;
    const fa3_tensor& other;
  } pairs[] = {{"page_table", p.page_table, "cu_seqlens_k", p.cu_seqlens_k},
               {"page_table", p.page_table, "leftpad_k", p.leftpad_k},
               {"page_table", p.page_table, "cache_batch_idx", p.cache_batch_idx},
               {"cache_batch_idx", p.cache_batch_idx, "cu_seqlens_k", p.cu_seqlens_k}};
  for (const auto& [name, tensor, other_name, other] : pairs)
    if (is_there(tensor) && is_there(other))
      return fail(unsupported, "%s and %s cannot be had together (of an absent tensor the rank is 0)", name,
                  other_name);
  const char* const name = served_by(p);
  if (name && (p.flags & FA3_FLAG_TWO_LEVEL))
    return fail(unsupported, "flags has FA3_FLAG_TWO_LEVEL, which cannot be had together with %s", name);
  if (name && has_v_tiles(p))
    return fail(unsupported, "v.rank is 5 (v as tiles), which cannot be had together with %s", name);
  return FA3_OK;
}

Status check_served(const fa3_forward_params& p, Rules rules, ForwardProblem& problem) {
  problem.served = served_by(p) != nullptr;
  problem.batch_invariant = p.flags & FA3_FLAG_BATCH_INVARIANT;
  problem.total_q = is_there(p.cu_seqlens_q) ? p.q.dim[1] : -1;
  problem.total_k = is_there(p.cu_seqlens_k) ? p.k.dim[1] : -1;
  if (Status status = count_sequences(p, problem.batch)) return status;
  if (Status status = check_lengths(p, rules, problem)) return status;
  if (Status status = check_page_table(p, rules, problem)) return status;
  if (Status status = check_sinks(p, rules, problem)) return status;
  if (Status status = check_maximum_q(p, problem.seqlen_q)) return status;
  if (Status status = check_maximum_k(p, problem.seqlen_k)) return status;
  if (Status status = problem.served ? check_sizes(p, problem) : FA3_OK) return status;
  if (Status status = check_schedule(p, rules)) return status;
  problem.lengths.batch = narrow(problem.batch);
  problem.lengths.max_q = narrow(problem.seqlen_q), problem.lengths.max_k = narrow(problem.seqlen_k);
  problem.lengths.caches = narrow(p.k.dim[0]);
  problem.window = window_of(p);
  problem.chunk = p.mask == FA3_MASK_CHUNK ? p.window_left : 0;
  if (problem.served && rules != Rules::reference)
    problem.schedule = p.schedule, problem.schedule_bytes = p.schedule_bytes;
  return FA3_OK;
}

ServedTensors served_tensors(const ForwardProblem& problem) {
  const Lengths& lengths = problem.lengths;
  const int64_t batch = problem.batch, bytes = static_cast<int64_t>(problem.schedule_bytes);
  return {{"cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "cache_batch_idx", "page_table",
           "sinks", "schedule"},
          {numbers_at(lengths.cu_q, batch + 1), numbers_at(lengths.cu_k, batch + 1), numbers_at(lengths.used_q, batch),
           numbers_at(lengths.used_k, batch), numbers_at(lengths.leftpad_k, batch), numbers_at(lengths.batch_k, batch),
           problem.page_table, problem.sinks,
           {const_cast<void*>(problem.schedule), FA3_DTYPE_E4M3, {bytes, 1, 1, 1}, {1, 0, 0, 0}}}};
}

}  // namespace fa3
