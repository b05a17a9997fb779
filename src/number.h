// 16-bit floating-point formats as float64 sees them.
#pragma once
#include <cstdint>

#include "fa3.h"

namespace fa3 {

// out[i * out_step] = element i of `count`, `step` bytes apart.
void read_elements(const void* first, int64_t step, int count, fa3_dtype dtype, double* out, int out_step);

// Writes one element: a single rounding to nearest even, overflow to infinity, subnormals kept, NaN stays NaN.
void from_double(double value, void* element, fa3_dtype dtype);

}  // namespace fa3
