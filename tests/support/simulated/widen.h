// The pass that makes 16 bits of e4m3 for the backward pass, on the CPU.
#pragma once
#include <cuda.h>

#include "launched.h"

namespace fa3::test {

CUresult simulate_widen(const WidenParams& p, unsigned blocks);

}  // namespace fa3::test
