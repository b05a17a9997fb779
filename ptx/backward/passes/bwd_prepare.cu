// In front of the backward pass: LSE and D of the query tiles that no thread block of it prepares (backward_work.h), a
// thread block for each; then dQ = 0 of the rows that see no key, a thread block for 64 of them; and where dQ is summed
// up, all counters 0.
//
// With Trait::planned: zeros of the gradients that no key block has (Unseen in backward_list.h), a thread block or
// several for each sequence; LSE and D of all tiles of Br rows, a thread block for each; what these rows add to the
// gradients of sinks; and all counters 0.
#include "../../isa/grid.cuh"
#include "../tile/rows.cuh"
#include "unseen.cuh"

namespace fa3 {

constexpr int threads = config.threads();

FA3_DEVICE void prepare_tile(const BackwardRows& p, const RowTile& place, int tile) {
  constexpr int rows = threads / (d / 8);  // at a time
  prepare_delta<threads, backward_tile_rows / rows>(p, place, tile, p.bf16, threadIdx.x);
  __syncthreads();
  if (threadIdx.x < backward_tile_rows) prepare_row(p, place, tile, threadIdx.x);
}

FA3_DEVICE void prepare(const BackwardParams& p) {
  const int tile = blockIdx.x, tiles = heads_of_pass(p.order) * p.order.head_tiles;
  if (tile >= tiles) return zero_rows<threads>(p.rows, p.empty, tile - tiles, threadIdx.x);
  prepare_tile(p.rows, RowTile(p.rows, tile), tile);
}

FA3_DEVICE float sink_log2_of(const PlannedBackwardParams& p, int head) {
  return p.sinks.sinks[head * p.sinks.sinks_stride] * 1.4426950408889634f;
}

FA3_DEVICE void zeros(const PlannedBackwardParams& p, int number) {
  const int sequence = number / p.zero_slices, slice = number - sequence * p.zero_slices;
  const UnseenRows unseen = unseen_rows(p.call, sequence);
  const Sharers sharers{slice * threads, p.zero_slices * threads};
  if (const GradientStore store = p.rows.store; store != GradientStore::added_fp32) {
    zero_unseen(unseen.q, p.rows.dq, p.rows.dq_stride, p.rows.heads, p.rows.head_dim, store, sharers);
    zero_unseen(unseen.k, p.keys.dk, p.keys.dk_stride, p.keys.heads, p.keys.head_dim, store, sharers);
    zero_unseen(unseen.k, p.keys.dv, p.keys.dv_stride, p.keys.heads, p.keys.head_dim_v, store, sharers);
  }
  if (!p.sinks.dsinks || threadIdx.x >= 32) return;
  float* const sums = p.sinks.sums + (p.sinks.each - p.zero_blocks + number);
#pragma unroll 1
  for (int head = 0; head < p.rows.heads; head++) {
    float sum = 0.f;
    if (p.rows.dlse && sink_log2_of(p, head) != -INFINITY) sum = unseen_sink_terms(p, unseen.q, head, slice);
    if (threadIdx.x == 0) sums[int64_t(head) * p.sinks.each] = sum;
  }
}

// A tile of backward_tile_rows of a head, from row `first` of the sequence on.
FA3_DEVICE void prepare_tile(const PlannedBackwardParams& p, const Sequence& sequence, int head, int number,
                             int first) {
  float* const sink_sum = p.sinks.dsinks ? &p.sinks.sums[int64_t(head) * p.sinks.each + number] : nullptr;
  const int tile = head * p.rows.tiles + number;
  prepare_tile(p.rows, RowTile(sequence, head, first), tile);
  if (!sink_sum) return;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const float sink_log2 = sink_log2_of(p, head);
  float sum = 0.f;
#pragma unroll
  for (int r = 0; r < backward_tile_rows; r += 32) {
    const int64_t at = int64_t(tile) * backward_tile_rows + r + threadIdx.x;
    sum += sink_term(sink_log2, p.rows.lse_log2[at], p.rows.delta[at]);
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x == 0) *sink_sum = sum;
}

// The tiles that are visited together.
FA3_DEVICE void prepare_visit(const PlannedBackwardParams& p, int head, int visit) {
  ptx::griddepcontrol_wait();  // the pass before makes the list of tiles
  const PlannedTile listed = p.tiles[visit];
  const int each = p.rows.tiles_per_visit;
  if (listed.sequence < 0) {
    if (p.sinks.dsinks && threadIdx.x < each)
      p.sinks.sums[int64_t(head) * p.sinks.each + visit * each + threadIdx.x] = 0.f;
    return;
  }
  const Sequence sequence = p.sequences[listed.sequence];
#pragma unroll 1
  for (int i = 0; i < each; i++)
    prepare_tile(p, sequence, head, visit * each + i, (listed.tile * each + i) * backward_tile_rows);
}

FA3_DEVICE void prepare(const PlannedBackwardParams& p) {
  const int number = int(blockIdx.x) - p.zero_blocks;
  if (number < 0) return zeros(p, blockIdx.x);
  const int visit = number / p.rows.heads;
  prepare_visit(p, number - visit * p.rows.heads, visit);
}

using PassParams = std::conditional_t<has(Trait::planned), PlannedBackwardParams, BackwardParams>;

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::PassParams p) {
  using namespace fa3;
  ptx::griddepcontrol_launch_dependents();
  for (int i = blockIdx.x * threads + threadIdx.x; i < p.counters; i += gridDim.x * threads) p.order.added[i] = 0;
  prepare(p);
}
