// Are gradients right? Rows of dq and keys of dk and dv in float64, on the CPU, by the formulas of fa3.h.
#pragma once
#include <string>

#include "check/check.h"

namespace fa3::bench {

// Packed tensors of a point of the backward pass on the host, beside those of the forward pass.
struct HostGradients {
  const uint16_t *dout, *dq, *dk, *dv;
  const float* dsinks = nullptr;  // of a point with sinks
};

// Compares `rows` rows of dq and as many of dk and of dv (the first, the last and random ones) with float64, from the o
// and lse that the kernel was given, and requires that every element was written. "" if right.
// The same sums are also done with P, dS and the gradient rounded to the dtype. An element may be off by the sum of 2.5
// times the largest error of those in its row; one rounding of the row's largest element; and, for what is computed in
// float32, 2^-19 of the row's largest sum of magnitudes. Of sinks two heads' are compared; a gradient, which is a sum
// over all rows, may be off by 2^-12 of its sum of magnitudes.
std::string check_gradients(const Point& point, const HostTensors& tensors, const HostGradients& gradients, int rows,
                            uint64_t seed);

}  // namespace fa3::bench
