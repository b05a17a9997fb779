// What the thread blocks of the backward pass do, and in what order. Plain C++, read by both sides:
// src/backward/order.cpp makes it, ptx/backward unfolds it.
//
// tools/docs/pages/words.md explains key block, query tile, part, section and share. A key block has Bc keys of one head,
// a query tile backward_tile_rows rows of one query head. Query tiles are counted over all heads of all batch entries,
// so that those which read a K/V head follow one another; a kernel visits one at a time, or two (tiles_per_visit).
// Where there are few K/V heads, each has several parts of equal size, and each part has key blocks of its own: dK and
// dV are then sums over the parts (key_sums.cuh). A part is some of the query heads, or a range of the tiles of one.
// What this file says of heads of K and V is true of each of their parts.
//
// dQ is summed up in the workspace, and rounded when its sums are complete. That takes memory's time, not the tensor
// cores'. So it is done beside products, and while the sums are still in the L2 cache: a thread block that works on a
// key block also rounds the share of the key block in the same place `behind` sections earlier. Of the last sections,
// behind which no others come, a pass rounds dQ. In the same way a thread block prepares rows (LSE and D): the share of
// the key block in the same place `ahead` sections later. Rows of the first sections a pass prepares.
#pragma once
#include <cstdint>

#include "divisor.h"

namespace fa3 {

inline constexpr int backward_tile_rows = 64;

// Blocks of all heads, in the order in which thread blocks take them.
struct BlockOrder {
  int32_t batch_heads;  // batch * heads
  int32_t blocks;       // of a head; at least 1
  int32_t section_heads, sections;
  Divisor section;  // blocks
};

// In which order the key blocks of a head add to a tile's dQ, and in which order a block visits its tiles. The two
// fixed orders are for FA3_FLAG_DETERMINISTIC, and for where they are faster. In both a block waits only for blocks
// that were taken before it, so none waits for ever; and these come to each tile before it does, so it waits little.
enum class DqOrder : int32_t {
  // As blocks come. A block goes from its first tile up, and visits all its tiles of one query head before the next's.
  any,
  // As blocks come; but they visit tiles as those that add downwards. So blocks of a head are at about the same tiles,
  // whatever their lengths, and these are in the L2 cache, also where several query heads read the K/V head.
  any_downwards,
  // In the order of the blocks' numbers. A block goes from its last tile down to its first, and visits each tile of all
  // its query heads before it goes on to the next.
  downwards,
  // The same, but a block visits its tiles of one query head before the next one's. With bounds on both sides blocks
  // that run beside each other are at other tiles, and all heads of these would be too much for the L2 cache.
  downwards_by_head,
  // Under a causal mask: the last block first, which has the fewest tiles. Each begins at its first tile, on the
  // diagonal, and goes up. The blocks with higher numbers have left that tile by then. If all blocks of a head are
  // taken together, and it has one query head, none waits at all.
  from_diagonal,
};
constexpr bool is_fixed(DqOrder dq) { return dq >= DqOrder::downwards; }
constexpr bool goes_down(DqOrder dq) { return dq != DqOrder::any && dq != DqOrder::from_diagonal; }

// At which tile a block begins that goes downwards. All blocks see the last tile. If all began there, those that are
// taken together would wait for one another, one after the other. So they begin apart: block 0 at tile
// (1 << shift) - 1, each further block 1 << shift tiles higher, until that is the last tile. A block goes from its
// start down to its first tile, and then from the last tile down to its start:
//
//   tile     0  1  2  3  4  5  6  7        shift = 1
//   block 0  2  1  8  7  6  5  4  3        the turn in which it visits the tile
//   block 1  4  3  2  1  8  7  6  5
//
// In tiles above its start (block 0: 2 to 7) a block comes after blocks with higher numbers. So that the order of the
// sums stays fixed, it adds there to sums of their own, the second ones; the last pass adds both.
struct Spread {
  int32_t shift;   // 31: all begin at the last tile
  int32_t second;  // the second sums lie so many tiles of Br rows behind the first ones; 0: there are none
};

// Here blocks are key blocks, and heads those of K and V, each counted once for each of its parts.
struct KeyOrder : BlockOrder {
  Divisor heads;          // of a batch entry
  Divisor parts;          // of each K/V head
  Divisor ranges;         // of each query head; 1 if a part is of whole heads
  Divisor share;          // query tiles; those of the last key blocks may be fewer, or none
  int32_t head_tiles;     // query tiles that read a head
  int32_t behind;         // a share's dQ is rounded so many sections later
  int32_t done_behind;    // by thread blocks for the first sections, so many of them; for the others by the last pass
  int32_t ahead;          // a share's rows are prepared so many sections earlier; `sections`: all by the first pass
  DqOrder dq;
  int32_t adders;         // threads of a thread block that add dQ, in turns: 1, or 2 where no warp prepares rows
  Spread spread;          // of DqOrder::downwards
  int32_t key_sums;       // 1: thread blocks store dK and dV rounded. More: they leave sums for a pass (key_sums.cuh),
                          // as there are several parts, or for float32 (unrounded_keys.cuh)
  uint32_t* added;        // of each head: how many threads have added the last dQ of a key block
  uint32_t* prepared;     // of each head: of how many key blocks the share's rows are prepared
  uint32_t* claimed;      // how many key blocks have been taken beyond those that the launch gives

