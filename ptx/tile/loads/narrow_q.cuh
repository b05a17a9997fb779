// Q of bf16 where products are of fp16 (VLayout::widened). fp16 has the bits for it, but not the range. So the 16 rows
// of a warp are multiplied by a power of two, which makes their largest element 2^14 or more, and less than 2^15, and
// scores by its inverse. What is at most 2^31 times smaller than the largest stays exact.
#pragma once
#include "../../isa/fence.cuh"
#include "../../isa/shared.cuh"
#include "../barriers.cuh"
#include "../smem.cuh"

namespace fa3 {

// What makes fp16 of bf16: a power of two, and its inverse.
struct Narrowing {
  float factor, inverse;

  // Of the largest among some elements' magnitudes, as bits of float32, in which order they are. What is not finite
  // does not count.
  static FA3_DEVICE uint32_t larger(uint32_t largest, uint32_t pair) {
    constexpr uint32_t infinity = 0x7f800000;
    const uint32_t low = pair << 16 & 0x7fffffff, high = pair & 0x7fff0000;
    return max(largest, max(low < infinity ? low : 0, high < infinity ? high : 0));
  }
  static FA3_DEVICE Narrowing of(uint32_t largest) {
    const int exponent = largest ? min(max(127 + 127 + 14 - int(largest >> 23), 1), 227) : 127;
    return {__int_as_float(exponent << 23), __int_as_float((254 - exponent) << 23)};
  }
  FA3_DEVICE uint32_t operator()(uint32_t pair) const {
    return ptx::cvt_rn_f16x2_f32(__uint_as_float(pair & 0xffff0000) * factor, __uint_as_float(pair << 16) * factor);
  }
};

// In place, by all warps of the warpgroup that has the 64 rows. The first is `first`, and the sequence has `rows`;
// others become zeros. Returns the inverse.
FA3_DEVICE float narrow_q(Element* q, int first, int rows, int warpgroup, int warp) {
  using namespace ptx;
  constexpr int pieces = 4 * slabs;  // 512 bytes each, 4 rows of a slab
  const int lane = threadIdx.x % 32;
  const uint32_t own = shared_address(q) + warp * 16 * slab_row_bytes + lane * 16;
  const auto address = [&](int n) { return own + n / 4 * 64 * slab_row_bytes + n % 4 * 512; };
  const auto exists = [&](int n) {
    const int row = first + 16 * warp + lane / 8 + n % 4 * 4;
    return row >= 0 && row < rows;
  };

  uint32_t largest = 0;
  const auto add = [&](uint32_t pair) { largest = Narrowing::larger(largest, pair); };
#pragma unroll 4
  for (int n = 0; n < pieces; n++) {
    uint32_t x[4];
    ld_shared_v4_u32(x, address(n));
    if (!exists(n)) continue;
    add(x[0]), add(x[1]), add(x[2]), add(x[3]);
  }
  const Narrowing narrowed = Narrowing::of(__reduce_max_sync(0xffffffffu, largest));
#pragma unroll 4
  for (int n = 0; n < pieces; n++) {
    uint32_t x[4];
    ld_shared_v4_u32(x, address(n));
    const auto y = [&](uint32_t pair) { return exists(n) ? narrowed(pair) : 0; };
    st_shared_v4_u32(address(n), y(x[0]), y(x[1]), y(x[2]), y(x[3]));
  }
  fence_proxy_async_shared();
  bar_sync(barrier_warpgroup + warpgroup, 128);
  return narrowed.inverse;
}

}  // namespace fa3
