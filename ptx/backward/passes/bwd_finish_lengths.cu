// Behind the backward pass of packed lengths: rounds dQ of the query tiles that no thread block of it has rounded, the
// shares of the last key blocks (ListedEarlierStrips), or stores all of it in float32; then adds up the gradient of
// each sink, a thread block for each; and where K/V heads have several parts, dK and dV of each 64 keys of the list, a
// thread block for each gradient.
#include "../../isa/grid.cuh"
#include "../../tile/shared.cuh"
#include "../tile/fp32_rows.cuh"
#include "../tile/sums.cuh"
#include "unseen.cuh"

namespace fa3 {

constexpr int threads = config.threads();

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

// Four columns of a row of a gradient, times `scale`.
FA3_DEVICE void write_four(const BackwardRows& p, uint16_t* gradient, int64_t at, const float4& x, float scale) {
  const float y[4] = {x.x * scale, x.y * scale, x.z * scale, x.w * scale};
  if (p.store == GradientStore::rounded) {
    *reinterpret_cast<uint2*>(gradient + at) =
        p.bf16 ? make_uint2(ptx::cvt_rn_bf16x2_f32(y[1], y[0]), ptx::cvt_rn_bf16x2_f32(y[3], y[2]))
               : make_uint2(ptx::cvt_rn_f16x2_f32(y[1], y[0]), ptx::cvt_rn_f16x2_f32(y[3], y[2]));
    return;
  }
  float4* const to = reinterpret_cast<float4*>(reinterpret_cast<float*>(gradient) + at);
  const float4 before = p.store == GradientStore::added_fp32 ? *to : float4{};
  *to = make_float4(before.x + y[0], before.y + y[1], before.z + y[2], before.w + y[3]);
}

// dK or dV of the n-th 64 keys, counted over the list, its heads and both gradients, as the sum over the parts, in
// their order.
FA3_DEVICE void sum_keys(const PlannedBackwardParams& p, int n) {
  constexpr int in_flight = 4, step = threads / (d / 4);  // rows, of which a thread has four columns each
  const int all = n / p.keys.tiles, tile = n - all * p.keys.tiles;
  const int entry = tile * 64 / p.call.Bc, is_dv = all >= p.keys.heads, head = all - is_dv * p.keys.heads;
  if (entry >= p.counts->blocks) return;
  const PlannedBlock& block = p.blocks[entry];
  const Sequence& sequence = block.sequence;
  const int key = block.key + tile * 64 - entry * p.call.Bc, rows = min(sequence.seqlen_k - key, 64);
  const int column = threadIdx.x % (d / 4) * 4;
  if (column >= (is_dv ? p.keys.head_dim_v : p.keys.head_dim)) return;
  const float scale = is_dv ? 1.f : p.softmax_scale;
  const auto offset = [&](const RowStrides& stride, int head) {
    return sequence.k_batch * stride.batch + head * stride.head + (sequence.k_row + key) * stride.row + column;
  };
  const RowStrides &stride = is_dv ? p.keys.dv_stride : p.keys.dk_stride,
                   &from = is_dv ? p.unrounded.dv_stride : p.unrounded.dk_stride;
  uint16_t* const gradient = is_dv ? p.keys.dv : p.keys.dk;
  const int64_t to = offset(stride, head);
  const float* const sums = (is_dv ? p.unrounded.dv : p.unrounded.dk) + offset(from, head * p.order.parts);
#pragma unroll 1
  for (int first = threadIdx.x / (d / 4); first < rows; first += in_flight * step) {
    float4 x[in_flight] = {};
#pragma unroll 1
    for (int part = 0; part < p.order.parts; part++)
#pragma unroll
      for (int i = 0; i < in_flight; i++) {
        const int row = first + i * step;
        if (row >= rows) continue;
        const float4 more = __ldcs(reinterpret_cast<const float4*>(sums + part * from.head + row * from.row));
        x[i] = make_float4(x[i].x + more.x, x[i].y + more.y, x[i].z + more.z, x[i].w + more.w);
      }
#pragma unroll
    for (int i = 0; i < in_flight; i++) {
      const int row = first + i * step;
      if (row < rows) write_four(p.rows, gradient, to + row * stride.row, x[i], scale);
    }
  }
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
  else sum_keys(p, other - sinks);
  if (at_once) ptx::griddepcontrol_wait();  // so that this pass does not end before that kernel
}
