// Which tiles of a problem are split along the keys, and into which parts.
#pragma once
#include "forward/plan/estimate.h"

namespace fa3 {

// The problem on one row, as it would be planned. Ways to split that are predicted to take more than limit_us are not
// looked at. roughly: where tiles are too many to be split, what is predicted need not be exact.
inline constexpr double no_limit_us = 1e300;
void plan_row(const Estimate& estimate, RowPlan& plan, double limit_us = no_limit_us, bool roughly = false);

// The workspace that the problem needs on the row at most, whatever the card's memory and clock are.
size_t most_workspace(const Candidate& candidate, int multiprocessors);

}  // namespace fa3
