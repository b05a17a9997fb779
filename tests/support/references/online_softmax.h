// A blocked online softmax in float32, on the CPU: it stands in for the kernels where the judges are judged.
#pragma once
#include <cstdint>

#include "../problems/memory.h"
#include "../planned_case.h"

namespace fa3::test {

// Writes the case's outputs as a kernel with blocks of Bc keys would.
void online_forward(Case& made, int64_t Bc);
void online_forward(PlannedCase& made, int64_t Bc);

}  // namespace fa3::test
