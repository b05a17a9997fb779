// Splitting along the keys ("split-KV"): the last tiles of a problem are shared by several thread blocks, so that none idles
// while others finish. Plain C++, read by both sides: src/schedule.cpp plans, the kernel's producers unfold the plan.
//
// The K/V blocks of the split tiles lie on a line, `stride` places for each tile (a tile with fewer blocks leaves the rest
// empty), and the line is cut into units of `unit_blocks` <= stride places. A thread block claims whole tiles first, then
// units. What a unit holds of a tile is a part; it is computed like a tile of its own, and the tile's parts are put together
// in tile/combine.cuh. A unit holds at most two parts: the end of one tile and the beginning of the next.
//
// Or the split tiles are halved, which suits tiles of different lengths: then they are the first ones, the longest under a
// causal mask, the line has two places for each, and a unit is a half. They come after the whole tiles all the same, being
// shorter by then.
//
// A `place` names a piece of work: tile `place` as a whole below whole_tiles, and from there on the part that begins at place
// whole_tiles of the line.
#pragma once
#include <cstdint>

#include "divisor.h"

namespace fa3 {

// K/V blocks [begin, end) of a tile.
struct Part {
  int split_tile;     // counts split tiles
  int begin, end;     // no blocks if begin >= end
  int number, count;  // of the tile's parts; count 1: it is the whole tile
  int slot;           // of the tile's first part among all partial results; part i has slot + i
};

struct Split {
  int32_t whole_tiles;  // the first tiles of the problem, or with halves the last
  int32_t tiles;        // the others, which are split
  Divisor stride;       // 2 with halves
  Divisor unit_blocks;  // 1 with halves, and only then
  int32_t units;        // that the line makes

  constexpr bool halves() const { return tiles > 0 && unit_blocks == 1; }

  constexpr int items() const { return whole_tiles + units; }
  constexpr int slots() const { return units + tiles; }

  // Where an item (a whole tile or a unit) begins.
  constexpr int place(int item) const {
    return item < whole_tiles ? item : whole_tiles + (item - whole_tiles) * unit_blocks;
  }
  constexpr int tile_at(int place) const {
    if (place < whole_tiles) return halves() ? place + tiles : place;
    const int tile = (place - whole_tiles) / stride;
    return halves() ? tile : whole_tiles + tile;
  }
  // The place of the same unit in the next tile; -1 if it ends before.
  constexpr int next_in_unit(int place) const {
    if (place < whole_tiles) return -1;
    const int at = place - whole_tiles, next = (at / stride + 1) * stride;
    return next < tiles * stride && next < (at / unit_blocks + 1) * unit_blocks ? whole_tiles + next : -1;
  }
  // The piece of work at a place, whose tile has so many K/V blocks.
  constexpr Part part(int place, int blocks) const {
    if (place < whole_tiles) return {0, 0, blocks, 0, 1, 0};
    const int at = place - whole_tiles, tile = at / stride, start = tile * stride, unit = at / unit_blocks;
    if (halves()) {
      const int half = at - start, middle = blocks / 2;
      return {tile, half * middle, half ? blocks : middle, half, 2, start};
    }
    const int first = start / unit_blocks, last = (start + blocks - 1) / unit_blocks;
    const int end = (unit + 1) * unit_blocks - start;
    return {tile, at - start, end < blocks ? end : blocks, unit - first, last - first + 1, first + tile};
  }
};

}  // namespace fa3
