#pragma once
#include <cstdint>

namespace fa3 {

// a / b, rounded up. Neither is negative.
constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace fa3
