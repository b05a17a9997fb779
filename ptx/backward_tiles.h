// A key block of the backward pass, and the query tiles that a thread block visits for it, in their order. Plain C++:
// tile/bwd/work.cuh has it for the kernels, and a test walks through it on the host.
#pragma once
#include "backward_params.h"

namespace fa3 {

// Bc keys of one head of K and V, and the tiles of Br rows that see any of them and are of one part of those that read
// this head.
template <int Br, int Bc, bool causal>
struct KeyBlock {
  static constexpr int tiles_at_once = Br / backward_tile_rows;
  int batch, head_kv, batch_head, block, key;  // of the part; the first key
  int first_head;    // query head
  int begin;         // the part's first query tile of each head
  int first, end;    // [first, end): those that see any of the keys
  int start;         // the one to begin with
  int all;           // of all heads
  int first_number;  // of tile 0 of first_head, among those of all heads of all batch entries

  constexpr KeyBlock(const BackwardParams& p, int number) {
    const KeyOrder& order = p.order;
    const int section = number / order.section;
    const HeadBlock here = block_at(order, section, number - section * order.section);
    block = order.dq == DqOrder::from_diagonal ? order.blocks - 1 - here.block : here.block;
    batch_head = here.batch_head;
    batch = batch_head / order.heads;
    const int head = batch_head - batch * order.heads;
    head_kv = head / order.parts;
    const int readers = head / order.ranges;
    first_head = readers * p.readers;
    key = block * Bc;
    const int first_query = causal && key > p.visible.right ? key - p.visible.right : 0;
    const int tiles = (p.visible.seqlen_q + Br - 1) / Br;
    const int of_range = int32_t(p.rows.tiles) / order.ranges / tiles_at_once;
    begin = (head - readers * order.ranges) * of_range;
    end = begin + of_range < tiles ? begin + of_range : tiles;
    if (order.head_tiles == 0) end = 0;
    first = first_query / Br < begin ? begin : first_query / Br < end ? first_query / Br : end;
    // Without a mask all thread blocks of a head would come to the same tile at once, and wait for the first one's dQ.
    if (order.dq == DqOrder::downwards) start = down_from(order);
    else start = causal ? first : first + int(int64_t(block) * (end - first) / order.blocks);
    all = (end - first) * p.readers;
    first_number = first_tile(order, batch_head) / tiles_at_once - begin;
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
  // Blocks before it in its head see each tile that it sees. Of those behind it as many see the tile as there are up to
  // the last key that it sees.
  constexpr Turn turn(const BackwardParams& p, int tile) const {
    const KeyOrder& order = p.order;
    if (order.dq == DqOrder::downwards) {
      const int second = (tile - begin) >> order.spread.shift;  // so many blocks, the first ones
      return block < second ? Turn{block, true} : Turn{block - second, false};
    }
    const int last_key = tile * Br + Br - 1 + p.visible.right, last = order.blocks - 1;
    return {(last_key / Bc < last ? last_key / Bc : last) - block, false};
  }
};

// A query tile, in the order in which they come: of each head from `start` to the last one, then from the first one; or
// downwards, the same tile of all heads one after another.
struct QueryTile {
  int reader;  // which of the part's query heads
  int tile;    // of that head

  template <typename Work>
  constexpr explicit QueryTile(const Work& work) : reader(0), tile(work.start) {}
  template <typename Work>
  constexpr void next(const BackwardParams& p, const Work& work) {
    if (p.order.dq == DqOrder::downwards) {
      if (++reader < p.readers) return;
      reader = 0;
      if (--tile < work.first) tile = work.end - 1;
    } else {
      if (++tile == work.end) tile = work.first;
      if (tile == work.start) reader++;
    }
  }
  template <typename Work>
  constexpr int head(const Work& work) const {
    return work.first_head + reader;
  }
  // Among those of all heads of all batch entries.
  template <typename Work>
  constexpr int number(const Work& work) const {
    return work.first_number + reader * work.end + tile;
  }
};

}  // namespace fa3
