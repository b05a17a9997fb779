// Elements of 16 bits as they lie in memory, two a word, as float32.
#pragma once
#include "../isa/math.cuh"

namespace fa3 {

template <int words>
FA3_DEVICE void unpack(bool bf16, const uint32_t (&packed)[words], float* x) {
  if (bf16) {
#pragma unroll
    for (int i = 0; i < words; i++) {
      x[2 * i] = __uint_as_float(packed[i] << 16);
      x[2 * i + 1] = __uint_as_float(packed[i] & 0xffff0000);
    }
  } else {
#pragma unroll
    for (int i = 0; i < words; i++) {
      x[2 * i] = ptx::cvt_f32_f16(packed[i] & 0xffff);
      x[2 * i + 1] = ptx::cvt_f32_f16(packed[i] >> 16);
    }
  }
}

}  // namespace fa3
