// Splitting along the keys ("split-KV"): the last tiles of a problem are shared by several thread blocks, so that none idles
// while others finish. Plain C++, read by both sides: src/schedule.cpp plans, the kernel's producers unfold the plan.
//
// The K/V blocks of the split tiles lie on a line, `stride` places for each tile (a tile with fewer blocks leaves the rest
// empty), and the line is cut into units of `unit_blocks` <= stride places. A thread block claims whole tiles first, then
// units. What a unit holds of a tile is a part; it is computed like a tile of its own, and the tile's parts are put together
// in tile/combine.cuh. A unit holds at most two parts: the end of one tile and the beginning of the next.
//
// Or the split tiles are cut in two at the same block, which suits tiles of different lengths: then they are the first ones,
// the longest under a causal mask. Their first parts are claimed first, then whole tiles; the second parts come between
// these, where they are about as long.
//
// A `place` names a piece of work: tile `place` as a whole below whole_tiles, and from there on the part that begins at place
// whole_tiles of the line; with a cut, the piece that is claimed as number `place`.
#pragma once
#include <cstdint>

#include "divisor.h"

namespace fa3 {

// K/V blocks [begin, end) of a tile.
struct Part {
  int split_tile;     // the tile's number among the split ones
  int begin, end;     // no blocks if begin >= end
  int number, count;  // of the tile's parts; count 1: it is the whole tile
  int slot;           // of the tile's first part among all partial results; part i has slot + i
};

struct Split {
  int32_t whole_tiles;  // the first tiles of the problem, or with a cut the last
  int32_t tiles;        // the others, which are split
  Divisor stride;
  Divisor unit_blocks;
  int32_t units;      // that the line makes; with a cut the parts
  int32_t cut;        // K/V blocks of a tile's first part; 0: there is a line
  int32_t cut_after;  // with a cut: whole tiles that are claimed before the second parts

  constexpr int items() const { return whole_tiles + units; }
  constexpr int slots() const { return cut ? units : units + tiles; }

  // Where an item (a whole tile, a unit or a part) begins.
  constexpr int place(int item) const {
    return cut || item < whole_tiles ? item : whole_tiles + (item - whole_tiles) * unit_blocks;
  }
  constexpr int tile_at(int place) const {
    if (!cut) return place < whole_tiles ? place : whole_tiles + (place - whole_tiles) / stride;
    const int second = place - first_second_part();
    return second < 0 ? place : second < tiles ? second : place - tiles;
  }
  // The place of the same unit in the next tile; -1 if it ends before.
  constexpr int next_in_unit(int place) const {
    if (cut || place < whole_tiles) return -1;
    const int at = place - whole_tiles, next = (at / stride + 1) * stride;
    return next < tiles * stride && next < (at / unit_blocks + 1) * unit_blocks ? whole_tiles + next : -1;
  }
  // The piece of work at a place, whose tile has so many K/V blocks.
  constexpr Part part(int place, int blocks) const {
    const Part whole{0, 0, blocks, 0, 1, 0};
    if (cut) {
      const int second = place - first_second_part();
      if (place < tiles) return {place, 0, cut, 0, 2, 2 * place};
      return second >= 0 && second < tiles ? Part{second, cut, blocks, 1, 2, 2 * second} : whole;
    }
    if (place < whole_tiles) return whole;
    const int at = place - whole_tiles, tile = at / stride, start = tile * stride, unit = at / unit_blocks;
    const int first = start / unit_blocks, last = (start + blocks - 1) / unit_blocks;
    const int end = (unit + 1) * unit_blocks - start;
    return {tile, at - start, end < blocks ? end : blocks, unit - first, last - first + 1, first + tile};
  }

 private:
  constexpr int first_second_part() const { return tiles + cut_after; }
};

}  // namespace fa3
