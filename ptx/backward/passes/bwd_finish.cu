// Behind the backward pass: rounds dQ of the query tiles that no thread block of it has rounded (backward_work.h), a
// thread block for each; or stores it in float32. Where K/V heads have several parts, or gradients are float32, other
// thread blocks add dK and dV up. Above 128 columns that is all, as dQ has a kernel of its own.
//
// With Trait::planned: of the last key blocks the shares of dQ (ListedEarlierStrips); the gradient of each sink,
// added up by a thread block for each; and where K/V heads have several parts, dK and dV.
#include "../../isa/grid.cuh"
#include "../../tile/shared.cuh"
#include "../tile/fp32_rows.cuh"
#include "../tile/sums.cuh"
#include "sum_keys.cuh"
#include "unseen.cuh"

namespace fa3 {

constexpr int threads = config.threads();
static_assert(threads == 32 * strips);

FA3_DEVICE void finish_tile(const BackwardParams& p, const RowTile& place, int tile) {
  constexpr int second_groups = has(Trait::planned) ? 4 : 8;
  if (p.rows.store != GradientStore::rounded) return finish_fp32(p, place, tile, threadIdx.x / 32);
  const Strip strip(p, place, tile, threadIdx.x / 32);
  if (p.order.spread.second == 0) strip.finish<8>(p, 0, p.rows.bf16);
  else strip.finish_with_second<second_groups>(p, tile, p.rows.bf16);
}

FA3_DEVICE void finish(const BackwardParams& p) {
  if (d > 128) {
    ptx::griddepcontrol_wait();
    return sum_keys(p, blockIdx.x);
  }
  const int dq_tiles = p.rows.dq_sums ? tiles_left(p.order) : 0, n = blockIdx.x;
  const int tile = n < dq_tiles ? shared_tile(p.order, n + p.order.done_behind * p.order.section * p.order.share) : -1;
  ptx::griddepcontrol_wait();
  if (n >= dq_tiles) return sum_keys(p, n - dq_tiles);
  if (tile >= 0) finish_tile(p, RowTile(p.rows, tile), tile);
}

FA3_DEVICE void add_sink_terms(const PlannedBackwardParams& p, int head) {
  const float* const sums = p.sinks.sums + int64_t(head) * p.sinks.each;
  float sum = 0.f;
  for (int i = threadIdx.x; i < p.sinks.each; i += threads) sum += sums[i];
  sum = sum_of_lanes(sum);
  float* const warp_sums = reinterpret_cast<float*>(shared_memory());
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sum = 0.f;
  for (int warp = 0; warp < threads / 32; warp++) sum += warp_sums[warp];
  p.sinks.dsinks[head * p.sinks.dsinks_stride] = 0.f - sum;
}

// The last key blocks of the list, in their order, of each its share, by so many thread blocks. Where key blocks are
// counted, nobody waits for the kernel before to end: its thread blocks that have no key block left make room for
// these, and what is complete is rounded while others compute.
FA3_DEVICE void finish_share(const PlannedBackwardParams& p) {
  const int nth = int(blockIdx.x) / p.finish_sharers, sharer = int(blockIdx.x) - nth * p.finish_sharers;
  const int number = p.counts->blocks * p.order.heads - p.finish_blocks / p.finish_sharers + nth;
  if (number < 0) return;
  const ListedBlock listed = listed_block(*p.counts, p.order.section, number);
  const PlannedBlock& block = p.blocks[listed.entry];
  const QTiles share = share_of(block, p.call.Bc);
  const int tiles = share.end - share.begin;
  if (sharer >= tiles * p.readers) return;
  if (p.order.done_behind > 0) {
    if (threadIdx.x == 0) wait_for_listed_sums(p, block, share, listed.entry, listed.head, p.call.Bc);
    __syncthreads();
  }
  for (int i = sharer; i < tiles * p.readers; i += p.finish_sharers) {
    const int reader = i / tiles, tile = share.begin + i - reader * tiles, head = listed.head * p.readers + reader;
    const RowTile place(block.sequence, head, tile * backward_tile_rows);
    finish_tile(p, place, head * p.rows.tiles + block.first_tile * p.rows.tiles_per_visit + tile);
  }
}

FA3_DEVICE void finish(const PlannedBackwardParams& p) {
  const bool shares = int(blockIdx.x) < p.finish_blocks, at_once = shares && p.order.done_behind > 0;
  const int other = int(blockIdx.x) - p.finish_blocks, sinks = p.sinks.dsinks ? int(p.rows.heads) : 0;
  if (!at_once) ptx::griddepcontrol_wait();
  if (shares) finish_share(p);
  else if (other < sinks) add_sink_terms(p, other);
  else sum_keys(p, other - sinks);
  if (at_once) ptx::griddepcontrol_wait();  // so that this pass does not end before that kernel
}

using PassParams = std::conditional_t<has(Trait::planned), PlannedBackwardParams, BackwardParams>;

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::PassParams p) { fa3::finish(p); }
