// The backward pass's launches on the CPU, each from what it carries alone.
#pragma once
#include <cuda.h>

#include "fa3.h"
#include "launched.h"

namespace fa3::test {

inline constexpr int multiprocessors = 132;  // of the device

// An element of a gradient that is not stored by TMA.
void store(const BackwardRows& p, uint16_t* gradient, int64_t at, double x);

// The passes before and behind it, and what the kernel itself does in between for the query tiles of other thread
// blocks.
CUresult simulate_prepare(const BackwardParams& p, unsigned tiles);
CUresult simulate_finish(const BackwardParams& p, const PassRow& row, unsigned tiles);
// The tensors of the launch's maps; dq where it has one.
struct BackwardTensors {
  fa3_tensor q, k, v, dout, dk, dv, dq;
};
CUresult simulate(const BackwardParams& p, const BackwardRow& row, const BackwardTensors& tensors, unsigned blocks);
// Of a kernel that computes dQ only.
CUresult simulate_queries(const BackwardParams& p, const BackwardRow& row, const BackwardTensors& tensors,
                          unsigned blocks);

}  // namespace fa3::test
