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

// The bits are moved to where a double has them, and a product corrects the exponent's bias; exact, subnormals too.
double decode(uint16_t bits, Format format) {
  const uint64_t magnitude = static_cast<uint64_t>(bits & 0x7fff) << (52 - format.fraction_bits);
  double value;
  std::memcpy(&value, &magnitude, sizeof value);
  value *= power_of_two(1023 - format.bias());
  if ((bits & 0x7fff) >= format.infinity()) value = (bits & 0x7fff) > format.infinity() ? NAN : INFINITY;
  return bits & 0x8000 ? -value : value;
}

template <class Element, class Decode>
void read(const char* first, int64_t step, int count, double* out, int out_step, Decode decode) {
  for (int i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, first + i * step, sizeof element);
    out[static_cast<int64_t>(i) * out_step] = decode(element);
  }
}

}  // namespace

void read_elements(const void* first, int64_t step, int count, fa3_dtype dtype, double* out, int out_step) {
  const char* bytes = static_cast<const char*>(first);
  const auto exact = [](float value) { return double{value}; };
  if (dtype == FA3_DTYPE_FP32) read<float>(bytes, step, count, out, out_step, exact);
  else if (dtype == FA3_DTYPE_BF16)
    read<uint16_t>(bytes, step, count, out, out_step, [](uint16_t bits) { return decode(bits, bf16); });
  else read<uint16_t>(bytes, step, count, out, out_step, [](uint16_t bits) { return decode(bits, fp16); });
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
