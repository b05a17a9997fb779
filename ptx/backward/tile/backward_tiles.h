// A key block of the backward pass, and the query tiles that a thread block visits for it, in their order. Plain C++:
// backward/tile/work.cuh has it for the kernels, and a test walks through it on the host.
#pragma once
#include <type_traits>

#include "../../params/backward_params.h"

namespace fa3 {

// Are key blocks listed? Only those have the orders DqOrder::any_downwards and downwards_by_head; that others do not
// ask for them keeps their kernels short between main loops.
template <typename Call>
inline constexpr bool lists_blocks = std::is_base_of_v<PlannedBackwardParams, Call>;

// Bc keys of one head of K and V, and the tiles of Br rows that see any of them and are of one part of those that read
// this head. listed_rows: of the tiles in a list of varlen sequences.
template <int Br, int Bc, int listed_rows = Br>
struct KeyBlockWork {
  static constexpr int tiles_per_visit = Br / backward_tile_rows;
  int batch, head_kv, batch_head, block, key;  // batch_head: of the part; key: the first
  int part;             // of all parts of the batch entry's heads of K and V
  int first_head;       // query head
  int range;            // of the query head's tiles, if a part is such a range
  int begin, part_end;  // [begin, part_end): the part's query tiles of each head
  int first, end;       // [first, end): of these, those that see any of the keys
  int start;            // the one to begin with
  int all;              // of all heads
  int first_number;     // of tile 0 of first_head, among those of all heads of all batch entries

  // Finds the block. Its tiles follow by find_tiles, for what the rows of its batch entry see.
  constexpr KeyBlockWork(const BackwardParams& p, int number) {
    const KeyOrder& order = p.order;
    const int section = number / order.section;
    const HeadBlock in_section = block_at(order, section, number - section * order.section);
    block = order.dq == DqOrder::from_diagonal ? order.blocks - 1 - in_section.block : in_section.block;
    batch_head = in_section.batch_head;
    batch = batch_head / order.heads;
    part = batch_head - batch * order.heads;
    head_kv = part / order.parts;
    const int readers = part / order.ranges;
    first_head = readers * p.readers;
    range = part - readers * order.ranges;
    key = block * Bc;
  }

  // Of sequences with lengths of their own, with its tiles. Parts are of whole query heads; part_end only says how far
  // the tiles of one head are from those of the next. batch: the entry of the list; batch_head: which number counts
  // what is added, of this entry and part or of the entry of the sequence's block 0.
  constexpr KeyBlockWork(const PlannedBackwardParams& p, int number) : range(0), begin(0) {
    const ListedBlock listed = listed_block(*p.counts, p.order.section, number);
    batch = listed.entry, part = listed.head, head_kv = part / p.order.parts;
    const PlannedBlock& planned = p.blocks[batch];
    key = planned.key, block = planned.block;
    const int counted = counts_blocks(p.call.window) ? batch : first_block_entry(p.order.dq, batch, block);
    batch_head = counted * p.order.heads + part;
    first = planned.first, end = planned.end, start = planned.start;
    constexpr int visits = listed_rows / Br;  // to a tile of the list
    if constexpr (visits > 1) {
      const Visible seen = visible_of(planned.sequence, true, true, {0});
      const QTiles seeing = tiles_of(seen.rows_of(key, key + Bc - 1), Br);
      first = seeing.begin, end = seeing.end;
      start = start * visits < first ? first : start * visits;
    }
    first_head = part * p.readers;
    part_end = int32_t(p.rows.tiles) / tiles_per_visit;
    all = (end - first) * p.readers;
    first_number = first_head * part_end + planned.first_tile * visits;
  }

  constexpr void find_tiles(const BackwardParams& p, const Visible& seen) {
    const KeyOrder& order = p.order;
    const QTiles seeing = tiles_of(seen.rows_of(key, key + Bc - 1), Br);
    const int tiles = (seen.rows() + Br - 1) / Br;
    const int range_tiles = int32_t(p.rows.tiles) / order.ranges / tiles_per_visit;
    begin = range * range_tiles;
    part_end = begin + range_tiles < tiles ? begin + range_tiles : tiles;
    if (order.head_tiles == 0) part_end = 0;
    end = part_end;
    if (seen.bounded_left) end = seeing.end < begin ? begin : seeing.end < part_end ? seeing.end : part_end;
    first = seeing.begin < begin ? begin : seeing.begin < end ? seeing.begin : end;
    start = order.dq == DqOrder::downwards ? down_from(order) : start_in_any_order(order, seen);
    all = (end - first) * p.readers;
    first_number = first_tile(order, batch_head) / tiles_per_visit - begin;
  }

  // Where it begins if key blocks add to dQ in any order. If all take equally long, all thread blocks of a head would
  // come to the same tile at once, and wait for the first one's dQ: so they begin apart.
  constexpr int start_in_any_order(const KeyOrder& order, const Visible& seen) const {
    return seen.later_rows_see_more() ? first : first + int(int64_t(block) * (end - first) / order.blocks);
  }

  // Where it goes downwards from.
  constexpr int down_from(const KeyOrder& order) const {
    if (block >= (end - 1 - begin) >> order.spread.shift) return end - 1;
    const int start = begin + ((block + 1) << order.spread.shift) - 1;
    return start < first ? end - 1 : start;
  }

  // In a fixed order, when this block adds to a tile's dQ.
  struct Turn {
    int rank;     // how many key blocks add before it
    bool second;  // to the second sums
  };
  // Those that add are the blocks that hold the first key that the tile sees, the last one, and all between. They add
  // in the order of their numbers, or the other way round.
  template <typename Call>
  constexpr Turn turn(const Call& p, const Visible& seen, int tile) const {
    const KeyOrder& order = p.order;
    if (lists_blocks<Call> ? order.dq != DqOrder::from_diagonal : order.dq == DqOrder::downwards) {
      const int lowest = seen.of(tile * Br).begin / Bc;
      const int second = (tile - begin) >> order.spread.shift;  // blocks below this one add to the second sums
      if (block < second) return {block - lowest, true};
      return {block - (seen.bounded_left && second < lowest ? lowest : second), false};
    }
    return {(seen.of(tile * Br + Br - 1).end - 1) / Bc - block, false};
  }
};

// A query tile, in the order in which they come: of each head from `start` to the last one, then from the first one, or
// down from `start` and then from the last one; or down, each tile of all heads one after another.
struct QueryTile {
  int reader;  // which of the part's query heads
  int tile;    // of that head

  template <typename Block>
  constexpr explicit QueryTile(const Block& work) : reader(0), tile(work.start) {}
  template <typename Call, typename Block>
  constexpr void next(const Call& p, const Block& work) {
    constexpr bool listed = lists_blocks<Call>;
    const DqOrder dq = p.order.dq;
    if (dq == DqOrder::downwards || (listed && dq == DqOrder::any_downwards)) {
      if (++reader < p.readers) return;
      reader = 0;
      if (--tile < work.first) tile = work.end - 1;
      return;
    }
    if (listed && dq == DqOrder::downwards_by_head) {
      if (--tile < work.first) tile = work.end - 1;
    } else if (++tile == work.end) {
      tile = work.first;
    }
    if (tile == work.start) reader++;
  }
  template <typename Block>
  constexpr int head(const Block& work) const {
    return work.first_head + reader;
  }
  // Among those of all heads of all batch entries.
  template <typename Block>
  constexpr int number(const Block& work) const {
    return work.first_number + reader * work.part_end + tile;
  }
};

}  // namespace fa3
