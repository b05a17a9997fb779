#include "forward/plan/copies.h"

#include <algorithm>

#include "device/widen.h"
#include "forward/plan/cost.h"
#include "integers.h"

namespace fa3 {
namespace {

// More only where Q and O take as much: a cache with room for many long sequences is not copied for a few queries.
constexpr int64_t most_bytes = int64_t{1} << 30;

// As the copies' are: of batched tensors, and of pages, the most keys that a sequence has.
View dims_of_copy(const ForwardProblem& problem, int64_t head_dim) {
  View view{};
  const bool packed = problem.total_k >= 0;
  view.dim[0] = packed ? 1 : problem.batch, view.dim[1] = packed ? problem.total_k : problem.seqlen_k;
  view.dim[2] = problem.heads_kv, view.dim[3] = head_dim;
  return view;
}

int64_t elements(const ForwardProblem& problem) {
  return elements_of(dims_of_copy(problem, problem.head_dim + problem.head_dim_v));
}

int64_t bytes_of_queries(const ForwardProblem& problem) {
  const int64_t rows = problem.total_q >= 0 ? problem.total_q : problem.batch * problem.seqlen_q;
  return rows * problem.heads * 2 * (problem.head_dim + problem.head_dim_v);
}

// Without a scale, so that it is exact. The kernel has it.
WidenedTensor tensor_of(const ForwardProblem& problem, const View& from, const View& to) {
  const Lengths& lengths = problem.lengths;
  WidenedTensor tensor = widened_rows(from, to, View{}, nullptr);
  if (problem.total_k >= 0) return tensor;
  tensor.used = lengths.used_k;
  tensor.entry_of = lengths.batch_k;
  if (problem.page_size == 0) return tensor;
  tensor.page_table = static_cast<const int32_t*>(problem.page_table.data);
  tensor.table_stride = narrow(problem.page_table.stride[0]);
  tensor.page_size = Divisor::of(narrow(problem.page_size));
  return tensor;
}

}  // namespace

bool can_be_copied(const ForwardProblem& problem) {
  return rows_can_be_widened(dims_of_copy(problem, 1)) && copying_blocks(problem) <= most_widened_rows;
}

bool may_be_copied(const ForwardProblem& problem) {
  return problem.widens_keys() && !problem.batch_invariant && can_be_copied(problem) &&
         2 * elements(problem) <= std::max(most_bytes, bytes_of_queries(problem));
}

double copying_us(const ForwardProblem& problem) {
  return static_cast<double>(copying_time(elements(problem))) / 1e3;
}

Copies place_copies(const ForwardProblem& problem, size_t from) {
  constexpr int64_t alignment = 256;
  const auto aligned = [](int64_t bytes) { return static_cast<size_t>(divide_up(bytes, alignment) * alignment); };
  Copies copies{};
  copies.k = aligned(static_cast<int64_t>(from));
  copies.v = copies.k + aligned(2 * elements_of(dims_of_copy(problem, problem.head_dim)));
  copies.end = copies.v + aligned(2 * elements_of(dims_of_copy(problem, problem.head_dim_v)));
  return copies;
}

ForwardProblem on_copies(const ForwardProblem& problem, const Copies& copies, void* workspace) {
  ForwardProblem result = problem;
  const auto at = static_cast<char*>(workspace);
  result.k = packed_copy(dims_of_copy(problem, problem.head_dim), FA3_DTYPE_FP16, at, copies.k);
  result.v = packed_copy(dims_of_copy(problem, problem.head_dim_v), FA3_DTYPE_FP16, at, copies.v);
  result.page_size = 0, result.page_table = {};
  result.lengths.batch_k = nullptr, result.lengths.caches = 0;
  return result;
}

WidenParams copying_params(const ForwardProblem& problem, const Copies& copies, void* workspace) {
  const ForwardProblem to = on_copies(problem, copies, workspace);
  WidenParams params{};
  params.tensors[1] = tensor_of(problem, problem.k, to.k);
  params.tensors[2] = tensor_of(problem, problem.v, to.v);
  params.batch = narrow(problem.batch);
  return params;
}

int64_t copying_blocks(const ForwardProblem& problem) { return blocks_of(copying_params(problem, {}, nullptr)); }

}  // namespace fa3
