// The backward pass: its rules, and the same on the CPU.
#pragma once
#include "problem.h"

namespace fa3 {

// The caller's parameters after validation, with every default resolved.
struct BackwardProblem : AttentionShape {
  View q, k, v, o, dout;  // (batch, seqlen, heads, head_dim), as
  View dq, dk, dv;        // the gradients are
  View lse, dlse;         // (batch, heads, seqlen_q, 1); dlse.data is null where it is absent
};

// Every rule of fa3.h for host memory.
fa3_status validate(const fa3_backward_params* params, BackwardProblem& problem);

// threads, widest_vector: as for reference_forward.
fa3_status reference_backward(const BackwardProblem& problem, int threads, int widest_vector = 8);

}  // namespace fa3
