// The first look at the data, for fa3_quantize's means and for scales of more than 64 rows: parts are measured in
// registers, their results meet in the workspace, and the thread block that brings a head's last part finishes the
// head. Sums are taken in a fixed order, whoever takes them.
#pragma once
#include "../isa/fence.cuh"
#include "quantize.cuh"

namespace fa3 {

// Where something lies in the workspace.
template <class T>
FA3_DEVICE T* in_workspace(const QuantizeParams& p, int64_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(p.workspace) + offset);
}
FA3_DEVICE uint32_t* arrived(const QuantizeParams& p, int head) {
  return in_workspace<uint32_t>(p, p.layout.arrived) + head;
}
FA3_DEVICE uint32_t* ready(const QuantizeParams& p, int head) {
  return in_workspace<uint32_t>(p, p.layout.ready) + head;
}
FA3_DEVICE float* ranges(const QuantizeParams& p, int head) { return in_workspace<float>(p, p.layout.ranges) + head; }
FA3_DEVICE float* means(const QuantizeParams& p, int head) {
  return in_workspace<float>(p, p.layout.means) + int64_t(head) * p.head_dim;
}

// What is known of a part: of each column the sum, or the sum and the extremes; or the largest element of all.
enum class Measure { sums, extremes, largest };
FA3_DEVICE Measure measure_of(const QuantizeParams& p) {
  if (!p.mean) return Measure::largest;
  return p.scales == QuantizeParams::Granularity::block ? Measure::sums : Measure::extremes;
}
FA3_DEVICE int rows_of(Measure measure) { return measure == Measure::extremes ? 3 : 1; }
FA3_DEVICE float* partial(const QuantizeParams& p, int head, int part) {
  const Measure measure = measure_of(p);
  const int floats = measure == Measure::largest ? 1 : rows_of(measure) * p.head_dim;
  return in_workspace<float>(p, p.layout.partials) + (int64_t(head) * p.order.parts + part) * floats;
}

struct Sum {
  FA3_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Max {
  FA3_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Min {
  FA3_DEVICE float operator()(float a, float b) const { return fminf(a, b); }
};

// Of each thread's piece over all rows of the thread block: to[column].
template <class Operation>
FA3_DEVICE void reduce_columns(QuantizeShared& shared, float (&x)[piece_columns], int head_dim, float* to,
                               Operation operation) {
#pragma unroll
  for (int bit = Narrow::lanes; bit < 32; bit *= 2)
#pragma unroll
    for (int k = 0; k < piece_columns; k++) x[k] = operation(x[k], __shfl_xor_sync(0xffffffffu, x[k], bit));
  if (threadIdx.x % 32 < Narrow::lanes)
#pragma unroll
    for (int k = 0; k < piece_columns; k++) shared.columns[threadIdx.x / 32][Narrow::column(0) + k] = x[k];
  sync_block();
  if (int(threadIdx.x) < head_dim) {
    float all = shared.columns[0][threadIdx.x];
#pragma unroll
    for (int w = 1; w < warps; w++) all = operation(all, shared.columns[w][threadIdx.x]);
    to[threadIdx.x] = all;
  }
  sync_block();
}

// Sums alone are taken before the columns are mixed, which is the same to them afterwards.
template <Measure measure>
FA3_DEVICE void measure_part(const QuantizeParams& p, QuantizeShared& shared, const Head& head, int part, float* to) {
  constexpr int at_once = 4;
  float sum[piece_columns], high[piece_columns], low[piece_columns], largest = 0.f;
#pragma unroll
  for (int k = 0; k < piece_columns; k++) sum[k] = 0.f, high[k] = -INFINITY, low[k] = INFINITY;
  const int64_t step = Narrow::rows * p.x_stride_row;
  int row = part * measured_rows + Narrow::row();
  const uint16_t* from = head.x + row * p.x_stride_row;
#pragma unroll 1
  for (int left = min(measured_rows, p.rows - part * measured_rows); left > 0; left -= at_once * Narrow::rows) {
    uint4 packed[at_once][1];
#pragma unroll
    for (int i = 0; i < at_once; i++)
      load<Narrow, false>(p, from + i * step, row + i * Narrow::rows < p.rows, packed[i]);
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      const bool valid = row < p.rows;
      float x[piece_columns];
      unpack_row<Narrow>(p, from, row, valid, packed[i], x);
      if (measure != Measure::sums && p.hadamard) mix_columns<Narrow>(p, shared, x);
      if constexpr (measure == Measure::largest) largest = fmaxf(largest, largest_of(x));
#pragma unroll
      for (int k = 0; k < piece_columns; k++) {
        sum[k] += x[k];
        if (valid) high[k] = fmaxf(high[k], x[k]), low[k] = fminf(low[k], x[k]);
      }
      row += Narrow::rows, from += step;
    }
  }
  if constexpr (measure == Measure::largest) {
    largest = largest_of_block(shared, largest);
    if (threadIdx.x == 0) *to = largest;
  } else {
    reduce_columns(shared, sum, p.head_dim, to, Sum{});
    if constexpr (measure == Measure::extremes) {
      reduce_columns(shared, high, p.head_dim, to + p.head_dim, Max{});
      reduce_columns(shared, low, p.head_dim, to + 2 * p.head_dim, Min{});
    }
  }
}

FA3_DEVICE void measure_part(const QuantizeParams& p, QuantizeShared& shared, int number, int part) {
  const Head head = head_at(p, number);
  float* const to = partial(p, number, part);
  switch (measure_of(p)) {
    case Measure::sums: return measure_part<Measure::sums>(p, shared, head, part, to);
    case Measure::extremes: return measure_part<Measure::extremes>(p, shared, head, part, to);
    case Measure::largest: return measure_part<Measure::largest>(p, shared, head, part, to);
  }
}

// Counts this thread block in. Is it the last of so many? Then it sees what all of them have written.
FA3_DEVICE bool arrives_last(QuantizeShared& shared, uint32_t* counter, int count) {
  sync_block();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.last = atomicAdd(counter, 1u) == uint32_t(count - 1);
    __threadfence();
  }
  sync_block();
  return shared.last;
}

