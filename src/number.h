// Rows of elements as float64. No branch depends on an element, so that the loops become vector code.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "fa3.h"

namespace fa3 {

// A 16-bit floating-point format.
struct Format {
  int exponent_bits, fraction_bits;

  constexpr int64_t bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint64_t infinity() const { return ((1 << exponent_bits) - 1) << fraction_bits; }
};

constexpr Format bf16{8, 7}, fp16{5, 10};

inline double power_of_two(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// The bits are moved to where a double has them, and a product corrects the exponent's bias; exact, subnormals too.
inline double decode(uint16_t element, Format format) {
  const uint64_t sign = static_cast<uint64_t>(element & 0x8000) << 48, magnitude = element & 0x7fff;
  const uint64_t moved = magnitude << (52 - format.fraction_bits);
  const double value = std::bit_cast<double>(moved) * power_of_two(1023 - format.bias());
  const uint64_t not_finite = magnitude >= format.infinity() ? uint64_t{0x7ff} << 52 : 0;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(value) | not_finite | sign);
}

// A single rounding to nearest even, overflow to infinity, subnormals kept. All NaNs become the same one: which of them
// an operation returns is not the same on all machines.
inline uint16_t encode(double value, Format format) {
  const uint64_t bits = std::bit_cast<uint64_t>(value), sign = bits >> 48 & 0x8000;
  // Count in units of the last place of the result; below the smallest normal number that unit stays the same.
  const int64_t smallest = 1 - format.bias();
  const int64_t exponent = std::clamp<int64_t>((bits >> 52 & 0x7ff) - 1023, smallest, format.bias() + 1);
  const double units = std::fabs(value) * power_of_two(format.fraction_bits - exponent);  // exact
  const uint64_t rounded = std::bit_cast<uint64_t>(units + 0x1p52) - std::bit_cast<uint64_t>(0x1p52);
  // `rounded` includes the implicit one of a normal number, and may carry into the exponent or to infinity: + does it.
  const uint64_t magnitude = (static_cast<uint64_t>(exponent - smallest) << format.fraction_bits) + rounded;
  const uint64_t nan = format.infinity() | uint64_t{1} << (format.fraction_bits - 1);
  return static_cast<uint16_t>(std::isnan(value) ? nan : sign | std::min(magnitude, format.infinity()));
}

inline float to_float(double value) { return static_cast<float>(std::isnan(value) ? NAN : value); }

template <class Element, class Decode>
inline void read(const void* first, int64_t stride, int count, double* out, Decode decode) {
  const Element* elements = static_cast<const Element*>(first);
  if (stride == 1)
    for (int i = 0; i < count; ++i) out[i] = decode(elements[i]);
  else
    for (int i = 0; i < count; ++i) out[i] = decode(elements[i * stride]);
}

template <class Element, class Encode>
inline void write(const double* values, int count, void* first, int64_t stride, Encode encode) {
  Element* elements = static_cast<Element*>(first);
  if (stride == 1)
    for (int i = 0; i < count; ++i) elements[i] = encode(values[i]);
  else
    for (int i = 0; i < count; ++i) elements[i * stride] = encode(values[i]);
}

// out[i] = element i of `count`, `stride` elements apart.
inline void read_elements(const void* first, int64_t stride, int count, fa3_dtype dtype, double* out) {
  if (dtype == FA3_DTYPE_FP32) read<float>(first, stride, count, out, [](float value) { return double{value}; });
  else if (dtype == FA3_DTYPE_BF16)
    read<uint16_t>(first, stride, count, out, [](uint16_t element) { return decode(element, bf16); });
  else read<uint16_t>(first, stride, count, out, [](uint16_t element) { return decode(element, fp16); });
}

// Element i of `count`, `stride` elements apart, = values[i].
inline void write_elements(const double* values, int count, fa3_dtype dtype, void* first, int64_t stride) {
  if (dtype == FA3_DTYPE_FP32) write<float>(values, count, first, stride, to_float);
  else if (dtype == FA3_DTYPE_BF16)
    write<uint16_t>(values, count, first, stride, [](double value) { return encode(value, bf16); });
  else write<uint16_t>(values, count, first, stride, [](double value) { return encode(value, fp16); });
}

}  // namespace fa3