  constexpr bool is_fixed() const { return fa3::is_fixed(dq); }
};

struct HeadBlock {
  int32_t batch_head, block;  // block >= BlockOrder::blocks: there is none
};

// The n-th block of a section: in order of the blocks, and of each those of all heads.
constexpr HeadBlock block_at(const BlockOrder& order, int32_t section, int32_t n) {
  const int32_t first = section * order.section_heads, left = order.batch_heads - first;
  const int32_t heads = left < order.section_heads ? left : order.section_heads;
  const int32_t block = heads == 1 ? n : n / heads;
  return {first + n - block * heads, block};
}

constexpr int32_t first_tile(const KeyOrder& order, int32_t batch_head) { return batch_head * order.head_tiles; }

// Of the share of a key block.
struct TileShare {
  int32_t first, tiles;
};
constexpr TileShare share_of(const KeyOrder& order, HeadBlock block) {
  const int32_t before = block.block * order.share, left = order.head_tiles - before;
  const int32_t share = order.share;
  return {first_tile(order, block.batch_head) + before, left < 0 ? 0 : left < share ? left : share};
}

// The key block `ahead` sections after the n-th, if there is one.
constexpr HeadBlock block_ahead(const KeyOrder& order, int32_t n) {
  const int32_t section = n / order.section;
  if (section >= order.sections - order.ahead) return {0, order.blocks};
  return block_at(order, section + order.ahead, n - section * order.section);
}
// Heads of K and V whose query rows the pass prepares.
constexpr int32_t heads_of_pass(const KeyOrder& order) {
  return order.ahead >= order.sections ? order.batch_heads : order.ahead * order.section_heads;
}

// How many tiles' dQ is left to the last pass, as if each share had as many tiles as the largest.
constexpr int32_t tiles_left(const KeyOrder& order) {
  if (order.head_tiles == 0) return 0;
  return (order.batch_heads * order.blocks - order.done_behind * order.section) * order.share;
}

// The n-th tile of all shares one after another, as if each had as many tiles as the largest; -1 if there is none.
constexpr int32_t shared_tile(const KeyOrder& order, int32_t n) {
  const int32_t number = n / order.share, section = number / order.section;
  const TileShare share = share_of(order, block_at(order, section, number - section * order.section));
  const int32_t tile = n - number * order.share;
  return tile < share.tiles ? share.first + tile : -1;
}

}  // namespace fa3
