// Behind the backward pass of packed lengths: rounds dQ of the query tiles that no thread block of it has rounded, the
// shares of the last key blocks (ListedOthersStrips), or stores all of it in float32; then adds up the gradient of each
// sink, a thread block for each; and where K/V heads have several parts, dK and dV of each 64 keys of the list, a
// thread block for each gradient.
#include "../isa/grid.cuh"
#include "../tile/bwd/fp32_rows.cuh"
#include "../tile/bwd/sum_keys.cuh"
#include "../tile/bwd/sums.cuh"
#include "../tile/bwd/unseen.cuh"
#include "../tile/shared.cuh"

namespace fa3 {

constexpr int threads = config.threads();

FA3_DEVICE void add_sink_terms(const PlannedBackwardParams& p, int head) {
  const float* const sums = p.sinks.sums + int64_t(head) * p.sinks.each;
  float sum = 0.f;
  for (int i = threadIdx.x; i < p.sinks.each; i += threads) sum += sums[i];
  sum = sum_of_lanes(sum);
  float* const of_warps = reinterpret_cast<float*>(shared_memory());
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sum = 0.f;
  for (int warp = 0; warp < threads / 32; warp++) sum += of_warps[warp];
  p.sinks.dsinks[head * p.sinks.dsinks_stride] = 0.f - sum;
}

// The last key blocks of the list, in their order, of each its share, by so many thread blocks. Where key blocks are
// counted, nobody waits for the kernel before to end: its thread blocks that have no key block left make room for
// these, and what is complete is rounded while others compute.
FA3_DEVICE void round_share(const PlannedBackwardParams& p) {
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
    const int at = head * p.rows.tiles + block.first_tile * p.rows.tiles_per_visit + tile;
    if (p.rows.store != GradientStore::rounded) {
      finish_fp32(p, place, at, threadIdx.x / 32);
      continue;
    }
    const Strip strip(p, place, at, threadIdx.x / 32);
    if (p.order.spread.second == 0) strip.finish<8>(p, 0, p.rows.bf16);
    else strip.finish_with_second<4>(p, at, p.rows.bf16);
  }
}

// The n-th 64 keys, counted over the list, its heads and both gradients.
FA3_DEVICE void sum_listed_keys(const PlannedBackwardParams& p, int n) {
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
  const int all = n / p.keys.tiles, tile = n - all * p.keys.tiles;
  const int entry = tile * 64 / p.call.Bc, is_dv = all >= p.keys.heads, head = all - is_dv * p.keys.heads;
  if (entry >= p.counts->blocks) return;
  const PlannedBlock& block = p.blocks[entry];
  const Sequence& sequence = block.sequence;
  const RowStrides& stride = is_dv ? p.keys.dv_stride : p.keys.dk_stride;
  const int row = block.key + tile * 64 - entry * p.call.Bc + 16 * strip + lane / 4;
  const float4* const sums = key_sums(p, is_dv ? KeyGradient::dv : KeyGradient::dk, head * p.order.parts, tile) +
                             256 * strip + lane;
  sum_keys(p, is_dv, sums, int64_t(p.keys.tiles) * (16 * d),
           sequence.k_batch * stride.batch + head * stride.head + (sequence.k_row + row) * stride.row,
           sequence.seqlen_k - row);
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::PlannedBackwardParams p) {
  using namespace fa3;
  static_assert(threads == 32 * strips);
  const bool rounds = int(blockIdx.x) < p.finish_blocks, at_once = rounds && p.order.done_behind > 0;
  const int other = int(blockIdx.x) - p.finish_blocks, sinks = p.sinks.dsinks ? int(p.rows.heads) : 0;
  if (!at_once) ptx::griddepcontrol_wait();
  if (rounds) round_share(p);
  else if (other < sinks) add_sink_terms(p, other);
  else sum_listed_keys(p, other - sinks);
  if (at_once) ptx::griddepcontrol_wait();  // so that this pass does not end before that kernel
}
