// What a thread block of bwd_queries.cu works on: Br query rows of one head, 64 for each consumer warpgroup, and the
// blocks of keys that they see.
#pragma once
#include "tile/rows.cuh"
#include "tile/work.cuh"

namespace fa3 {

struct QueryWork {
  int batch, head, head_kv;  // batch: with lengths of their own, the Sequence; below 0: there are no such rows
  int row;                   // the first
  int warpgroups_with_rows;  // the others' rows are behind the last one of the head
  int64_t numbers;           // where LSE and D of row 0 of this head are

  FA3_DEVICE explicit QueryWork(const BackwardParams& p) {
    const BlockOrder& order = p.query_order;
    const int section = int(blockIdx.x) / order.section;
    const HeadBlock head_block = block_at(order, section, blockIdx.x - section * order.section);
    batch = head_block.batch_head / p.rows.heads, head = head_block.batch_head - batch * p.rows.heads;
    head_kv = head / p.heads_per_kv;
    // The last rows see most keys under a causal mask, so they come first.
    row = (visible(p).later_rows_see_more() ? order.blocks - 1 - head_block.block : head_block.block) * Br;
    warpgroups_with_rows = min((p.rows.rows - row + 63) / 64, warpgroups);
    numbers = int64_t(head_block.batch_head) * p.rows.tiles * backward_tile_rows;
  }
  // From the list of tiles. Of each head in a section all sequences follow one another, the last tiles first: where
  // later rows see more, these take longest.
  FA3_DEVICE explicit QueryWork(const PlannedBackwardParams& p) {
    const BlockOrder& order = p.query_order;
    const int section = int(blockIdx.x) / order.section;
    const HeadBlock head_block = block_at(order, section, blockIdx.x - section * order.section);
    head = head_block.batch_head, head_kv = head / p.heads_per_kv;
    const int number = order.blocks - 1 - head_block.block;
    const PlannedTile tile = p.tiles[number];
    batch = tile.sequence, row = tile.tile * Br;
    warpgroups_with_rows = exists() ? min((p.sequences[batch].seqlen_q - row + 63) / 64, warpgroups) : 0;
    numbers = (int64_t(head) * p.rows.tiles + number * (Br / backward_tile_rows)) * backward_tile_rows - row;
  }
  FA3_DEVICE bool exists() const { return !planned || batch >= 0; }
  FA3_DEVICE int first_row(int warpgroup) const { return row + 64 * warpgroup; }
  // Blocks of keys that a warpgroup computes: from the first one that the thread block's rows see to the last one that
  // its own may see. Those of the last warpgroup with rows are the most; another one has one block less at most, and so
  // has read each buffer that is filled again.
  FA3_DEVICE Blocks blocks(const Visible& seen, int warpgroup) const {
    const Keys own = seen.any(first_row(warpgroup), first_row(warpgroup) + 63);
    return {seen.any(row, row).begin / Bc, (own.end + Bc - 1) / Bc};
  }
  // Of these, those that all of its rows see as a whole.
  FA3_DEVICE Blocks plain_blocks(const Visible& seen, int warpgroup) const {
    const Keys keys = seen.all(first_row(warpgroup), first_row(warpgroup) + 63);
    return {(keys.begin + Bc - 1) / Bc, keys.end / Bc};
  }
};

// What its rows are asked for by, as in work.cuh.
FA3_DEVICE int sequence_of(const BackwardParams&, const QueryWork& work) { return work.batch; }
FA3_DEVICE const Sequence& sequence_of(const PlannedBackwardParams& p, const QueryWork& work) {
  return p.sequences[work.batch];
}
// 64 of them.
FA3_DEVICE RowTile row_tile(const BackwardParams& p, const QueryWork& work, int first) {
  return RowTile(p.rows, work.batch, work.head, first);
}
FA3_DEVICE RowTile row_tile(const PlannedBackwardParams& p, const QueryWork& work, int first) {
  return RowTile(sequence_of(p, work), work.head, first);
}

}  // namespace fa3
