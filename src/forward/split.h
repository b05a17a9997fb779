// Which tiles of a problem are split along the keys, and into which parts.
#pragma once
#include "forward/forward.h"

namespace fa3 {

// The problem on one row, as it would be planned.
void plan_row(const ForwardProblem& problem, int row, int multiprocessors, RowPlan& plan);

}  // namespace fa3
