// Rounding dQ that earlier key blocks have summed up (backward_work.h), by thread blocks that work on later ones. They
// wait for the earlier ones, which are under way or done, as key blocks are taken in their order.
#pragma once
#include "../isa/fence.cuh"
#include "../isa/grid.cuh"
#include "tile/rows.cuh"
#include "tile/sums.cuh"
#include "tile/work.cuh"

namespace fa3 {

// By each thread that adds dQ, when its additions for a key block are over.
FA3_DEVICE void count_additions(const BackwardParams& p, const KeyWork& work) {
  if (p.order.done_behind > 0) ptx::red_add_release_gpu_u32(&p.order.added[work.batch_head], 1);
}

// The strips of dQ that a thread block rounds beside a key block. If there are none, it waits for nobody.
struct EarlierStrips {
  int batch_head;  // of K and V
  int first, end;

  FA3_DEVICE EarlierStrips(const BackwardParams& p, int number) {
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
  FA3_DEVICE Strip strip(const BackwardParams& p, int i) const { return Strip(p, i / strips, i % strips); }
};

// The same from a list: those of the key block that was taken `behind` blocks earlier. These are so many that all
// blocks that add to its share were taken before this one.
struct ListedEarlierStrips {
  const PlannedBlock* block;
  int part, entry;
  int first, end;

  FA3_DEVICE ListedEarlierStrips(const PlannedBackwardParams& p, int number) {
    block = p.blocks, part = entry = first = end = 0;
    if (has(Trait::one_key_block) || p.order.done_behind == 0 || number < p.order.behind) return;
    const ListedBlock listed = listed_block(*p.counts, p.order.section, number - p.order.behind);
    const PlannedBlock* const planned_block = &p.blocks[listed.entry];
    const QTiles share = share_of(*planned_block, Bc);
    if (share.none()) return;
    block = planned_block, part = listed.head, entry = listed.entry;
    end = (share.end - share.begin) * p.readers * strips;
  }
  FA3_DEVICE void wait_for_sums(const PlannedBackwardParams& p) const {
    if (first < end) wait_for_listed_sums(p, *block, share_of(*block, Bc), entry, part, Bc);
  }
  // Beyond the last one some strip that there is.
  FA3_DEVICE Strip strip(const PlannedBackwardParams& p, int i) const {
    const QTiles share = share_of(*block, Bc);
    if (i >= end) i = 0;
    const int tiles = share.end - share.begin, reader = i / strips / tiles;
    const int tile = share.begin + i / strips - reader * tiles, head = part * p.readers + reader;
    const int number = head * p.rows.tiles + block->first_tile * p.rows.tiles_per_visit + tile;
    return Strip(p, RowTile(block->sequence, head, tile * backward_tile_rows), number, i % strips);
  }
};
using EarlierDq = std::conditional_t<planned, ListedEarlierStrips, EarlierStrips>;

}  // namespace fa3