FA3_DEVICE void set_ready(uint32_t* flag) {
  sync_block();
  if (threadIdx.x == 0) ptx::red_add_release_gpu_u32(flag, 1);
}
FA3_DEVICE void wait_until_ready(const uint32_t* flag) {
  if (threadIdx.x == 0)
    while (ptx::ld_acquire_gpu_u32(flag) == 0) {
    }
  sync_block();
}

// The sums of all parts become the mean. Returns the largest |x - mean| that is finite, of this thread's column. With
// two threads for each column, each takes half of the parts.
FA3_DEVICE float finish_mean(const QuantizeParams& p, QuantizeShared& shared, int number) {
  constexpr int threads = config.threads() / d;
  static_assert(threads == 1 || threads == 2);
  const int column = threadIdx.x % d, half = threadIdx.x / d, parts = p.order.parts;
  const bool extremes = measure_of(p) == Measure::extremes, valid = column < p.head_dim;
  float sum = 0.f, high = -INFINITY, low = INFINITY;
  if (valid) {
#pragma unroll 8
    for (int part = half * parts / threads; part < (half + 1) * parts / threads; part++) {
      const float* const from = partial(p, number, part) + column;
      sum += __ldcg(from);
      if (extremes) high = fmaxf(high, __ldcg(from + p.head_dim)), low = fminf(low, __ldcg(from + 2 * p.head_dim));
    }
  }
  static_assert(warps >= 3);
  if (half) shared.columns[0][column] = sum, shared.columns[1][column] = high, shared.columns[2][column] = low;
  sync_block();
  if (threads == 2) {
    sum += shared.columns[0][column];
    high = fmaxf(high, shared.columns[1][column]), low = fminf(low, shared.columns[2][column]);
  }
  float mean = sum / float(p.rows);
  if (!extremes && p.hadamard) {
    if (!half) shared.mean[column] = valid ? mean : 0.f;
    sync_block();
    if (threadIdx.x < 32) {  // the first lanes have the columns, the others repeat them
      float x[piece_columns];
#pragma unroll
      for (int k = 0; k < piece_columns; k++) x[k] = shared.mean[Narrow::column(0) + k];
      mix_columns<Narrow>(p, shared, x);
      if (threadIdx.x < Narrow::lanes)
#pragma unroll
        for (int k = 0; k < piece_columns; k++) shared.mean[Narrow::column(0) + k] = x[k];
    }
    sync_block();
    mean = shared.mean[column];
  }
  if (half || !valid) return 0.f;
  const Head head = head_at(p, number);
  means(p, number)[column] = mean;
  p.mean[head.batch * p.mean_stride_batch + head.head * p.mean_stride_head + column] = mean;
  const float differences[2] = {high - mean, low - mean};
  return extremes ? largest_of(differences) : 0.f;
}

