// Rules of fa3.h for pages and schedules. What the backward pass has of lengths, too, is in rules/planned.h.
#pragma once
#include "forward/forward.h"

namespace fa3 {

// Lengths, page table and sinks of a call whose q, k and v have four dims: packed ones a batch of 1 in front. What
// follows from them alone: whether the problem is planned, its batch and its longest sequences.
fa3_status check_planned(const fa3_forward_params& p, Rules rules, ForwardProblem& problem);

}  // namespace fa3
