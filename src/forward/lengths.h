// A served call on a row of the table: what the planner on the device (ptx/plan_lengths.h) is told of it, where that
// puts its plan, and what the host knows of the plan before it is made. All of it follows from maxima, totals, the row
// and the number of multiprocessors.
#pragma once
#include "forward/forward.h"
#include "plan_lengths.h"

namespace fa3 {

struct PackedTotals {
  int64_t q, k;  // rows of the tensors that hold all sequences; below 0 where they are batched
};

// The problem has the maxima as lengths and as many batch entries as there are sequences. With batch_invariant a
// sequence is split the same way whatever it is batched with. Returns false if there may be more rows, tiles or parts
// than the kernels can count.
bool plan_lengths_params(const ForwardProblem& problem, const ForwardRow& row, int multiprocessors,
                         const Lengths& lengths, const PackedTotals& totals, const Window& window,
                         bool batch_invariant, PlanLengthsParams& params);

// The same, of a problem that is served.
bool plan_lengths_params(const ForwardProblem& problem, const ForwardRow& row, int multiprocessors,
                         PlanLengthsParams& params);

// The served problem on one row.
void plan_lengths_row(const ForwardProblem& problem, int row, int multiprocessors, RowPlan& plan);

}  // namespace fa3
