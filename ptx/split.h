// Splitting along the keys ("split-KV"): the last tiles of a problem are shared by several thread blocks, so that none idles
// while others finish. Plain C++, read by both sides: src/schedule.cpp plans, the kernel's producers unfold the plan.
//
// The K/V blocks of the split tiles lie on a line, `stride` places for each tile (a tile with fewer blocks leaves the rest
// empty), and the line is cut into units of `unit_blocks` <= stride places. A thread block claims whole tiles first, then
// units. What a unit holds of a tile is a part; it is computed like a tile of its own, and the tile's parts are put together
// in tile/combine.cuh. A unit holds at most two parts: the end of one tile and the beginning of the next.
//
// Or the split tiles are cut in two at the same block, which suits tiles of different lengths: then they are the first ones,
// the longest under a causal mask. Their first parts are claimed first, then whole tiles; from where these are as short as the
// second parts, both come in turn, `cut_run` tiles of the same length at a time.
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
  int32_t cut_after;  // with a cut: whole tiles that are claimed before the first second part
  Divisor cut_run;    // of which those, all whole and all split tiles are multiples

  constexpr int items() const { return whole_tiles + units; }
  constexpr int slots() const { return cut ? units : units + tiles; }

  // Where an item (a whole tile, a unit or a part) begins.
  constexpr int place(int item) const {
    return cut || item < whole_tiles ? item : whole_tiles + (item - whole_tiles) * unit_blocks;
  }
  constexpr int tile_at(int place) const {
    if (!cut) return place < whole_tiles ? place : whole_tiles + (place - whole_tiles) / stride;
    const int before = second_parts_before(place), second = second_part(place);
    return second < 0 ? place - before : second;
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
      if (place < tiles) return {place, 0, cut, 0, 2, 2 * place};
      const int second = second_part(place);
      return second < 0 ? whole : Part{second, cut, blocks, 1, 2, 2 * second};
    }
    if (place < whole_tiles) return whole;
    const int at = place - whole_tiles, tile = at / stride, start = tile * stride, unit = at / unit_blocks;
    const int first = start / unit_blocks, last = (start + blocks - 1) / unit_blocks;
    const int end = (unit + 1) * unit_blocks - start;
    return {tile, at - start, end < blocks ? end : blocks, unit - first, last - first + 1, first + tile};
  }

 private:
  // With a cut, the pieces from here on: runs of second parts and of whole tiles in turn, as long as there are both.
  constexpr int turns_at() const { return tiles + cut_after; }
  constexpr int pairs() const { return whole_tiles - cut_after < tiles ? whole_tiles - cut_after : tiles; }

  // The split tile whose second part is at the place, or -1.
  constexpr int second_part(int place) const {
    const int at = place - turns_at(), run = at / cut_run;
    if (at < 0) return -1;
    if (at < 2 * pairs()) return run % 2 ? -1 : at - run / 2 * cut_run;
    return pairs() < tiles ? at - pairs() : -1;
  }
  // How many second parts are claimed before the whole tile at the place.
  constexpr int second_parts_before(int place) const {
    const int at = place - turns_at();
    if (at < 0) return 0;
    return at < 2 * pairs() ? (at / cut_run + 1) / 2 * cut_run : tiles;
  }
};

}  // namespace fa3
