// Rules of fa3.h for packed lengths, pages, windows and sinks: which of them can be had together, and the tensors that
// only such calls have.
#pragma once
#include "forward/forward.h"

namespace fa3 {

// The first of what makes a problem served, by its name; null if there is nothing.
const char* served_by(const fa3_forward_params& p);

// The mask and its window. A window that is another mask becomes that mask.
fa3_status check_window(fa3_forward_params& p);

// What cannot be had together.
fa3_status check_combinations(const fa3_forward_params& p);

// Lengths, page table and sinks of a call whose q, k and v have four dims: packed ones a batch of 1 in front. What
// follows from them alone: whether the problem is served, its batch and its longest sequences.
fa3_status check_served(const fa3_forward_params& p, Rules rules, ForwardProblem& problem);

// Tensors that are read beside q, k and v.
struct ServedTensors {
  static constexpr size_t count = 9;
  const char* names[count];
  View views[count];
};
ServedTensors served_tensors(const ForwardProblem& problem);

}  // namespace fa3
