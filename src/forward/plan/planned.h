// A planned call on a row of the table: what the planner on the device (ptx/plan/plan_forward.h) is told of it, where
// that puts its plan, and what the host knows of the plan before it is made. All of it follows from maxima, totals, the
// row and the number of multiprocessors.
#pragma once
#include "forward/candidate.h"
#include "plan/plan_forward.h"

namespace fa3 {

// Of a problem that is planned. Returns false if there may be more rows, tiles or parts than the kernels can count.
bool plan_forward_params(const Candidate& candidate, int multiprocessors, PlanForwardParams& params);

// The planned problem on one row.
void plan_planned_row(const Candidate& candidate, int multiprocessors, RowPlan& plan);

}  // namespace fa3
