// bf16, fp16 and e4m3 as bits: conversions with round to nearest even, as the hardware does them.
#pragma once
#include <bit>
#include <cstdint>

#include "fa3.h"

namespace fa3::tools {

inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);  // NaN stays NaN
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

inline uint16_t to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and more round to infinity
  if (magnitude < 0x38800000) {                                 // below 2^-14: the addition rounds at the subnormal ulp
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}

inline float from_fp16(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 0) {
    const float magnitude = float(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13);
}

// As cvt.rn.satfinite: what exceeds 448 becomes 448, NaN 0x7f.
inline uint8_t to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  if (magnitude >= 0x43e00000) return uint8_t(sign | 0x7e);
  if (magnitude < 0x3c800000) {  // below 2^-6: the addition rounds at the subnormal ulp
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return uint8_t(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
  return uint8_t(sign | ((rounded - 0x3c000000) >> 20));
}

inline float from_e4m3(uint8_t bits) {
  const uint32_t sign = uint32_t(bits & 0x80) << 24, exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 0) {
    const float magnitude = float(mantissa) * 0x1p-9f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((bits & 0x7f) == 0x7f ? 0x7fc00000 : (exponent + 120) << 23 | mantissa << 20));
}

inline uint16_t to_half(float value, fa3_dtype dtype) {
  return dtype == FA3_DTYPE_BF16 ? to_bf16(value) : to_fp16(value);
}
inline float from_half(uint16_t bits, fa3_dtype dtype) {
  return dtype == FA3_DTYPE_BF16 ? from_bf16(bits) : from_fp16(bits);
}

constexpr int element_bytes(fa3_dtype dtype) {
  return dtype == FA3_DTYPE_INT64                              ? 8
         : dtype == FA3_DTYPE_FP32 || dtype == FA3_DTYPE_INT32 ? 4
         : dtype == FA3_DTYPE_E4M3                             ? 1
                                                               : 2;
}

// An element of any dtype, `at` elements from data.
inline float read_element(const void* data, int64_t at, fa3_dtype dtype) {
  switch (dtype) {
    case FA3_DTYPE_FP32: return static_cast<const float*>(data)[at];
    case FA3_DTYPE_E4M3: return from_e4m3(static_cast<const uint8_t*>(data)[at]);
    default: return from_half(static_cast<const uint16_t*>(data)[at], dtype);
  }
}
inline void write_element(void* data, int64_t at, float value, fa3_dtype dtype) {
  switch (dtype) {
    case FA3_DTYPE_FP32: static_cast<float*>(data)[at] = value; break;
    case FA3_DTYPE_E4M3: static_cast<uint8_t*>(data)[at] = to_e4m3(value); break;
    default: static_cast<uint16_t*>(data)[at] = to_half(value, dtype);
  }
}

// The value after one rounding.
inline float round_to(float value, fa3_dtype dtype) {
  if (dtype == FA3_DTYPE_FP32) return value;
  return dtype == FA3_DTYPE_E4M3 ? from_e4m3(to_e4m3(value)) : from_half(to_half(value, dtype), dtype);
}

// Half the distance from 1 to the next number: the relative error of one rounding.
inline float unit_roundoff(fa3_dtype dtype) {
  if (dtype == FA3_DTYPE_FP32) return 0x1p-24f;
  return dtype == FA3_DTYPE_BF16 ? 0x1p-8f : dtype == FA3_DTYPE_FP16 ? 0x1p-11f : 0x1p-4f;
}
inline const char* dtype_name(fa3_dtype dtype) {
  return dtype == FA3_DTYPE_BF16   ? "bf16"
         : dtype == FA3_DTYPE_FP16 ? "fp16"
         : dtype == FA3_DTYPE_FP32 ? "fp32"
                                   : "e4m3";
}

}  // namespace fa3::tools
