// Attention in plain float32 code: the yardstick of the tolerance.
#pragma once
#include "memory.h"

namespace fa3::test {

// O as (batch, seqlen_q, heads, head_dim) and LSE as (batch, heads, seqlen_q), packed.
struct Output {
  std::vector<float> o, lse;
};

// The same mathematics as the kernels, from the same inputs, without any cleverness: S in float32, softmax in two
// passes in float32, P rounded to the input dtype, O accumulated in float32, divided by the sum and rounded to the
// output dtype.
Output plain_forward(const Case& made);

}  // namespace fa3::test
