// What fa3_append launches, and how its kernel divides the rows (ptx/params/append_params.h).
#include "append/append.h"

namespace fa3 {

AppendPlan plan(const AppendProblem& problem) {
  constexpr int row = row_named("fa3_pass_append");
  static_assert(row >= 0);
  if (problem.empty()) return {row, 0, 0, 0, {}, 0};
  const int64_t rotary_dim = problem.rotary.dim, q_end = quads_of_row(problem.q, rotary_dim);
  const int64_t k_end = q_end + quads_of_row(problem.k, rotary_dim), quads = k_end + quads_of_row(problem.v, 0);
  const AppendSegments segments = AppendSegments::of(problem.rows, quads);
  const int64_t grid = divide_up(segments.warps, pass_row(row).threads() / 32);
  return {row, narrow(q_end), narrow(k_end), narrow(quads), segments, narrow(grid)};
}

}  // namespace fa3
