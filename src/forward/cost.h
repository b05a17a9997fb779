// What work costs: one table of measured costs, and the simulation that predicts from them how long pieces of work
// take. Times are in nanoseconds.
#pragma once
#include <cstdint>

#include "row.h"
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
  // (tile/combine.cuh).
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

// For V of 8 bits that comes row by row, a pass can make V tiles of it, so that the forward kernel need not transpose
// V. The pass takes tiling_time for so many bytes of V (measured: 16 us for 34 MB). The forward kernel then takes less
// by gain_of_tiles times the time that is predicted for it.
constexpr int64_t tiling_time(int64_t bytes) { return 1500 + bytes * 10 / 23000; }
double gain_of_tiles(const ForwardRow& row);

struct RowCosts {
  Costs together;  // of pieces that all start together
  Costs behind;    // of pieces that come behind others, which end at different times: that hides much
  int32_t among;   // Costs::piece among many short tiles, where it comes behind others and before others
};
// Tiles with fewer keys are short.
inline constexpr int64_t short_keys = 1024;
RowCosts costs_of(const ForwardRow& row);

// With Trait::shares_keys, pieces of fewer blocks than least_turns take longer by short_turns: the two consumers work
// beside each other for too short a while to make up for what one hands to the other. Measured where tiles are many,
// speed against one consumer: d 64 with 1, 2 and 8 blocks of 128 keys -24, -2 and +1%; d 128 with 1, 2, 4, 16 and 32
// blocks of 64 keys -27, -6, 0, -1 and +3%.
int64_t least_turns(const ForwardRow& row);
inline constexpr int32_t short_turns = 1000;

// With packed heads: how long it takes so many warpgroups to read all parts of so many rows and to add them up. A warp
// has a row at a time. It reads m and l of 64 parts at once, two in a lane, and of further ones later: measured at d
// 128 with one tile of 131072 keys, 94 parts of 22 blocks take 3.7 us longer than 64 of 32 blocks.
constexpr int64_t combine_time(int64_t parts, int64_t rows, int64_t warpgroups) {
  const int64_t of_row = 700 + 47 * parts + (parts > 32 ? 800 : 0) + (parts > 64 ? 4000 : 0);
  return (rows + 4 * warpgroups - 1) / (4 * warpgroups) * of_row;
}

// How long a block of so many bytes of K and V takes to load, at least, if so many multiprocessors load at once. All
// together get of_all bytes a nanosecond, from memory, or more from the L2 cache where all K and V (all_bytes) may
// still be there; one alone gets no more than of_one.
constexpr int64_t memory_time(int64_t bytes, int64_t multiprocessors, double all_bytes) {
  const int64_t of_all = all_bytes <= 40 << 20 ? 6000 : 4500;
  constexpr int64_t of_one = 60;
  return bytes * multiprocessors > bytes / of_one * of_all ? bytes * multiprocessors / of_all : bytes / of_one;
}

// The time of a block in a tile in which only so many warpgroups have rows: less than that of a full tile.
constexpr int64_t block_time(const ForwardRow& row, int64_t block, int64_t warpgroups) {
  // One that is alone takes half as long again, and at least half of the time of all.
  const int64_t halves = warpgroups == 1 ? 3 : 2 * warpgroups, all = 2 * row.warpgroups();
  return 2 * halves < all ? block / 2 : block * halves / all;
}

// Predicts how long pieces take if each multiprocessor takes the next one as soon as it is free.
class Simulation {
 public:
  static constexpr int most_multiprocessors = 1024;
  explicit Simulation(int64_t multiprocessors) : multiprocessors_(multiprocessors) {
    levels_[0] = {0, multiprocessors};
  }

  // The next pieces, as many of the same time.
  void add(int64_t time, int64_t pieces);
  // When the last one ends.
  int64_t end() const { return end_; }

 private:
  // Multiprocessors that are free at the same time.
  struct Level {
    int64_t time, multiprocessors;
  };
  int64_t multiprocessors_, end_ = 0;
  Level levels_[most_multiprocessors + 1];  // the earliest last
  int last_ = 0;
};

}  // namespace fa3
