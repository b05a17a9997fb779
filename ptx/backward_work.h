// What the thread blocks of the backward pass do, and in what order. Plain C++, read by both sides:
// src/backward/order.cpp makes it, tile/bwd unfolds it.
//
//   key block   Bc keys of one head: taken by a thread block as a whole, with all query tiles that see them
//   query tile  backward_tile_rows rows of one query head, counted over all heads of all batch entries: those that read
//               a K/V head follow one another. Kernels may visit several of them at once
//   part        of the query tiles that read a K/V head: where there are few K/V heads, each has several parts of equal
//               size, and each part has key blocks of its own. dK and dV are then sums over the parts (key_sums.cuh).
//               A part is some of the query heads, or a range of the tiles of one. What is said of heads of K and V
//               here is true of each of their parts
//   section     consecutive heads whose blocks come before those of the next section
//   share       the query tiles that a key block stands for: those of its head, in equal parts
//
// dQ is summed up in the workspace, and rounded when its sums are complete. That is work for the memory: so that it
// goes on beside products, and while the sums are in the L2 cache, a thread block does it between its key blocks, for
// the share of the one that is `behind` sections before. The last ones are left to a pass. In the same way a thread
// block prepares the rows (LSE and D) of the share of the one that is `ahead` sections after it; those of the first
// sections a pass prepares.
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

// In which order the key blocks of a head add to a tile's dQ. In the fixed ones (FA3_FLAG_DETERMINISTIC, and where they
// are faster) each waits for one that is taken before it, so that none waits for ever, and comes to the tile before it:
enum class DqOrder : int32_t {
  any,
  // In the order of the blocks. Each visits its tiles downwards, and of each tile that of all query heads.
  downwards,
  // Under a causal mask, the last blocks first, which have the fewest tiles. Each begins at the diagonal, where the
  // blocks behind it are done: without any wait, if all of a head are taken together and it has one query head.
  from_diagonal,
};

// Where each block begins that goes downwards. If all began at the last tile, which all see, those that are taken
// together would wait for one another at first. So the first one begins at tile (1 << shift) - 1, and each that follows
// so many tiles later, up to the last one. When a block comes to its first tile, it goes on from the last one down to
// its start. What it adds there goes to sums of their own, the second ones, as blocks that are taken later may add to
// the first ones of these tiles before it.
struct Spread {
  int32_t shift;   // 31: all begin at the last tile
  int32_t second;  // so many tiles of Br rows behind the first sums are the second ones; 0: there are none
};

// The blocks are of keys, the heads those of K and V, each as often as it has parts.
struct KeyOrder : BlockOrder {
  Divisor heads;          // of a batch entry
  Divisor parts;          // of each K/V head
  Divisor ranges;         // of each query head; 1 if a part is of whole heads
  Divisor share;          // query tiles; those of the last key blocks may be fewer, or none
  int32_t head_tiles;     // query tiles that read a head
  int32_t behind;         // how many sections later a share's dQ is rounded
  int32_t done_behind;    // of so many sections, the first ones, thread blocks do it; of the others the last pass
  int32_t ahead;          // how many sections before a share's rows are prepared; `sections`: all by the pass
  DqOrder dq;
  int32_t adders;         // threads of a thread block that add dQ, in turns: 1, or 2 where no warp prepares rows
  Spread spread;          // of DqOrder::downwards
  uint32_t* added;        // of each head: how many threads have added the last dQ of a key block
  uint32_t* prepared;     // of each head: of how many key blocks the share's rows are prepared
  uint32_t* claimed;      // how many key blocks have been taken beyond those that the launch gives

  constexpr bool is_fixed() const { return dq != DqOrder::any; }
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
struct Share {
  int32_t first, tiles;
};
constexpr Share share_of(const KeyOrder& order, HeadBlock block) {
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

// The n-th tile of the shares of all key blocks, each counted as a whole one; -1 if there is none.
constexpr int32_t shared_tile(const KeyOrder& order, int32_t n) {
  const int32_t number = n / order.share, section = number / order.section;
  const Share share = share_of(order, block_at(order, section, number - section * order.section));
  const int32_t tile = n - number * order.share;
  return tile < share.tiles ? share.first + tile : -1;
}

}  // namespace fa3
