// Is a result right? Rows in float64, on the CPU, by the definition of attention.
#pragma once
#include <string>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

// Tensors of a point on the host. Of q, k and v, and of dout, element i is the one at i % period.
struct HostTensors {
  const void *q, *k, *v;  // v as rows, also where the device read tiles
  const uint16_t* o;
  const float* lse;
  int64_t period = INT64_MAX;
};

// Compares `rows` rows (the first, the last and random ones) with float64, and requires that every element of o and lse
// was written. An element may be off by 4 roundings of the row's largest element, an LSE by 2e-5 of its size. With
// e4m3, to which P is rounded, those are e4m3's roundings; and as its tensor cores keep 13 bits of a sum, an element
// may also be off by 2^-9 of V's largest, an LSE by 5e-3. "" if right.
std::string check_rows(const Point& point, const HostTensors& tensors, int rows, uint64_t seed);

}  // namespace fa3::bench
