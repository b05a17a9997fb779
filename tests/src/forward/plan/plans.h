// Problems made up for the planner's tests, and what it plans for them, unfolded as the kernels do (ptx/plan/work.h).
#pragma once
#include <string>

#include "../../row_call.h"
#include "forward/plan/split.h"
#include "params/params.h"

namespace fa3::test {

ForwardProblem problem_of(const Shape& shape, int32_t mask = FA3_MASK_NONE, const char* kernel = nullptr,
                          int32_t dtype = FA3_DTYPE_BF16);
// One that names this row.
ForwardProblem problem_of(const ForwardRow& row, const Shape& shape);
// As many queries as keys, and key heads as query heads.
Shape square(int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim);
// Larger than what a call's strides could describe.
ForwardProblem huge(const Shape& shape, int32_t mask = FA3_MASK_NONE);
Fit fit_of(const ForwardProblem& problem);
const Card& card_named(const std::string& name);  // of those that are known
const RowPlan& row_plan(const ForwardProblem& problem, const Card& card);
// On the row with this number.
inline void plan_row(const ForwardProblem& problem, int row, const Card& card, RowPlan& plan,
                     double limit_us = no_limit_us, bool roughly = false) {
  fa3::plan_row({{problem, forward_row(row)}, card}, plan, limit_us, roughly);
}
inline const RowPlan& row_plan(const ForwardProblem& problem, int multiprocessors = 132) {
  return row_plan(problem, assumed_card(multiprocessors));
}
inline bool is_split(const RowPlan& plan) { return plan.slots > 0; }

// Keys that a row sees, by the header's words.
int64_t visible_keys(const ForwardProblem& problem, int64_t row);

// Rows that each query has: one, or with packed heads one for each head of its group, and more up to a power of two.
int64_t rows_of_query(const ForwardProblem& problem, const ForwardRow& row);

struct Unfolded {
  Tile tile;
  int64_t first_row;
  int32_t blocks;  // that the tile's rows see, one at least
};
Unfolded unfold(const ForwardProblem& problem, const RowPlan& plan, int32_t number);

// What fa3.h promises that the parts of split tiles take at most: 3 * multiprocessors * block_q rows of
// 4 * (head_dim_v + 8) bytes, and a few KB, which are here 64 bytes for each multiprocessor.
size_t most_workspace(const ForwardRow& row, int multiprocessors);

// What holds for any plan: of its tiles, pieces, workspace and times.
void check(const ForwardProblem& problem, const RowPlan& plan, int multiprocessors);

}  // namespace fa3::test
