// Rounding dQ that earlier key blocks have summed up (backward_work.h), by thread blocks that work on later ones. They
// wait for the earlier ones, which are under way or done, as key blocks are taken in their order.
#pragma once
#include "../../isa/fence.cuh"
#include "../../isa/grid.cuh"
#include "../barriers.cuh"
#include "rows.cuh"
#include "work.cuh"

namespace fa3 {

FA3_DEVICE void wait_for_count(const uint32_t* counter, uint32_t count) {
  while (ptx::ld_acquire_gpu_u32(counter) != count) __nanosleep(64);
  delay(count);
}

// By each thread that adds dQ, when its additions for a key block are over.
FA3_DEVICE void count_additions(const BackwardParams& p, const KeyWork& work) {
  if (p.order.done_behind > 0) ptx::red_add_release_gpu_u32(&p.order.added[work.batch_head], 1);
}

// The strips of dQ that a thread block rounds beside a key block. If there are none, it waits for nobody.
struct OthersStrips {
  int batch_head;  // of K and V
  int first, end;

  FA3_DEVICE OthersStrips(const BackwardParams& p, int number) {
    const KeyOrder& order = p.order;
    const int its_section = number / order.section, section = its_section - order.behind;
    first = end = batch_head = 0;
    if (section < 0 || section >= order.done_behind) return;
    const HeadBlock block = block_at(order, section, number - its_section * order.section);
    const TileShare share = share_of(order, block);
    batch_head = block.batch_head, first = share.first * strips, end = first + share.tiles * strips;
  }
  // Until they are summed up. By one thread.
  FA3_DEVICE void wait_for_sums(const BackwardParams& p) const {
    if (first < end) wait_for_count(&p.order.added[batch_head], p.order.blocks * p.order.adders);
  }
};

}  // namespace fa3
