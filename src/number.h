// 16-bit floating-point formats as float64 sees them.
#pragma once
#include <cstdint>

#include "fa3.h"

namespace fa3 {

// Reads one element.
double to_double(const void* element, fa3_dtype dtype);

// Writes one element: a single rounding to nearest even, overflow to infinity, subnormals kept, NaN stays NaN.
void from_double(double value, void* element, fa3_dtype dtype);

}  // namespace fa3
