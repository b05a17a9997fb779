// Division of non-negative numbers by one that is known before the launch, as a product: the machine has no integer
// division, and a tile's coordinates take three in a row. Plain C++, read by both sides.
//
// With s = ceil(log2 d) and m = ceil(2^(31 + s) / d), m d exceeds 2^(31 + s) by less than d <= 2^s. So for n < 2^31
// n m / 2^(31 + s) exceeds n / d by less than n / 2^31 / d < 1 / d, and its floor is that of n / d.
#pragma once
#include <cstdint>

namespace fa3 {

struct Divisor {
  uint32_t value, multiplier, shift;

  // Below 1, where a call has nothing to divide, it is 1.
  static constexpr Divisor of(int32_t d) {
    if (d < 1) d = 1;
    uint32_t s = 0;
    while ((uint32_t(1) << s) < uint32_t(d)) s++;
    return {uint32_t(d), uint32_t(((uint64_t(1) << (31 + s)) + d - 1) / d), 31 + s};
  }
  constexpr operator int32_t() const { return int32_t(value); }
};
constexpr int32_t operator/(int32_t n, const Divisor& d) {
  return int32_t(uint64_t(uint32_t(n)) * d.multiplier >> d.shift);
}

}  // namespace fa3
