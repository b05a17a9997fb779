// What a thread block of the backward pass works on at a time: Bc keys of one head of K and V, and the query tiles that
// see any of them, of all heads that read it, one head after the other.
#pragma once
#include "../../backward_params.h"
#include "../config.cuh"

namespace fa3 {

struct KeyWork {
  int batch, head_kv, batch_head, block, key;  // the first key
  int first, end;                       // query tiles [first, end) of each head, of Br rows
  int start;                            // the one to begin with
  int all;                              // of all heads

  FA3_DEVICE KeyWork(const BackwardParams& p, int number) {
    const KeyOrder& order = p.order;
    const int section = number / order.section;
    HeadBlock here = block_at(order, section, number - section * order.section);
    // Those with fewer tiles first: see rank().
    if (causal && p.ordered) here.block = order.blocks - 1 - here.block;
    block = here.block;
    batch_head = here.batch_head;
    batch = batch_head / order.heads_kv, head_kv = batch_head - batch * order.heads_kv;
    key = here.block * Bc;
    const int first_query = causal ? max(key - p.visible.right, 0) : 0;
    end = order.head_tiles == 0 ? 0 : p.rows.tiles / (Br / backward_tile_rows);
    first = min(first_query / Br, end);
    // Without a mask all thread blocks of a head would come to the same tile at once, and wait for the first one's dQ.
    // In a fixed order they come one after another anyway.
    start = causal || p.ordered ? first : int(int64_t(here.block) * end / order.blocks);
    all = (end - first) * p.heads_per_kv;
  }

  // In a fixed order, how many key blocks add to a tile's dQ before this one. Each waits for one that is taken before
  // it, so that none waits for ever, and which comes to the tile earlier: without a mask all begin at the first tile,
  // and a key block waits for the one before it; under a causal mask a key block begins at the diagonal, where the key
  // blocks behind it are done, and waits for the one behind it.
  FA3_DEVICE int rank(const BackwardParams& p, int tile) const {
    if (!causal) return block;
    return min(p.order.blocks - 1, (tile * Br + Br - 1 + p.visible.right) / Bc) - block;
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
