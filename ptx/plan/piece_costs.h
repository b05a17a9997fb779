// What a piece of work costs, for both planners: the host's (src/forward) and the one on the device (plan_forward.h).
// Plain C++, read by both sides. Times are in nanoseconds; src/forward/plan/cost.cpp has what was measured.
#pragma once
#include <cstdint>

#include "work.h"

namespace fa3 {

struct Costs {
  int32_t block;  // an iteration of the main loop: one K/V block of a tile
  int32_t piece;  // a piece's own first and last steps, during which the tensor cores wait
  int32_t write;  // leaving a part in the workspace
  int32_t read;   // reading a part from there

  constexpr int64_t whole(int64_t blocks) const { return blocks * block + piece; }
  constexpr int64_t part(int64_t blocks) const { return whole(blocks) + write; }
  // What the last of so many parts reads: one of two, as it has its own in registers, but all of more
  // (tile/epilogue/combine.cuh).
  constexpr int64_t read_all(int64_t parts) const { return (parts == 2 ? 1 : parts) * read; }
  constexpr int64_t time(const Work& work) const {
    const int64_t blocks = int64_t{work.end} - work.begin;
    if (work.parts == 1) return whole(blocks);
    return part(blocks) + (work.part == work.parts - 1 ? read_all(work.parts) : 0);
  }
};

// A launch's own time, before its first and after its last block. Fitted with the table (cost.cpp): `piece` and `write`
// hold the rest of the 7 us that a launch takes beside its blocks.
inline constexpr int64_t launch_time = 4000;

// Predicted gains of less than 1.25%, or of less than a microsecond, were losses as often, where they were measured.
constexpr bool worth_splitting(int64_t split, int64_t whole) {
  return split <= whole - (whole > 80'000 ? whole / 80 : 1000);
}

// With packed heads: how long it takes so many warpgroups to read all parts of so many rows and to add them up. A warp
// has a row at a time. It reads m and l of 64 parts at once, two in a lane, and of further ones later: measured at d
// 128 with one tile of 131072 keys, 94 parts of 22 blocks take 3.7 us longer than 64 of 32 blocks.
constexpr int64_t combine_time(int64_t parts, int64_t rows, int64_t warpgroups) {
  const int64_t row_time = 700 + 47 * parts + (parts > 32 ? 800 : 0) + (parts > 64 ? 4000 : 0);
  const int32_t at_once = static_cast<int32_t>(4 * warpgroups);  // the device divides 32 bits sooner
  return (static_cast<int32_t>(rows) + at_once - 1) / at_once * row_time;
}

}  // namespace fa3
