// What a launch does in the simulated driver: the CPU reference computes the call for which its tensor maps and
// parameter block stand.
#pragma once
#include <cuda.h>

#include "launched.h"

namespace fa3::test {

// Fails if maps and parameters contradict each other, or if its pieces are not all of the work.
CUresult run(const Launched& launch);

}  // namespace fa3::test
