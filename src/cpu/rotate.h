// Rotary embedding in float64.
#pragma once
#include "problem.h"

namespace fa3 {

// x: a row of a head, rotated by the angles of this position.
inline void rotate(const Rotary& rotary, int64_t position, double* x) {
  const int64_t half = rotary.dim / 2;
  const auto angle = [&](const View& table, int64_t i) {
    return double{static_cast<const float*>(table.data)[position * table.stride[0] + i * table.stride[1]]};
  };
  for (int64_t i = 0; i < half; ++i) {
    double& first = x[rotary.interleaved ? 2 * i : i];
    double& second = x[rotary.interleaved ? 2 * i + 1 : i + half];
    const double cos = angle(rotary.cos, i), sin = angle(rotary.sin, i), a = first, b = second;
    first = a * cos - b * sin;
    second = a * sin + b * cos;
  }
}

}  // namespace fa3
