// fa3_quantize, the first look at x: the largest element, sums or extremes of parts of its heads.
//
// The pass of fa3_quantize that looks at x first. A thread sees the same columns of many rows, of a group of heads; at
// the end of a part the thread block's numbers meet in shared memory, and what comes of them goes to the workspace.
// Sums are taken in a fixed order.
#include "../isa/grid.cuh"
#include "transform.cuh"

namespace fa3 {

struct MeasureShared {
  alignas(16) float columns[warps][d];
  Signs signs;
  float largest[warps];
};
static_assert(sizeof(MeasureShared) <= config.smem_bytes());

FA3_DEVICE MeasureShared& measure_shared() { return *reinterpret_cast<MeasureShared*>(shared_memory()); }

// Partners in rotary embedding are in one thread, as a rule. Otherwise one piece a row, for fewer registers.
using Narrow = Share<has(Trait::rotates) ? 2 : 1>;

struct Sum {
  FA3_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Max {
  FA3_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Min {
  FA3_DEVICE float operator()(float a, float b) const { return fminf(a, b); }
};

// Of each thread's columns over all rows of the thread block: to[column].
template <class Operation>
FA3_DEVICE void reduce_columns(MeasureShared& shared, float (&x)[Narrow::columns], int head_dim, float factor,
                               float* to, Operation operation) {
#pragma unroll
  for (int bit = Narrow::lanes; bit < 32; bit *= 2)
#pragma unroll
    for (int k = 0; k < Narrow::columns; k++) x[k] = operation(x[k], __shfl_xor_sync(0xffffffffu, x[k], bit));
  sync_block();  // the numbers before are read
  if (threadIdx.x % 32 < Narrow::lanes)
#pragma unroll
    for (int k = 0; k < Narrow::columns; k++)
      shared.columns[threadIdx.x / 32][Narrow::column(k / piece_columns) + k % piece_columns] = x[k];
  sync_block();
  if (int(threadIdx.x) >= head_dim) return;
  float all = shared.columns[0][threadIdx.x];
#pragma unroll
  for (int w = 1; w < warps; w++) all = operation(all, shared.columns[w][threadIdx.x]);
  to[threadIdx.x] = all * factor;
}

// What a thread has seen of a head.
template <Measure what>
struct Seen {
  float sum[Narrow::columns], high[Narrow::columns], low[Narrow::columns], largest = 0.f;

  FA3_DEVICE Seen() {
#pragma unroll
    for (int k = 0; k < Narrow::columns; k++) sum[k] = 0.f, high[k] = -INFINITY, low[k] = INFINITY;
  }

  // A row that is not valid is zeros.
  FA3_DEVICE void see(const float (&x)[Narrow::columns], bool valid) {
    if constexpr (what == Measure::largest) largest = fmaxf(largest, largest_finite_of(x));
#pragma unroll
    for (int k = 0; k < Narrow::columns; k++) {
      sum[k] += x[k];
      if (valid) high[k] = fmaxf(high[k], x[k]), low[k] = fminf(low[k], x[k]);
    }
  }
};

// A part of a group of heads. Returns the largest element.
template <Measure what>
FA3_DEVICE float measure_part(const QuantizeParams& p, MeasureShared& shared, int group, int part) {
  constexpr MeasureStep step = MeasureStep::of(config, what);
  constexpr int rows_at_once = step.rows / Narrow::rows;
  static_assert(rows_at_once * Narrow::rows == step.rows);
  // Sums of columns can be mixed as well as the columns (finish.cu).
  const bool mixes = what != Measure::sums && p.hadamard;
  const int heads = min(p.batch * p.heads - group * step.heads, step.heads);
  const uint16_t* x_of[step.heads];
#pragma unroll
  for (int h = 0; h < step.heads; h++) x_of[h] = head_at(p, group * step.heads + min(h, heads - 1)).x;
  Seen<what> seen[step.heads];
#pragma unroll 1
  for (int number = part; number < divided_up(p.rows, step.rows); number += p.parts) {
    const int first = number * step.rows + Narrow::row();
    const int64_t offset = first * p.x_stride_row, between = Narrow::rows * p.x_stride_row;
    uint4 packed[rows_at_once][step.heads][Narrow::pieces];
#pragma unroll
    for (int r = 0; r < rows_at_once; r++)
#pragma unroll
      for (int h = 0; h < step.heads; h++) {
        const bool valid = first + r * Narrow::rows < p.rows && h < heads;
        load<Narrow, false>(p, x_of[h] + offset + r * between, valid, packed[r][h]);
      }
#pragma unroll
    for (int r = 0; r < rows_at_once; r++) {
      const int row = first + r * Narrow::rows;
      const bool valid = row < p.rows;
      const Rotation<Narrow> rotation(p, row, valid);
#pragma unroll
      for (int h = 0; h < step.heads; h++) {
        float x[Narrow::columns];
        unpack_row<Narrow>(p, rotation, shared.signs, mixes, x_of[h] + offset + r * between, packed[r][h], x);
        if (mixes) mix_columns<Narrow>(p, x);
        seen[h].see(x, valid);
      }
    }
  }
  ptx::griddepcontrol_launch_dependents();
  const float factor = mixes ? p.hadamard_scale : 1.f;
  float largest = 0.f;
#pragma unroll
  for (int h = 0; h < step.heads; h++) {
    if (h >= heads) break;
    const int64_t at = int64_t(group * step.heads + h) * p.parts + part;
    if constexpr (what == Measure::largest) {
      largest = fmaxf(largest, factor * seen[h].largest);
      if (p.scales == QuantizeParams::Granularity::tensor) continue;
      sync_block();
      const float head_largest = largest_of_block(shared.largest, factor * seen[h].largest);
      if (threadIdx.x == 0) p.largest[at] = head_largest;
    } else {
      float* const to = p.partials + at * ((what == Measure::extremes ? 3 : 1) * p.head_dim);
      reduce_columns(shared, seen[h].sum, p.head_dim, factor, to, Sum{});
      if constexpr (what == Measure::extremes) {
        reduce_columns(shared, seen[h].high, p.head_dim, factor, to + p.head_dim, Max{});
        reduce_columns(shared, seen[h].low, p.head_dim, factor, to + 2 * p.head_dim, Min{});
      }
    }
  }
  return largest;
}

template <Measure what>
FA3_DEVICE void measure(const QuantizeParams& p) {
  MeasureShared& shared = measure_shared();
  if (p.hadamard) {
    make_signs(p, shared.signs);
    sync_block();
  }
  float largest = 0.f;
  for (int item = blockIdx.x; item < p.groups * p.parts; item += gridDim.x) {
    const int part = item / p.groups;
    largest = fmaxf(largest, measure_part<what>(p, shared, item - part * p.groups, part));
  }
  if (what != Measure::largest || p.scales != QuantizeParams::Granularity::tensor) return;
  largest = largest_of_block(shared.largest, largest);
  if (threadIdx.x == 0) p.largest[blockIdx.x] = largest;
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  switch (p.measure) {
    case Measure::sums: return measure<Measure::sums>(p);
    case Measure::extremes: return measure<Measure::extremes>(p);
    default: return measure<Measure::largest>(p);
  }
}
