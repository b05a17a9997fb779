// What work costs on each row: one table of measured costs, and the simulation that predicts from them how long pieces
// of work take. Times are in nanoseconds.
#pragma once
#include <cstdint>

#include "device/card.h"
#include "plan/piece_costs.h"
#include "table/row.h"

namespace fa3 {

// For V of 8 bits that comes row by row, a pass can make V tiles of it, so that the forward kernel need not transpose
// V. The pass takes tiling_time for so many bytes of V (measured: 16 us for 34 MB). The forward kernel then takes less
// by gain_of_tiles times the time that is predicted for it.
constexpr int64_t tiling_time(int64_t bytes) { return 1500 + bytes * 10 / 23000; }
double gain_of_tiles(const ForwardRow& row);

// A pass can make fp16 of K and V of e4m3 under Q of 16 bits. It takes so long for so many elements, of which it
// reads one byte and writes two.
constexpr int64_t copying_time(int64_t elements) { return 4500 + elements / 1000; }

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

// The time of a block in a tile in which only so many warpgroups have rows: less than that of a full tile.
constexpr int64_t block_time(const ForwardRow& row, int64_t block, int64_t warpgroups) {
  if (row.loads_e4m3_keys()) return block;  // which takes as long for few rows
  // One that is alone takes half as long again, and at least half of the time of all.
  const int64_t halves = warpgroups == 1 ? 3 : 2 * warpgroups, all = 2 * row.warpgroups();
  return 2 * halves < all ? block / 2 : block * halves / all;
}

// How fast K and V come, in bytes a nanosecond.
struct MemoryRates {
  int64_t for_all;  // for all multiprocessors together: from memory, or more from the L2 cache
  int64_t for_one;  // for one alone, at most
  bool cached;      // for_all is the cache's

  // How long a block of so many bytes takes, at least, if so many multiprocessors load at once.
  constexpr int64_t time(int64_t bytes, int64_t multiprocessors) const {
    return bytes * multiprocessors > bytes / for_one * for_all ? bytes * multiprocessors / for_all : bytes / for_one;
  }
};
// Where all K and V are so many bytes, which two thirds of the L2 cache may still hold. takes_turns: two consumers that
// take turns at the keys take more.
MemoryRates rates_of(const Card& card, double all_bytes, bool takes_turns);

// What few queries cost on this card, which has another clock, or computes products more slowly, than an H200.
RowCosts on_card(RowCosts costs, const ForwardRow& row, const Card& card);

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
  Level& at(uint32_t n) { return levels_[(first_ + n) % most_multiprocessors]; }
  void insert(const Level& level);

  // From the earliest to the latest, in a ring: most pieces end later than all before them, or sooner than most.
  int64_t multiprocessors_, end_ = 0;
  Level levels_[most_multiprocessors];
  uint32_t first_ = 0, count_ = 1;
};

// The same, sooner where fewer pieces in a row have the same time.
inline constexpr int64_t many_alike = 3;
class SingleSimulation {
 public:
  explicit SingleSimulation(int64_t multiprocessors) : multiprocessors_(static_cast<uint32_t>(multiprocessors)) {}

  void add(int64_t time) {
    if (count_ == multiprocessors_) {
      add_behind(time);
      return;
    }
    nodes_[multiprocessors_ + count_] = static_cast<uint64_t>(time) << number_bits | count_;
    end_ = time > end_ ? time : end_;
    if (++count_ == multiprocessors_) make_tree();
  }
  void add(int64_t time, int64_t pieces) {
    for (; pieces > 0; --pieces) add(time);
  }
  int64_t end() const { return end_; }

 private:
  // When a multiprocessor is free, and in the lowest bits its number: the smallest one is the earliest. Times have 54
  // bits, 208 days. These are the leaves of a tree, behind its inner nodes, each of which is the smaller of the two
  // below it.
  static constexpr int number_bits = 10;
  static_assert(Simulation::most_multiprocessors <= 1 << number_bits);
  void make_tree();
  void add_behind(int64_t time);

  const uint32_t multiprocessors_;
  uint32_t count_ = 0;
  int64_t end_ = 0;
  uint64_t nodes_[2 * Simulation::most_multiprocessors];
};

}  // namespace fa3
