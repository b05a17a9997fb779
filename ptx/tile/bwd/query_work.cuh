// What a thread block of bwd_queries.cu works on: Br query rows of one head, 64 for each consumer warpgroup, and the
// blocks of keys that they see.
#pragma once
#include "../../backward_params.h"
#include "../config.cuh"

namespace fa3 {

FA3_DEVICE Visible visible(const BackwardParams& p) {
  return {p.visible.seqlen_q, p.visible.seqlen_k, 0, p.visible.right, false, causal};
}

struct QueryWork {
  int batch, head, head_kv;
  int row;                   // the first
  int warpgroups_with_rows;  // the others' rows are behind the last one of the head
  int64_t numbers;           // where LSE and D of row 0 of this head are

  FA3_DEVICE explicit QueryWork(const BackwardParams& p) {
    const BlockOrder& order = p.query_order;
    const int section = int(blockIdx.x) / order.section;
    const HeadBlock here = block_at(order, section, blockIdx.x - section * order.section);
    batch = here.batch_head / p.rows.heads, head = here.batch_head - batch * p.rows.heads;
    head_kv = head / p.heads_per_kv;
    // The last rows see most keys under a causal mask, so they come first.
    row = (causal ? order.blocks - 1 - here.block : here.block) * Br;
    warpgroups_with_rows = min((p.rows.rows - row + 63) / 64, warpgroups);
    numbers = int64_t(here.batch_head) * p.rows.tiles * backward_tile_rows;
  }
  FA3_DEVICE int first_row(int warpgroup) const { return row + 64 * warpgroup; }
  // Blocks of keys that a warpgroup's rows see, from the first one on. Those of the last warpgroup with rows are the
  // most; another one has one block less at most, and so has read each buffer that is filled again.
  FA3_DEVICE int blocks(const BackwardParams& p, int warpgroup) const {
    const Keys keys = visible(p).any(first_row(warpgroup), first_row(warpgroup) + 63);
    return keys.none() ? 0 : (keys.end + Bc - 1) / Bc;
  }
};

}  // namespace fa3
