// Preparing query rows (LSE and D) that later key blocks will visit (backward_work.h), by one warp beside the products
// of earlier ones.
#pragma once
#include "../isa/fence.cuh"
#include "../tile/element.cuh"
#include "earlier_dq.cuh"

namespace fa3 {

// The rows of the share of the key block that comes `ahead` sections after this one. By a warp.
FA3_DEVICE void prepare_ahead(const BackwardParams& p, int number) {
  const HeadBlock block = block_ahead(p.order, number);
  if (block.block >= p.order.blocks) return;
  const TileShare share = share_of(p.order, block);
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int tile = share.first; tile < share.first + share.tiles; tile++) {
    prepare_delta<32, 2>(p.rows, tile, is_bf16, lane);
    __syncwarp();
#pragma unroll 1
    for (int r = lane; r < backward_tile_rows; r += 32) prepare_row(p.rows, tile, r);
  }
  __syncwarp();
  if (lane == 0) ptx::red_add_release_gpu_u32(&p.order.prepared[block.batch_head], 1);
}

// Until the rows that a key block visits are prepared. By the thread that loads them.
FA3_DEVICE void wait_for_rows(const BackwardParams& p, const KeyWork& work) {
  if (work.batch_head < heads_of_pass(p.order)) return;
  wait_for_count(&p.order.prepared[work.batch_head], p.order.blocks);
  ptx::fence_proxy_async_global();
}

}  // namespace fa3
