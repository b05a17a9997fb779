// The few arithmetic instructions that C++ cannot name (PTX ISA, Floating Point Instructions; of f16x2: Half Precision
// Floating Point Instructions; cvt: Data Movement and Conversion Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: ex2.approx.ftz.f32 d, x;  (ex2)
FA3_DEVICE float ex2_approx_ftz(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

// ptx: min.NaN.f32 d, x, y;  (min)
// NaN if either is.
FA3_DEVICE float min_nan_f32(float x, float y) {
  float d;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(x), "f"(y));
  return d;
}

// ptx: mov.f32 d, x;  (mov)
// A copy made here and nowhere else: in the branch where it stands, that is, not before it.
FA3_DEVICE float mov_f32(float x) {
  float d;
  asm volatile("mov.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

// ptx: rcp.approx.ftz.f32 d, x;  (rcp)
FA3_DEVICE float rcp_approx_ftz(float x) {
  float d;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

// ptx: cvt.rn.bf16x2.f32 d, high, low;  (cvt)
FA3_DEVICE uint32_t cvt_rn_bf16x2_f32(float high, float low) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// ptx: cvt.rn.f16x2.f32 d, high, low;  (cvt)
FA3_DEVICE uint32_t cvt_rn_f16x2_f32(float high, float low) {
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// ptx: add.rn.bf16x2 d, a, b;  (add)
FA3_DEVICE uint32_t add_rn_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// ptx: mul.rn.bf16x2 d, a, b;  (mul)
FA3_DEVICE uint32_t mul_rn_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// ptx: fma.rn.sat.f16x2 d, x, y, z;  (fma)
// Two at once; below 0 and NaN become 0, above 1 becomes 1.
FA3_DEVICE uint32_t fma_rn_sat_f16x2(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t d;
  asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(z));
  return d;
}

// ptx: cvt.rn.satfinite.e4m3x2.f32 d, high, low;  (cvt)
// What exceeds 448, infinity too, becomes 448; NaN stays NaN.
FA3_DEVICE uint16_t cvt_rn_satfinite_e4m3x2_f32(float high, float low) {
  uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
  return d;
}

// ptx: mov.b32 {_, d}, x;  (mov)
// The upper half. In the machine's code what takes it takes that half of the register; of a shift ptxas makes a shift.
FA3_DEVICE uint16_t mov_b32_high(uint32_t x) {
  uint16_t d;
  asm("mov.b32 {_, %0}, %1;" : "=h"(d) : "r"(x));
  return d;
}

// ptx: cvt.rn.f16x2.e4m3x2 d, x;  (cvt)
// Two numbers, exactly; NaN stays NaN.
FA3_DEVICE uint32_t cvt_rn_f16x2_e4m3x2(uint16_t x) {
  uint32_t d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(x));
  return d;
}

// ptx: cvt.f32.f16 d, x;  (cvt)
FA3_DEVICE float cvt_f32_f16(uint16_t x) {
  float d;
  asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(x));
  return d;
}

}  // namespace fa3::ptx
