#include "number.h"

#include <cmath>
#include <cstring>

namespace fa3 {
namespace {

struct Format {
  int exponent_bits, fraction_bits;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint16_t infinity() const { return ((1 << exponent_bits) - 1) << fraction_bits; }
};

constexpr Format bf16{8, 7}, fp16{5, 10};

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t encode(double value, Format format) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | format.infinity() | 1 << (format.fraction_bits - 1);
  if (std::isinf(value)) return sign | format.infinity();
  // Count in units of the last place of the result; below the smallest normal number that unit stays the same.
  const int smallest = 1 - format.bias();
  int exponent = static_cast<int>(bits_of(value) >> 52 & 0x7ff) - 1023;
  if (exponent > format.bias()) return sign | format.infinity();
  if (exponent < smallest) exponent = smallest;
  const double units = std::fabs(value) * power_of_two(format.fraction_bits - exponent);  // exact
  int rounded = static_cast<int>(units);
  const double rest = units - rounded;
  rounded += rest > 0.5 || (rest == 0.5 && rounded % 2 == 1);
  // `rounded` includes the implicit one of a normal number, and may carry into the exponent or to infinity: + does it.
  return sign | static_cast<uint16_t>(((exponent - smallest) << format.fraction_bits) + rounded);
}

double decode(uint16_t bits, Format format) {
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> format.fraction_bits;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
  const int implicit = exponent == 0 ? 0 : 1 << format.fraction_bits;
  const int scale = (exponent == 0 ? 1 : exponent) - format.bias() - format.fraction_bits;
  return sign * (implicit + fraction) * power_of_two(scale);
}

}  // namespace

double to_double(const void* element, fa3_dtype dtype) {
  if (dtype == FA3_DTYPE_FP32) {
    float value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, element, sizeof bits);
  return decode(bits, dtype == FA3_DTYPE_BF16 ? bf16 : fp16);
}

void from_double(double value, void* element, fa3_dtype dtype) {
  if (dtype == FA3_DTYPE_FP32) {
    const float rounded = static_cast<float>(value);
    std::memcpy(element, &rounded, sizeof rounded);
    return;
  }
  const uint16_t bits = encode(value, dtype == FA3_DTYPE_BF16 ? bf16 : fp16);
  std::memcpy(element, &bits, sizeof bits);
}

}  // namespace fa3
