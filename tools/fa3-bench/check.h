// Is a result right? Rows in float64, on the CPU, by the definition of attention.
#pragma once
#include <string>
#include <vector>

#include "point.h"

namespace fa3::bench {

// Packed tensors of a point on the host.
struct HostTensors {
  const uint16_t *q, *k, *v, *o;
  const float* lse;
};

// What every element of o holds before the call: 0xffff, a NaN in both formats.
inline constexpr unsigned char poison_byte = 0xff;

// Compares `rows` rows (the first, the last and random ones) with float64, and requires that every element of o and lse
// was written. An element may be off by 4 roundings of the row's largest element, an LSE by 2e-5 of its size. "" if
// right.
std::string check_rows(const Point& point, const HostTensors& tensors, int rows, uint64_t seed);

}  // namespace fa3::bench
