// Waiting for sums of dQ that key blocks of a list add to, before they are rounded: by thread blocks of bwd.cu, and by
// those of the pass behind it.
#pragma once
#include "../../isa/fence.cuh"
#include "../../params/backward_params.h"
#include "../../tile/barriers.cuh"

namespace fa3 {

FA3_DEVICE void wait_for_count(const uint32_t* counter, uint32_t count) {
  while (ptx::ld_acquire_gpu_u32(counter) != count) __nanosleep(64);
  delay(count);
}

// Until the share of a key block, the entry-th of the list, is summed up. All blocks of its sequence add to it, or
// under bounds on both sides those from the first one that its first row sees. By one thread.
FA3_DEVICE void wait_for_listed_sums(const PlannedBackwardParams& p, const PlannedBlock& block, const QTiles& share,
                                     int entry, int part, int Bc) {
  if (!counts_blocks(p.call.window)) {
    const int counted = first_block_entry(p.order.dq, entry, block.block);
    return wait_for_count(&p.order.added[counted * p.order.heads + part], block.blocks * p.order.adders);
  }
  const Visible seen = visible_of(block.sequence, true, true, {0});
  const int before = block.block - seen.of(share.begin * backward_tile_rows).begin / Bc;
  for (int n = entry - before; n <= entry; n++)
    wait_for_count(&p.order.added[n * p.order.heads + part], p.order.adders);
}

}  // namespace fa3
