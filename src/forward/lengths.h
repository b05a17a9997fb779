// What the planner for packed lengths (ptx/plan_lengths.h) is told of a call: what follows from its maxima, from the
// row that runs it and from the number of multiprocessors.
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

}  // namespace fa3
