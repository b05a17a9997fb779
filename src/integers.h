#pragma once
#include <cstdint>

namespace fa3 {

// a / b, rounded up. Neither is negative.
constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a number that is known to fit.
constexpr int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

}  // namespace fa3
