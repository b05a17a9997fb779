// A forward launch whose sequences have lengths of their own on the CPU, from what it carries alone.
#pragma once
#include <cuda.h>

#include "fa3.h"
#include "launched.h"

namespace fa3::test {

// The tensors of the launch's maps, as (batch, rows, heads, head_dim); of pages (pages, rows of a page, ...).
struct PlannedTensors {
  fa3_tensor q, k, v, qv;
};
// Fails if the pieces do not hold each block of each tile that has one of them, once, or if a part has no slot or
// ticket of its own.
CUresult simulate_planned(const Launched& launch, const PlannedTensors& tensors);

// The pass behind kernels whose O is in two halves, from which tiles that are split get their O and LSE here, too.
CUresult simulate_add_parts(const PlannedForwardParams& p);

}  // namespace fa3::test
