// Between the products of the backward pass: masks, and dS from P and dP. With keys as rows, a thread has two keys and
// two of every eight queries.
#pragma once
#include "../../plan/visible.h"
#include "../../tile/element.cuh"

namespace fa3 {

// This thread's columns of a tile's LSE or D: two of every eight.
FA3_DEVICE float2 numbers_at(const float (&numbers)[Br], int g, int lane) {
  return *reinterpret_cast<const float2*>(&numbers[8 * g + 2 * (lane % 4)]);
}

// Two of P, rounded, times two of dP - D.
FA3_DEVICE uint32_t scaled(uint32_t P, float low, float high) {
  if constexpr (is_bf16) return pack(__uint_as_float(P << 16) * low, __uint_as_float(P & 0xffff0000u) * high);
  else return pack(ptx::cvt_f32_f16(uint16_t(P)) * low, ptx::cvt_f32_f16(uint16_t(P >> 16)) * high);
}

// Do some of these 64 keys need a mask in the tile whose first row is `query`?
FA3_DEVICE bool needs_mask(const Visible& seen, int first_key, int query) {
  return !seen.all_see_all({query, query + Br}, {first_key, first_key + 64});
}
// Keys that queries do not see get S = -inf. `key`: of the thread's first row; `query`: of the tile's first column.
FA3_DEVICE void mask_scores(float (&S)[Br / 2], const Visible& seen, int key, int query, int lane) {
#pragma unroll
  for (int i = 0; i < Br / 2; i++) {
    const int j = key + 8 * (i / 2 % 2), q = query + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    if (!seen.sees(q, j)) S[i] = -INFINITY;
  }
}

}  // namespace fa3
