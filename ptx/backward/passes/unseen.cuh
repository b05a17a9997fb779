// What varlen sequences leave over: gradients of rows that no key block has, which are 0, and what such rows add to the
// gradient of a sink.
#pragma once
#include "../../isa/math.cuh"
#include "../../params/backward_params.h"
#include "../tile/rows.cuh"

namespace fa3 {

// With all `threads` threads of the thread blocks that share it.
struct Sharers {
  int number, count;  // of them all, the first thread of this thread block; and how many

  FA3_DEVICE int first(int thread) const { return number + thread; }
};

// Writes 0 to rows of a gradient, of `heads` heads.
FA3_DEVICE void zero_unseen(const Unseen& unseen, uint16_t* to, const RowStrides& stride, const Divisor& heads,
                            int columns, GradientStore store, const Sharers& threads) {
  constexpr int lanes = d / 8;
  const int all = unseen.count() * heads, thread = threads.first(threadIdx.x), column = thread % lanes * 8;
  if (column >= columns) return;
  for (int i = thread / lanes; i < all; i += threads.count / lanes) {
    const int n = i / heads, head = i - n * heads;
    zero_eight(to, unseen.batch * stride.batch + head * stride.head + unseen.row(n) * stride.row + column, store);
  }
}

// Sums over the lanes of each warp.
FA3_DEVICE float sum_of_lanes(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

// What a row adds to the sum for its head: its weight of the sink, times D.
FA3_DEVICE float sink_term(float sink_log2, float lse_log2, float delta) {
  return ptx::ex2_approx_ftz(sink_log2 - lse_log2) * delta;
}

// Rows that see no key have O = 0, and their LSE is the sink: so D is -dLSE, and its weight 1. By a warp.
FA3_DEVICE float unseen_sink_terms(const PlannedBackwardParams& p, const Unseen& unseen, int head, int slice) {
  const BackwardRows& rows = p.rows;
  const int before = unseen.seen.begin - unseen.used.begin, all = before + unseen.used.end - unseen.seen.end;
  float sum = 0.f;
  for (int n = 32 * slice + threadIdx.x % 32; n < all; n += 32 * p.zero_slices) {
    const int row = n < before ? unseen.used.begin + n : unseen.seen.end + n - before;
    sum -= rows.dlse[unseen.batch * rows.dlse_stride.batch + head * rows.dlse_stride.head +
                     row * rows.dlse_stride.row];
  }
  return sum_of_lanes(sum);
}

}  // namespace fa3