FA3_DEVICE float largest_part(const QuantizeParams& p, int number) {
  float largest = 0.f;
  for (int part = threadIdx.x; part < p.order.parts; part += config.threads())
    largest = fmaxf(largest, __ldcg(partial(p, number, part)));
  return largest;
}

// All parts of the head are measured: its mean and scale, and if it is the last head, the tensor's scale.
FA3_DEVICE void finish_head(const QuantizeParams& p, QuantizeShared& shared, int number) {
  using Granularity = QuantizeParams::Granularity;
  float largest = p.mean ? finish_mean(p, shared, number) : largest_part(p, number);
  if (p.scales == Granularity::block) return set_ready(ready(p, number));
  largest = largest_of_block(shared, largest);
  if (p.scales == Granularity::head) {
    if (threadIdx.x == 0) {
      const Head head = head_at(p, number);
      *ranges(p, number) = range_of(largest);
      p.scale[head.batch * p.scale_stride_batch + head.head * p.scale_stride_head] = scale_of(range_of(largest));
    }
    return set_ready(ready(p, number));
  }
  const int heads = p.order.heads;
  if (threadIdx.x == 0) *ranges(p, number) = largest;
  if (!arrives_last(shared, arrived(p, heads), heads)) return;
  largest = 0.f;
  for (int head = threadIdx.x; head < heads; head += config.threads())
    largest = fmaxf(largest, __ldcg(ranges(p, head)));
  largest = largest_of_block(shared, largest);
  if (threadIdx.x == 0) *ranges(p, heads) = range_of(largest), *p.scale = scale_of(range_of(largest));
  set_ready(ready(p, heads));
}

// The items of this thread block, one after the other, claimed from a counter in the workspace. It needs no memset
// before a launch, as in schedule.cuh: the first thread block prepares it and the counters behind it, the last one to
// finish marks it unprepared again, and any other content counts as unprepared. Even a thread block's first item is
// claimed: then items are claimed in order whenever thread blocks start, and none waits for one that cannot start.
class QuantizeClaims {
 public:
  FA3_DEVICE QuantizeClaims(const QuantizeParams& p, QuantizeShared& shared) : p_(p), shared_(shared) {
    if (threadIdx.x >= 32) return;
    prepare();
    if (threadIdx.x == 0) next_ = atomicAdd(&p_.workspace->next_piece, 1u);
  }

  // The next item; false if there is none, and then it is not to be called again. The one after it is asked for.
  FA3_DEVICE bool take(QuantizeItem& item) {
    sync_block();  // all threads are done with the item before
    if (threadIdx.x == 0) shared_.number = next_;
    sync_block();
    const int number = shared_.number;
    const bool some = number < p_.order.count();
    if (some) item = item_at(p_.order, number);
    if (threadIdx.x == 0) {
      Workspace& w = *p_.workspace;
      if (some) next_ = atomicAdd(&w.next_piece, 1u);
      else if (atomicAdd(&w.finished, 1u) == gridDim.x - 1u) ptx::st_release_gpu_u64(&w.state, idle);
    }
    return some;
  }

 private:
  // As in schedule.cuh, other numbers.
  static constexpr unsigned long long idle = 0, preparing = 0x3b8d20f7c5916ea4ull, ready = 0xe4a7190d62cb583full;

  // By the first warp.
  FA3_DEVICE void prepare() {
    Workspace& w = *p_.workspace;
    bool prepares = false;
    if (threadIdx.x == 0)
      for (;;) {
        const unsigned long long seen = ptx::ld_acquire_gpu_u64(&w.state);
        if (seen == ready) break;
        if (seen != preparing && atomicCAS(&w.state, seen, preparing) == seen) {
          prepares = true;
          break;
        }
      }
    if (!__shfl_sync(0xffffffffu, prepares, 0)) return;
    if (threadIdx.x == 0) w.next_piece = w.finished = 0;
    uint4* const from = in_workspace<uint4>(p_, p_.layout.arrived);
    for (int i = threadIdx.x; i < p_.layout.cleared / 16; i += 32) from[i] = make_uint4(0, 0, 0, 0);
    __threadfence();
    __syncwarp();
    if (threadIdx.x == 0) ptx::st_release_gpu_u64(&w.state, ready);
  }

  const QuantizeParams& p_;
  QuantizeShared& shared_;
  int next_ = 0;
};

}  // namespace fa3
