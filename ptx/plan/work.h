// What there is to do, and in what order. Plain C++, read by both sides: src/forward makes it, the kernels' schedulers
// (tile/schedule.cuh) unfold it.
//
// tools/docs/pages/words.md explains block, tile, part, piece, section, slot and ticket. A block has Bc keys, a tile Br
// query rows. Kernels visit the last block first, so "the block before" is the one with the next higher number. A claim
// moves a counter in device memory on by one. The warp with the last ticket puts the parts together
// (tile/epilogue/combine.cuh).
//
// Splitting ("split-KV") lets several thread blocks share a tile, so that none idles while others finish. It may be a
// problem's last tiles that are split, or all.
//
// The pieces are numbered in the order in which they are claimed. First come tiles that are left whole, in the order of
// their own numbers, so that a piece follows from its number by arithmetic. The pieces of all other tiles follow, from
// a list. With packed heads these tiles may all have the same parts; then the list has those of one tile, and the first
// parts of all tiles come first, their second parts next, and so on.
#pragma once
#include <cstdint>

#include "divisor.h"
#include "visible.h"

namespace fa3 {

// All tiles of a problem, numbered section by section. Inside a section come the tiles of one query block for all its
// heads, then those of the next. With a bound on the right (visible.h) the last query block comes first: under a causal
// mask its tiles are the longest.
struct Tiles {
  int32_t q_blocks;       // query blocks of a head, Br rows each: so many tiles has a head
  int32_t first_row;      // with which the first query block begins, a multiple of 64. Without a bound on the right it
                          // is 0. With one the last query block ends with the last 64 rows, the others lie before it.
                          // So where rows do not fill all blocks, it is the first one that is not full (its tiles are
                          // the shortest), and begins at a row below 0. If it begins above 0, the rows before it see no
                          // key, and are in no tile (tile/epilogue/empty_rows.cuh)
  int32_t batch_heads;    // batch * heads
  Divisor heads;          // query heads; K/V heads where the query heads of each are packed into rows
  Divisor section_heads;  // 1 .. batch_heads
  Divisor section_tiles;  // section_heads * q_blocks
  Divisor last_heads;     // of the last section

  constexpr int32_t count() const { return q_blocks * batch_heads; }
};

struct Tile {
  int32_t q_block, head, batch;
};

constexpr Tile tile_at(const Tiles& tiles, int32_t number, bool longest_first) {
  const int32_t section = number / tiles.section_tiles, within = number - section * tiles.section_tiles;
  const int32_t first_head = section * tiles.section_heads;
  const Divisor heads = tiles.batch_heads - first_head >= tiles.section_heads ? tiles.section_heads : tiles.last_heads;
  const int32_t i = within / heads;
  const int32_t batch_head = first_head + within - i * heads;
  const int32_t batch = batch_head / tiles.heads;
  return {longest_first ? tiles.q_blocks - 1 - i : i, batch_head - batch * tiles.heads, batch};
}

// The K/V blocks of a tile of `rows` rows from `first_row` on: at least one, also if they see no key, so that all tiles
// take the same way through the kernels.
constexpr Blocks tile_blocks(const Visible& visible, int32_t first_row, int32_t rows, int32_t Bc) {
  const Blocks blocks = blocks_of(visible.any(first_row, first_row + rows - 1), Bc);
  return {blocks.begin, blocks.end > blocks.begin ? blocks.end : blocks.begin + 1};
}

// What is to be done for a piece.
struct Work {
  int32_t tile;         // its number
  int32_t begin, end;   // K/V blocks [begin, end)
  int32_t part, parts;  // which part of the tile it is, 0 .. parts - 1; a whole tile is part 0 of 1
  int32_t slot;         // of the tile's part 0; part i has slot + i
  int32_t split_tile;   // the tile's number among those of the list: whose tickets it takes
};

// The same in the list, in eight bytes. K/V blocks are counted in grains: of one block, or of more if there are many.
struct Listed {
  uint32_t tile : 9;  // its number among those of the list
  uint32_t part : 7;
  uint32_t begin : 16;
  uint32_t slot : 9;
  uint32_t parts : 7;
  uint32_t end : 16;  // in whole grains, so it may lie beyond the tile's last block

  static constexpr int32_t most_tiles = 1 << 9, most_grains = (1 << 16) - 1;
  static constexpr int32_t most_parts = 32, most_packed_parts = 127;  // of a tile, with packed heads
};
static_assert(sizeof(Listed) == 8);

struct Pieces {
  int32_t whole_tiles;   // pieces 0 .. whole_tiles - 1 are the tiles of these numbers
  int32_t listed;        // so many pieces follow from the list, all of the tiles from number whole_tiles on
  int32_t ticket_tiles;  // of these tiles so many, the first, may be split, and have tickets
  int32_t grain;         // of the list, in K/V blocks
  Divisor tiles_per_entry;  // so many of these tiles share an entry of the list, which is that of the first one; or 1

  constexpr int32_t count() const { return whole_tiles + listed; }
  constexpr int32_t entries() const { return listed / tiles_per_entry; }  // of the list

  // A piece of the list, of the nth tile that shares the entry; tile_end is where its tile's K/V blocks end.
  constexpr Work work(const Listed& entry, int32_t nth, int32_t tile_end) const {
    const int32_t end = int32_t(entry.end) * grain, parts = int32_t(entry.parts), tile = int32_t(entry.tile) + nth;
    return {whole_tiles + tile, int32_t(entry.begin) * grain, end < tile_end ? end : tile_end,
            int32_t(entry.part), parts, int32_t(entry.slot) + nth * parts, tile};
  }
};

// How much the list holds.
struct PlannedCounts {
  int32_t entries, slots;  // slots: of one head; tickets are for half as many tiles
};

// As many entries as fit the 4096 bytes that all drivers take as a kernel's parameters.
inline constexpr int list_capacity = 400;

}  // namespace fa3
