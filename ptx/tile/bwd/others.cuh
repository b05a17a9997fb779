// What a thread block does for the query rows of others (backward_work.h): it rounds dQ that earlier ones have summed
// up. It waits for these. They are under way or over, as thread blocks start in their order.
#pragma once
#include "../../isa/fence.cuh"
#include "../../isa/grid.cuh"
#include "rows.cuh"
#include "work.cuh"

namespace fa3 {

FA3_DEVICE void wait_for_count(const uint32_t* counter, uint32_t count) {
  while (ptx::ld_acquire_gpu_u32(counter) != count) __nanosleep(64);
}

// By the thread whose additions are over.
FA3_DEVICE void say_added(const BackwardParams& p, const KeyWork& work) {
  if (p.order.done_behind > 0) ptx::red_add_release_gpu_u32(&p.order.added[work.batch_head], 1);
}

// By `warps` warps, each with strips of its own.
template <int warps>
FA3_DEVICE void finish_others(const BackwardParams& p, const KeyWork& work, int warp) {
  const KeyOrder& order = p.order;
  const int section = work.section - order.behind;
  if (section < 0 || section >= order.done_behind) return;
  const HeadBlock block = block_at(order, section, work.n);
  const Share share = share_of(order, block);
  if (threadIdx.x % 32 == 0) wait_for_count(&order.added[block.batch_head], order.blocks);
  __syncwarp();
#pragma unroll 1
  for (int i = warp; i < share.tiles * strips; i += warps)
    finish_strip<8>(p, share.first + i / strips, i % strips, is_bf16);
}

}  // namespace fa3
