// What there is to do, and in what order. Plain C++, read by both sides: src/plan.cpp makes it, the kernels' schedulers
// (tile/schedule.cuh) unfold it.
//
//   tile      Br query rows of one head of one batch entry, over all keys that they see
//   section   (batch, head) pairs whose tiles are done before those of the next section
//   piece     a whole tile, or a part of one: some of its K/V blocks. What a thread block claims at a time
//   part      of a split tile; the parts are put together in tile/combine.cuh
//   slot      where a part's result waits for that, in the workspace
//   ticket    what a part takes when it is done; the last one puts the parts together
//
// The pieces are numbered in the order in which they are claimed. First come whole tiles in their own order, which is
// arithmetic. Where tiles are split, the pieces of the last tiles follow, from a list. (Splitting along the keys, "split-KV": a
// problem's last tiles, or all, are shared by several thread blocks, so that none idles while others finish.)
#pragma once
#include <cstdint>

#include "divisor.h"
#include "visible.h"

namespace fa3 {

// All tiles of a problem, numbered section by section: a section is `section_heads` consecutive (batch, head) pairs, inside it
// query blocks are the outer and heads the inner index, under a causal mask from the last block to the first: the longest first.
struct Tiles {
  int32_t q_blocks;       // of a head
  int32_t first_row;      // of the first query block, a multiple of 64: 0, or under a causal mask 64 * ceil(seqlen_q / 64) -
                          // q_blocks * Br, so that the block with fewer rows is the first and shortest one. Rows before it see
                          // no key and are in no tile (tile/empty_rows.cuh)
  int32_t batch_heads;    // batch * heads
  Divisor heads;          // query heads
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

// K/V blocks of a tile of `rows` rows from `first_row` on, one at least: that keeps the kernels' pipeline uniform.
constexpr Keys tile_blocks(const Visible& visible, int32_t first_row, int32_t rows, int32_t Bc) {
  const Keys blocks = blocks_of(visible.any(first_row, first_row + rows - 1), Bc);
  return {blocks.begin, blocks.end > blocks.begin ? blocks.end : blocks.begin + 1};
}

// A piece of work: K/V blocks [begin, end) of a tile.
struct Work {
  int32_t tile;
  int32_t begin, end;
  int32_t part, parts;  // of the tile's parts this one; 1: the whole tile
  int32_t slot;         // of the tile's part 0; part i has slot + i
  int32_t split_tile;   // number of the tile among the listed ones: its tickets
};

// A piece in the list, eight bytes of it. Blocks are counted in grains: 1 block, more where keys are beyond millions.
struct Listed {
  uint32_t tile : 10;  // from the first listed tile on
  uint32_t part : 6;
  uint32_t begin : 16;
  uint32_t slot : 10;
  uint32_t parts : 6;
  uint32_t end : 16;  // the tile's last block may come before

  static constexpr int32_t most_tiles = 1 << 10, most_slots = 1 << 10, most_parts = 32, most_grains = (1 << 16) - 1;
};
static_assert(sizeof(Listed) == 8);

struct Pieces {
  int32_t whole_tiles;  // pieces 0 .. whole_tiles - 1 are the tiles of these numbers
  int32_t listed;       // then so many from the list, pieces of the tiles from number whole_tiles on
  int32_t ticket_tiles;  // so many of these, the first, may be split: each has tickets
  int32_t grain;

  constexpr int32_t count() const { return whole_tiles + listed; }

  // The piece as it stands in the list, of a tile with so many blocks.
  constexpr Work work(const Listed& piece, int32_t tile_end) const {
    const int32_t end = int32_t(piece.end) * grain;
    return {whole_tiles + int32_t(piece.tile), int32_t(piece.begin) * grain, end < tile_end ? end : tile_end,
            int32_t(piece.part), int32_t(piece.parts), int32_t(piece.slot), int32_t(piece.tile)};
  }
};

// As many as fit the 4096 bytes that all drivers take as a kernel's parameters.
inline constexpr int list_capacity = 400;

}  // namespace fa3
