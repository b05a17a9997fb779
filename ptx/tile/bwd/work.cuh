// What a thread block of the backward pass works on: Bc keys of one head of K and V, and the query tiles that see any
// of them, of all heads that read it, one head after the other.
#pragma once
#include "../../backward_params.h"
#include "../config.cuh"

namespace fa3 {

struct KeyWork {
  int section, n;  // this thread block is the n-th of the section
  int batch, head_kv, batch_head, key;  // the first key
  int first, end;                       // query tiles [first, end) of each head, of Br rows
  int start;                            // the one to begin with
  int all;                              // of all heads

  FA3_DEVICE KeyWork(const BackwardParams& p, int thread_block) {
    const KeyOrder& order = p.order;
    section = thread_block / order.section;
    n = thread_block - section * order.section;
    const HeadBlock here = block_at(order, section, n);
    batch_head = here.batch_head;
    batch = batch_head / order.heads_kv, head_kv = batch_head - batch * order.heads_kv;
    key = here.block * Bc;
    const int first_query = causal ? max(key - p.visible.right, 0) : 0;
    end = order.head_tiles == 0 ? 0 : p.rows.tiles / (Br / backward_tile_rows);
    first = min(first_query / Br, end);
    // Without a mask all thread blocks of a head would come to the same tile at once, and wait for the first one's dQ.
    start = causal ? first : int(int64_t(here.block) * end / order.blocks);
    all = (end - first) * p.heads_per_kv;
  }
};

// A query tile, in the order in which they come: of each head from `start` to the last one, then from the first one.
struct QueryTile {
  int head, tile;
  int before;  // tiles of all heads before this one

  FA3_DEVICE QueryTile(const BackwardParams& p, const KeyWork& work)
      : head(work.head_kv * p.heads_per_kv),
        tile(work.start),
        before(first_tile(p.order, work.batch_head) / (Br / backward_tile_rows)) {}
  FA3_DEVICE void next(const KeyWork& work) {
    if (++tile == work.end) tile = work.first;
    if (tile == work.start) before += work.end, head++;
  }
  // Among those of all heads of all batch entries.
  FA3_DEVICE int number() const { return before + tile; }
};

}  // namespace fa3
