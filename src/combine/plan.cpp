// What fa3_combine launches, and how its kernel divides the rows (ptx/params/combine_params.h).
#include "combine/combine.h"
#include "integers.h"

namespace fa3 {

CombinePlan plan(const CombineProblem& problem) {
  constexpr int row = row_named("fa3_pass_combine");
  static_assert(row >= 0);
  if (problem.empty()) return {row, 0, {}, 0};
  const int32_t chunks = narrow(problem.head_dim * bytes_per_element(problem.part.dtype) / 16);
  // Less than 2^31, as o has less than 2^40 bytes: a thread block has a row for 65 of its threads or more.
  const CombineTiles tiles =
      CombineTiles::of(pass_row(row), chunks, problem.parts, problem.rows, problem.batch * problem.heads);
  return {row, chunks, tiles, narrow(tiles.count())};
}

}  // namespace fa3
