#include "forward/plan/cost.h"

#include <algorithm>

namespace fa3 {
namespace {

struct Measured {
  int d, Br, Bc;
  Mask mask;
  RowCosts costs;
};

// Of an H200, bf16; fp16 differs by its clock only. Fitted row by row to the times of 446 problems with few heads, each
// planned in up to 40 ways, 5572 plans in all (lengths 512 to 60000, 1 to 64 heads; tests/records/diary/splitting.md).
// Half of the predictions are within 9%, nine of ten within 20%; the plans so chosen take 1.9% longer than the best
// ones that were measured. Of d 128 without a mask, `behind` is from the paper's grid, where splits behind ten waves
// pay less.
constexpr Measured measured_costs[] = {
    //                                      together: block, piece, write, read    behind                  among
    {64, 256, 64, Mask::full, {{820, 2100, 3250, 650}, {820, 3150, 50, 650}, 1900}},
    {64, 256, 64, Mask::causal, {{820, 2300, 2450, 950}, {820, 2300, 2450, 950}, 1700}},
    {128, 192, 64, Mask::full, {{970, 1650, 5000, 800}, {970, 2900, 1950, 950}, 2400}},
    {128, 192, 64, Mask::causal, {{950, 2650, 2600, 1000}, {950, 2650, 2600, 1000}, 2300}},
    {256, 128, 64, Mask::full, {{1270, 1000, 5200, 1900}, {1270, 4900, 2450, 1900}, 4900}},
    {256, 128, 64, Mask::causal, {{1240, 3800, 2900, 1100}, {1240, 3800, 2900, 1100}, 3800}},
    {64, 128, 128, Mask::full, {{1000, 2600, 1650, 600}, {1000, 3900, 850, 600}, 1050}},
    {64, 128, 128, Mask::causal, {{960, 2700, 2450, 550}, {960, 2700, 2450, 550}, 1350}},
    {128, 128, 128, Mask::full, {{1320, 2200, 4850, 600}, {1320, 3500, 500, 600}, 1950}},
    {128, 128, 128, Mask::causal, {{1240, 3550, 2250, 800}, {1240, 3550, 2250, 800}, 2000}},
};

}  // namespace

// About how many million operations of its two matrix products a multiprocessor does in a microsecond, where nothing is
// measured: at small head dimensions exponentials limit it, with sums on two levels additions.
constexpr double products_per_us(const ForwardRow& row) {
  if (!row.is_8bit()) return row.d < 64 ? 3.5 : 6;
  if (row.has(Trait::two_level)) return row.d <= 64 ? 4 : row.d <= 128 ? 6 : 7.5;
  return row.d <= 64 ? 5.5 : 9;
}

// At d 64 and 128 the gain is 1 to 3%, which is never worth a pass.
double gain_of_tiles(const ForwardRow& row) {
  if (row.d < 256) return 0;
  return row.has(Trait::two_level) ? 0.04 : row.block_scales() ? 0.07 : 0.095;
}

// The costs of the same tile with packed heads, where parts are written and added up in another way.
RowCosts packed(RowCosts costs) {
  for (Costs* c : {&costs.together, &costs.behind}) c->write = 1600, c->read = 750;
  return costs;
}
// A single consumer waits for its own products and exponentials: for so many clocks, measured at d 128. So do two that
// have halves of O's columns.
RowCosts one_consumer_costs(const ForwardRow& row) {
  const int32_t columns = row.d + row.dv + (row.has(Trait::qv) ? row.dv : 0);
  const int32_t clocks = row.Bc * columns / 32 + 8 * row.Bc + 80, block = clocks * 10 / 18;
  return {{block, 900 + block, 1600, 750}, {block, 900 + block, 1600, 750}, 650};
}

// Two consumers that take turns at the keys are done sooner. They add their results up before they write a part:
// measured, parts of 2 to 6 blocks are 2% faster to 4% slower so, those of 16 and more 3 to 18% faster.
RowCosts two_consumers_costs(const ForwardRow& row) {
  RowCosts costs = one_consumer_costs(row);
  for (Costs* c : {&costs.together, &costs.behind}) c->block = c->block * 6 / 10, c->piece -= 500, c->write += 3000;
  return costs;
}
// Two thread blocks that load half of the keys each, for both, wait less for them.
RowCosts cluster_costs(const ForwardRow& row) {
  RowCosts costs = one_consumer_costs(row);
  for (Costs* c : {&costs.together, &costs.behind}) c->block = c->block * 85 / 100;
  return costs;
}
int64_t least_turns(const ForwardRow& row) { return row.Bc < 128 ? 24 : 8; }

// What softcap and ALiBi add to a block, on an H100 at 4096 tokens: 37, 20 and 13% at d 64, 128 and 256; 18, 11 and 2%.
// They come once for a score, of however many columns it is.
RowCosts transformed(RowCosts costs, const ForwardRow& row) {
  const int32_t columns = row.d + (row.has(Trait::qv) ? row.dv : 0);
  const int32_t percent = 100 + (row.has(Trait::softcap) ? 2400 : 1200) / columns;
  for (Costs* c : {&costs.together, &costs.behind}) c->block = c->block * percent / 100;
  return costs;
}

// Rows with a window have not been measured: their costs are those of causal ones of the same tile.
RowCosts costs_of_tile(const ForwardRow& row) {
  const Mask mask = row.mask == Mask::window ? Mask::causal : row.mask;
  if (row.has(Trait::shares_keys)) return two_consumers_costs(row);
  if (row.has(Trait::multicast)) return cluster_costs(row);
  if (row.warpgroups() == 1) return one_consumer_costs(row);
  for (const Measured& measured : measured_costs)
    if (!row.is_8bit() && measured.d == row.d && measured.Br == row.Br && measured.Bc == row.Bc &&
        measured.mask == mask)
      return row.packs_heads() ? packed(measured.costs) : measured.costs;
  // Not measured: two products at so many TFLOP/s a multiprocessor, and what the others have in common.
  const int32_t block = row.Br * row.Bc * (row.d + row.dv) / static_cast<int32_t>(500 * products_per_us(row));
  if (row.is_8bit()) return {{block, 3 * block, 2400, 800}, {block, 3 * block, 2400, 800}, 3 * block};
  return {{block, 2 * block, 3 * block, block}, {block, 3 * block, 3 * block, block}, 3 * block};
}

// K and V that are widened take at least as long as the warps that do it: measured on an H200 at d 128, four of them
// 800 ns for a block of 64 keys and 1430 for one of 128, and two beside three consumers 1500 for 64.
RowCosts widened(RowCosts costs, const ForwardRow& row) {
  const int32_t elements = row.Bc * (row.d + row.dv);
  const int32_t least = row.menders() == 4 ? 170 + elements / 26 : elements * 3 / 32;
  for (Costs* c : {&costs.together, &costs.behind}) c->block = std::max(c->block, least);
  return costs;
}

// Keys in the rows of the products: what a warp does with its quarter of a block, or two warpgroups with one whose
// products are WGMMAs.
RowCosts few_rows_costs(const ForwardRow& row) {
  const int32_t narrow_block = 150 + row.Bc * (row.d + row.dv) / 96;
  const int32_t block = !row.halves_columns() ? narrow_block : row.has(Trait::half_rows) ? 1900 : 1600;
  const int32_t piece = row.has(Trait::half_rows) ? 2000 : 1400;
  return {{block, piece, 1600, 750}, {block, piece, 1600, 750}, 650};
}

// A thread block takes 3 us and its products, and a multiprocessor has several at once.
RowCosts one_tile_costs(const ForwardRow& row) {
  const int32_t block = row.Br * row.Bc * (row.d + row.dv) / static_cast<int32_t>(500 * products_per_us(row));
  const int32_t piece = 3000 / row.resident_blocks();
  return {{block, piece, 0, 0}, {block, piece, 0, 0}, piece};
}

// Warps that widen a latent cache write in shared memory what products read there, and both take longer; few rows widen
// it as they read it. Measured on an H200, all keys in the L2 cache, for 32, 16 and 64 rows.
RowCosts latent_costs(const ForwardRow& row) {
  const int32_t block = row.has(Trait::half_rows) ? 3800 : row.has(Trait::few_rows) ? 2600 : 5500;
  const int32_t piece = row.has(Trait::few_rows) ? 2000 : 900 + block / 2;
  return {{block, piece, 1600, 750}, {block, piece, 1600, 750}, 650};
}

RowCosts costs_of(const ForwardRow& row) {
  if (row.is_latent()) return latent_costs(row);
  if (row.has(Trait::one_tile)) return one_tile_costs(row);
  if (row.has(Trait::few_rows)) return few_rows_costs(row);
  if (row.widens()) return widened(costs_of_tile(row), row);
  return row.transforms_scores() ? transformed(costs_of_tile(row), row) : costs_of_tile(row);
}

// Measured on an H200: of its 4.81 TB/s 4.5, from the cache 6; for one 60 bytes a nanosecond, with two consumers 76.
MemoryRates rates_of(const Card& card, double all_bytes, bool takes_turns) {
  constexpr Card unknown = assumed_card(1);
  const int64_t memory = card.memory_bytes_per_us ? card.memory_bytes_per_us : unknown.memory_bytes_per_us;
  const int64_t cache = card.cache_bytes ? card.cache_bytes : unknown.cache_bytes;
  const int64_t clock = card.clock_kilohertz ? card.clock_kilohertz : unknown.clock_kilohertz;
  const int64_t memory_rate = memory * 15 / 16'000, cache_rate = 6000 * clock / unknown.clock_kilohertz;
  const int64_t for_one = (takes_turns ? 76 : 60) * clock / unknown.clock_kilohertz;
  const bool fit_cache = 3 * all_bytes <= 2 * static_cast<double>(cache);
  return {std::max<int64_t>(fit_cache ? std::max(cache_rate, memory_rate) : memory_rate, 1),
          std::max<int64_t>(for_one, 1), fit_cache};
}

RowCosts on_card(RowCosts costs, const ForwardRow& row, const Card& card) {
  constexpr int64_t measured_at = assumed_card(1).clock_kilohertz;  // the costs above
  constexpr int64_t operations = 4096;                              // of products, in a clock
  const int64_t clock = card.clock_kilohertz ? card.clock_kilohertz : measured_at;
  const int64_t products = int64_t{2} * row.Br * row.Bc * (row.d + row.dv) / operations * (card.product_clocks - 1);
  for (Costs* c : {&costs.together, &costs.behind})
    c->block = static_cast<int32_t>((c->block * measured_at + products * 1'000'000) / clock);
  return costs;
}

void Simulation::insert(const Level& level) {
  uint32_t place = count_;  // of the first one that is not earlier
  if (count_ > 0 && at(count_ - 1).time >= level.time) {
    uint32_t begin = 0;
    for (uint32_t end = count_ - 1; begin < end;) {
      const uint32_t middle = (begin + end) / 2;
      if (at(middle).time < level.time) begin = middle + 1;
      else end = middle;
    }
    place = begin;
    if (at(place).time == level.time) {
      at(place).multiprocessors += level.multiprocessors;
      return;
    }
  }
  if (place < count_ / 2) {
    --first_;
    for (uint32_t n = 0; n < place; ++n) at(n) = at(n + 1);
  } else {
    for (uint32_t n = count_; n > place; --n) at(n) = at(n - 1);
  }
  ++count_;
  at(place) = level;
}

void Simulation::add(int64_t time, int64_t pieces) {
  if (count_ == 1 && pieces > multiprocessors_) {  // all are free at once: whole rounds
    const int64_t rounds = (pieces - 1) / multiprocessors_;
    at(0).time += rounds * time;
    end_ = std::max(end_, at(0).time);
    pieces -= rounds * multiprocessors_;
  }
  while (pieces > 0) {
    Level& earliest = at(0);
    const Level busy{earliest.time + time, std::min(pieces, earliest.multiprocessors)};
    pieces -= busy.multiprocessors;
    earliest.multiprocessors -= busy.multiprocessors;
    if (earliest.multiprocessors == 0) ++first_, --count_;
    end_ = std::max(end_, busy.time);
    insert(busy);
  }
}

void SingleSimulation::make_tree() {
  for (uint32_t n = multiprocessors_ - 1; n > 0; --n) nodes_[n] = std::min(nodes_[2 * n], nodes_[2 * n + 1]);
}

void SingleSimulation::add_behind(int64_t time) {
  uint64_t earliest = nodes_[1];
  uint32_t at = multiprocessors_ + static_cast<uint32_t>(earliest & ((1 << number_bits) - 1));
  earliest += static_cast<uint64_t>(time) << number_bits;
  end_ = std::max(end_, static_cast<int64_t>(earliest >> number_bits));
  for (; at > 1; at /= 2) {
    nodes_[at] = earliest;
    earliest = std::min(earliest, nodes_[at ^ 1]);
  }
  nodes_[1] = earliest;
}

}  // namespace fa3
