// Numbers of 16 and 8 bits by the definition of their formats: a reading and a rounding that are not the library's.
#pragma once
#include <cmath>
#include <cstdint>

#include "fa3.h"

namespace fa3::test {

inline int element_size(int32_t dtype) { return dtype == FA3_DTYPE_FP32 ? 4 : dtype == FA3_DTYPE_E4M3 ? 1 : 2; }
inline int fraction_bits(int32_t dtype) { return dtype == FA3_DTYPE_BF16 ? 7 : dtype == FA3_DTYPE_FP16 ? 10 : 3; }
inline uint16_t sign_bit(int32_t dtype) { return dtype == FA3_DTYPE_E4M3 ? 0x80 : 0x8000; }
// The first pattern that is no finite number: infinity, or the NaN of e4m3.
inline uint16_t end_of_numbers(int32_t dtype) {
  return dtype == FA3_DTYPE_BF16 ? 0x7f80 : dtype == FA3_DTYPE_FP16 ? 0x7c00 : 0x7f;
}

// The value of a 16-bit or 8-bit pattern, by the definition of the formats.
inline long double value_of(uint16_t bits, int32_t dtype) {
  const uint16_t magnitude = bits & (sign_bit(dtype) - 1), end = end_of_numbers(dtype);
  const int bias = dtype == FA3_DTYPE_BF16 ? 127 : dtype == FA3_DTYPE_FP16 ? 15 : 7;
  const int exponent = magnitude >> fraction_bits(dtype), fraction = magnitude & ((1 << fraction_bits(dtype)) - 1);
  const long double sign = bits & sign_bit(dtype) ? -1 : 1;
  const long double part = std::ldexp(static_cast<long double>(fraction), -fraction_bits(dtype));
  if (magnitude >= end) return magnitude > end || dtype == FA3_DTYPE_E4M3 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1 + part, exponent - bias));
}

// Rounding by search: the nearest of all finite values, the even one of two, and infinity from half a step beyond the
// last; in e4m3 the last.
inline uint16_t nearest(long double x, int32_t dtype) {
  const uint16_t sign = std::signbit(x) ? sign_bit(dtype) : 0, end = end_of_numbers(dtype);
  x = std::fabs(x);
  uint16_t low = 0, high = end;  // patterns of positive values are ordered as the values
  while (high - low > 1) {
    const uint16_t middle = (low + high) / 2;
    (value_of(middle, dtype) <= x ? low : high) = middle;
  }
  if (dtype == FA3_DTYPE_E4M3 && high == end) return sign | low;
  const long double below = value_of(low, dtype);
  const long double above = high == end ? 2 * below - value_of(low - 1, dtype) : value_of(high, dtype);
  const bool up = x - below > above - x || (x - below == above - x && low % 2 == 1);
  return sign | (up ? high : low);
}

}  // namespace fa3::test
