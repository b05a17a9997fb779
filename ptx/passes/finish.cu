// fa3_quantize, between the first look at x and the second: sums become means, and extremes what scales follow from.
//
// What is known of a head's parts becomes its mean, and the largest difference from it.
#include "../isa/grid.cuh"
#include "mix.cuh"

namespace fa3 {

// Any head dimension: the row's d is the largest.
struct FinishShared {
  float sum[config.threads()], high[config.threads()], low[config.threads()];
  alignas(16) float mean[d];
  Signs signs;
  float largest[warps];
};
static_assert(sizeof(FinishShared) <= config.smem_bytes());

FA3_DEVICE FinishShared& finish_shared() { return *reinterpret_cast<FinishShared*>(shared_memory()); }

// As the columns are mixed, in shared memory, by the first warp.
FA3_DEVICE void mix_mean(const QuantizeParams& p, FinishShared& shared) {
  using Row = Share<1>;
  static_assert(Row::lanes == 32);
  if (threadIdx.x >= 32) return;
  float x[piece_columns];
  float* const own = shared.mean + Row::column(0);
#pragma unroll
  for (int k = 0; k < piece_columns; k++) x[k] = own[k];
  change_signs(shared.signs.of(Row::column(0)), x);
  mix_columns<Row>(p, x);
#pragma unroll
  for (int k = 0; k < piece_columns; k++) own[k] = x[k] * p.hadamard_scale;
}

// All threads share the parts, as many to each column as there are; then the first ones have a column each. Returns the
// largest |x - mean| that is finite, of this thread's column.
FA3_DEVICE float finish_head(const QuantizeParams& p, FinishShared& shared, int number) {
  const bool extremes = p.measure == Measure::extremes;
  const int shares = config.threads() / p.head_dim, share = threadIdx.x / p.head_dim;
  const int column = threadIdx.x - share * p.head_dim, part_floats = (extremes ? 3 : 1) * p.head_dim;
  const float* const partials = p.partials + int64_t(number) * p.parts * part_floats + column;
  float sum = 0.f, high = -INFINITY, low = INFINITY;
  if (share < shares) {
#pragma unroll 8
    for (int part = share; part < p.parts; part += shares) {
      const float* const from = partials + int64_t(part) * part_floats;
      sum += __ldcg(from);
      if (extremes) high = fmaxf(high, __ldcg(from + p.head_dim)), low = fminf(low, __ldcg(from + 2 * p.head_dim));
    }
  }
  sync_block();  // of the head before, all is read
  shared.sum[threadIdx.x] = sum, shared.high[threadIdx.x] = high, shared.low[threadIdx.x] = low;
  if (threadIdx.x < d) shared.mean[threadIdx.x] = 0.f;
  sync_block();
  const bool has_column = share == 0;
  if (has_column) {
    for (int other = 1; other < shares; other++) {
      const int at = other * p.head_dim + column;
      sum += shared.sum[at], high = fmaxf(high, shared.high[at]), low = fminf(low, shared.low[at]);
    }
    shared.mean[column] = sum / float(p.rows);
  }
  if (p.hadamard && !extremes) {
    sync_block();
    mix_mean(p, shared);
    sync_block();
  }
  if (!has_column) return 0.f;
  const float mean = shared.mean[column];
  const Head head = head_at(p, number);
  p.means[int64_t(number) * p.head_dim + column] = mean;
  p.mean[head.batch * p.mean_stride_batch + head.head * p.mean_stride_head + column] = mean;
  const float differences[2] = {high - mean, low - mean};
  return extremes ? largest_finite_of(differences) : 0.f;
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  using Granularity = QuantizeParams::Granularity;
  FinishShared& shared = finish_shared();
  ptx::griddepcontrol_launch_dependents();
  if (p.hadamard) make_signs(p, shared.signs);
  ptx::griddepcontrol_wait();
  float largest = 0.f;
  for (int number = blockIdx.x; number < p.batch * p.heads; number += gridDim.x) {
    const float own = finish_head(p, shared, number);
    largest = fmaxf(largest, own);
    if (p.scales != Granularity::head) continue;
    const float head_largest = largest_of_block(shared.largest, own);
    if (threadIdx.x == 0) p.largest[number] = head_largest;
  }
  if (p.scales != Granularity::tensor) return;
  largest = largest_of_block(shared.largest, largest);
  if (threadIdx.x == 0) p.largest[blockIdx.x] = largest;
}
