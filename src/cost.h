// What work costs on each row: one table of measured costs, and the simulation that predicts from them how long pieces
// of work take. Times are in nanoseconds.
#pragma once
#include <cstdint>

#include "piece_costs.h"
#include "row.h"

namespace fa3 {

// What a pass takes that makes so many bytes of row-major V into tiles; and what share of its own time a forward kernel
// that transposes V gains if it is given tiles instead. Measured: 16 us for 34 MB; shares are of predicted times.
constexpr int64_t tiling_time(int64_t bytes) { return 1500 + bytes * 10 / 23000; }
double gain_of_tiles(const Row& row);

struct RowCosts {
  Costs together;  // where all pieces start together
  Costs behind;    // behind other pieces, which end at different times; that hides much
  int32_t among;   // a piece's own steps among many short tiles, where it is behind others and before others
};
// Tiles with fewer keys are short.
inline constexpr int64_t short_keys = 1024;
RowCosts costs_of(const Row& row);

// With Trait::shares_keys, pieces with fewer blocks take so much longer: two consumers work at the same time for too
// short a while to make up for what they hand over. Measured where tiles are many, against one consumer: d 64 with 1, 2
// and 8 blocks of 128 keys -24, -2 and +1%; d 128 with 1, 2, 4, 16 and 32 of 64 keys -27, -6, 0, -1 and +3%.
int64_t least_turns(const Row& row);
inline constexpr int32_t short_turns = 1000;

// Of tiles in which only so many warpgroups have rows: their blocks take less.
constexpr int64_t block_time(const Row& row, int64_t block, int64_t warpgroups) {
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
