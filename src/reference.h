// The forward pass on the CPU in float64.
#pragma once
#include "problem.h"

namespace fa3 {

fa3_status reference_forward(const Problem& problem, int threads);

}  // namespace fa3
