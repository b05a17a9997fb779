// Rows of elements as float64. No branch depends on an element, so that the loops become vector code.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "fa3.h"

namespace fa3 {

// A floating-point format of 16 or 8 bits, with its patterns without the sign.
struct Format {
  int exponent_bits, fraction_bits;
  uint64_t largest;   // the largest number; what follows is infinity or NaN
  uint64_t overflow;  // what becomes of numbers that are too large
  uint64_t nan;       // the NaN that is written

  constexpr int64_t bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

constexpr Format bf16{8, 7, 0x7f7f, 0x7f80, 0x7fc0}, fp16{5, 10, 0x7bff, 0x7c00, 0x7e00}, e4m3{4, 3, 0x7e, 0x7e, 0x7f};

inline double power_of_two(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

template <class Element>
constexpr int sign_place = 8 * sizeof(Element) - 1;

// The bits are moved to where a double has them, and a product corrects the exponent's bias; exact, subnormals too.
template <class Element>
inline double decode(Element element, Format format) {
  constexpr uint64_t sign_bit = uint64_t{1} << sign_place<Element>;
  const uint64_t sign = (element & sign_bit) << (63 - sign_place<Element>), magnitude = element & (sign_bit - 1);
  const uint64_t moved = magnitude << (52 - format.fraction_bits);
  const double value = std::bit_cast<double>(moved) * power_of_two(1023 - format.bias());
  const uint64_t not_finite = magnitude > format.largest ? uint64_t{0x7ff} << 52 : 0;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(value) | not_finite | sign);
}

// A single rounding to nearest even, subnormals kept. All NaNs become the same one: which of them an operation returns
// is not the same on all machines.
template <class Element>
inline Element encode(double value, Format format) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint64_t sign = bits >> 63 << sign_place<Element>;
  // Count in units of the last place of the result; below the smallest normal number that unit stays the same.
  const int64_t smallest = 1 - format.bias();
  const int64_t exponent = std::clamp<int64_t>((bits >> 52 & 0x7ff) - 1023, smallest, format.bias() + 1);
  const double units = std::fabs(value) * power_of_two(format.fraction_bits - exponent);  // exact
  const uint64_t rounded = std::bit_cast<uint64_t>(units + 0x1p52) - std::bit_cast<uint64_t>(0x1p52);
  // `rounded` includes the implicit one of a normal number, and may carry into the exponent or beyond the largest
  // number: + does it.
  const uint64_t magnitude = (static_cast<uint64_t>(exponent - smallest) << format.fraction_bits) + rounded;
  return static_cast<Element>(std::isnan(value) ? format.nan : sign | std::min(magnitude, format.overflow));
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
  else if (dtype == FA3_DTYPE_FP16)
    read<uint16_t>(first, stride, count, out, [](uint16_t element) { return decode(element, fp16); });
  else read<uint8_t>(first, stride, count, out, [](uint8_t element) { return decode(element, e4m3); });
}

// Element i of `count`, `stride` elements apart, = values[i].
inline void write_elements(const double* values, int count, fa3_dtype dtype, void* first, int64_t stride) {
  if (dtype == FA3_DTYPE_FP32) write<float>(values, count, first, stride, to_float);
  else if (dtype == FA3_DTYPE_BF16)
    write<uint16_t>(values, count, first, stride, [](double value) { return encode<uint16_t>(value, bf16); });
  else if (dtype == FA3_DTYPE_FP16)
    write<uint16_t>(values, count, first, stride, [](double value) { return encode<uint16_t>(value, fp16); });
  else write<uint8_t>(values, count, first, stride, [](double value) { return encode<uint8_t>(value, e4m3); });
}

}  // namespace fa3
