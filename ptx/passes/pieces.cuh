// Rows of x as the passes of fa3_quantize hold them. A thread has pieces of eight columns of a row: 16 bytes of x each,
// then float32.
#pragma once
#include "../isa/barrier.cuh"
#include "../params/quantize_work.h"
#include "../tile/config.cuh"
#include "../tile/shared.cuh"
#include "../tile/unpack.cuh"

namespace fa3 {

inline constexpr int piece_columns = 8, warps = config.threads() / 32;

// `pieces` pieces of a row are a thread's, and `lanes` neighbouring lanes have the row. Their pieces alternate, so that
// a warp's loads of 16 bytes a lane fall on whole sectors.
template <int pieces_>
struct Share {
  static constexpr int pieces = pieces_, lanes = d / piece_columns / pieces, rows = config.threads() / lanes;
  static constexpr int columns = pieces * piece_columns;  // of a thread
  static_assert(lanes >= 2 && lanes <= 32);

  FA3_DEVICE static int lane() { return threadIdx.x % lanes; }
  FA3_DEVICE static int row() { return threadIdx.x / lanes; }
  FA3_DEVICE static int column(int piece) { return piece_columns * (piece * lanes + lane()); }
};

FA3_DEVICE void sync_block() { ptx::bar_sync(0, config.threads()); }

struct Head {
  int32_t batch, head;
  const uint16_t* x;
};

FA3_DEVICE Head head_at(const QuantizeParams& p, int number) {
  const int batch = number / p.heads, head = number - batch * p.heads;
  return {batch, head, p.x + batch * p.x_stride_batch + head * p.x_stride_head};
}

// A row's pieces, or zeros where there is nothing. `last`: nobody will read them again.
template <class S, bool last>
FA3_DEVICE void load(const QuantizeParams& p, const uint16_t* row, bool valid, uint4 (&packed)[S::pieces]) {
  const int columns = valid ? p.head_dim : 0;
#pragma unroll
  for (int i = 0; i < S::pieces; i++) {
    packed[i] = make_uint4(0, 0, 0, 0);
    const auto* const from = reinterpret_cast<const uint4*>(row + S::column(i));
    if (S::column(i) < columns) packed[i] = last ? __ldcs(from) : *from;
  }
}

// Elements of x.
template <int words>
FA3_DEVICE void unpack(const QuantizeParams& p, const uint32_t (&packed)[words], float* x) {
  unpack(p.bf16, packed, x);
}

// The largest |x|, and the largest that is finite. NaN is no number to fmaxf.
template <int n>
FA3_DEVICE float largest_of(const float (&x)[n]) {
  float largest[2] = {};  // so that one maximum need not wait for the one before
#pragma unroll
  for (int k = 0; k < n; k++) largest[k % 2] = fmaxf(largest[k % 2], fabsf(x[k]));
  return fmaxf(largest[0], largest[1]);
}
template <int n>
FA3_DEVICE float largest_finite_of(const float (&x)[n]) {
  float largest = largest_of(x);
  if (largest == INFINITY) {
    largest = 0.f;
#pragma unroll
    for (int k = 0; k < n; k++) largest = fmaxf(largest, fabsf(x[k]) < INFINITY ? fabsf(x[k]) : 0.f);
  }
  return largest;
}

// The largest of all threads' numbers, through an array in shared memory: put there, and, behind a barrier, taken. The
// numbers are not negative: as bits they have the same order.
FA3_DEVICE void put_largest(float (&largest_by_warp)[warps], float largest) {
  const uint32_t warp_largest = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
  if (threadIdx.x % 32 == 0) largest_by_warp[threadIdx.x / 32] = __uint_as_float(warp_largest);
}
FA3_DEVICE float take_largest(const float (&largest_by_warp)[warps]) {
  float largest = largest_by_warp[0];
#pragma unroll
  for (int w = 1; w < warps; w++) largest = fmaxf(largest, largest_by_warp[w]);
  return largest;
}
FA3_DEVICE float largest_of_block(float (&largest_by_warp)[warps], float largest) {
  put_largest(largest_by_warp, largest);
  sync_block();
  return take_largest(largest_by_warp);
}

}  // namespace fa3
