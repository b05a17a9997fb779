// A served call on a row of the table: what the planner on the device (ptx/plan/plan_lengths.h) is told of it, where
// that puts its plan, and what the host knows of the plan before it is made. All of it follows from maxima, totals, the
// row and the number of multiprocessors.
#pragma once
#include "forward/candidate.h"
#include "plan/plan_lengths.h"

namespace fa3 {

// Of a problem that is served. Returns false if there may be more rows, tiles or parts than the kernels can count.
bool plan_lengths_params(const Candidate& candidate, int multiprocessors, PlanLengthsParams& params);

// The served problem on one row.
void plan_lengths_row(const Candidate& candidate, int multiprocessors, RowPlan& plan);

}  // namespace fa3
