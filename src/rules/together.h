// What cannot be had together, of both passes: one table, with the rows of fa3.h's tables "Not together". What follows
// from a number, such as a tensor's dim, is checked where the number is.
#pragma once
#include "rules/call.h"

namespace fa3 {

// Tensors of the backward pass that count here, beside the forward call whose gradients are wanted: are they there?
struct GradientTensors {
  bool dlse, dsinks;
};

// dtypes are known to be right.
fa3_status check_together(const fa3_forward_params& p, Rules rules, GradientTensors gradients = {});

}  // namespace fa3
