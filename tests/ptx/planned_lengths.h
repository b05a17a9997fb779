// Plans for varlen sequences (ptx/plan/plan_forward.h), made on the host as a thread block would make them on the
// device.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "../src/forward/plan/plans.h"
#include "forward/plan/cost.h"
#include "forward/plan/planned.h"

namespace fa3::test {

inline constexpr Window no_window{-1, -1, true}, causal_window{-1, 0, true};

// Rounds in a random order.
struct Shuffled : InTurn {
  mutable std::mt19937 random{1};

  template <class F>
  void each(int32_t count, F f) const {
    std::vector<int32_t> order(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) order[size_t(i)] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (const int32_t i : order) f(i);
  }
  template <class Tile, class Piece>
  void list(int32_t count, Tile tile_of, Piece piece_of, PlannedPiece* entries) const {
    list_in_rounds_of(*this, count, tile_of, piece_of, entries);
  }
};

inline bool same(const Sequence& a, const Sequence& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

struct PlannedLengths {
  PlanForwardParams params;
  std::vector<Sequence> sequences;    // that there are, as the lengths say
  std::vector<PlannedPiece> entries;  // those that the list has
  PlannedCounts counts;
  PredictedTimes times;
  int32_t unit;          // of the best trial; or 0
  bool many;              // are pieces many?
  Sections sections;
  size_t sorted_entries;  // so many, the first ones, are sorted by their lengths
  int32_t tail_entries;   // so many, the last ones, are of tiles that are split as the tail
  bool overran = false;  // something was written outside of the plan's memory

  template <class Threads = InTurn>
  explicit PlannedLengths(const PlanForwardParams& p, const Threads& threads = {}, unsigned char untouched = 0xa5)
      : params(p) {
    for (int32_t n = 0; n < p.sequences; ++n)
      sequences.push_back(sequence_at(p.lengths, p.total_q, p.total_k, p.window, p.cuts, n));
    // Beyond what may be used lies something else.
    constexpr size_t beyond = 4096;
    const auto bytes = static_cast<size_t>(plan_bytes(p));
    std::vector<std::max_align_t> memory((bytes + 2 * beyond) / sizeof(std::max_align_t) + 1);
    auto* const first = reinterpret_cast<unsigned char*>(memory.data());
    std::fill_n(first, bytes + 2 * beyond, untouched);
    const auto scratch = std::make_unique<PlanScratch>();
    std::memset(static_cast<void*>(scratch.get()), untouched, sizeof *scratch);
    const PlannedPieces plan = plan_at(first + beyond, params);
    plan_forward(threads, params, plan, *scratch);
    times = predicted_times(params, *scratch);
    unit = has_unit(*scratch) ? scratch->trials.unit[best_trial(*scratch)] : 0;
    for (size_t i = 0; i < beyond; ++i) overran |= first[i] != untouched || first[beyond + bytes + i] != untouched;
    many = are_many(params, *scratch, scratch->all_tiles);
    sections = sections_of(params, *scratch);
    counts = *plan.counts;
    tail_entries = scratch->has_tail ? counts.slots : 0;
    const int64_t most = most_entries(p.most_tiles, p.most_slots);
    entries.assign(plan.entries, plan.entries + std::clamp<int64_t>(counts.entries, 0, most));
    const int32_t* const tiles_before = plan.tiles ? plan.tiles : scratch->tiles;
    const auto all_tiles =
        std::count_if(entries.begin(), entries.end(), [](const PlannedPiece& e) { return e.part == 0; });
    sorted_entries = tail_entries > 0 ? 0 : entries.size() - size_t(all_tiles - tiles_before[p.sequences]);
  }

  // Of which sequence an entry is, and which of its rows, as tiles count them. -1: of none.
  struct Place {
    int32_t sequence;
    Rows rows;
  };
  Place place_of(const PlannedPiece& entry) const {
    const Sequence& own = entry.sequence;
    for (size_t b = 0; b < sequences.size(); ++b) {
      const Sequence& whole = sequences[b];
      const int64_t begin = int64_t{own.q_row} - whole.q_row, end = begin + own.seqlen_q;
      const bool is_inside = whole.seqlen_q > 0 && begin >= 0 && end <= whole.seqlen_q;
      if (!is_inside || !same(own, with_rows(whole, begin, end))) continue;
      const int64_t first = (begin << params.packing.shift) + int64_t{entry.q_block} * params.Br;
      const int64_t last = std::min(first + params.Br, end << params.packing.shift);
      return {int32_t(b), {int32_t(first), int32_t(last)}};
    }
    return {-1, {0, 0}};
  }
  SeenBlocks tile(const PlannedPiece& entry) const {
    const int64_t rows = params.packing.rows(entry.sequence.seqlen_q), first = int64_t{entry.q_block} * params.Br;
    return seen_blocks(params, entry.sequence, {int32_t(first), int32_t(std::min(first + params.Br, rows))});
  }
  Work work(int32_t number) const {
    return entries[size_t(number / params.heads)].work(number, params.heads, number % params.heads);
  }
  int32_t length(const PlannedPiece& entry) const { return entry.end - entry.begin; }
  // The number of the section of a sequence, if sequences are in sections.
  int32_t section_of(int32_t sequence) const {
    return sequence >= params.sequences - sections.last ? params.sequences : sequence >> sections.shift;
  }
};

// How long the pieces of a list take if each multiprocessor takes the next one as soon as it is free, in nanoseconds:
// as the planner for calls of one length predicts it (split.cpp).
inline double simulated_time(const PlannedLengths& made) {
  const PlanForwardParams& p = made.params;
  const auto pieces = int32_t(made.entries.size()) * p.heads;
  const Costs costs = costs_of(p, pieces);
  Simulation machine(p.multiprocessors);
  int32_t parts = 1;
  for (const PlannedPiece& entry : made.entries) {
    int64_t time = costs.whole(0) + int64_t{made.length(entry)} * made.tile(entry).weight * costs.block / 64;
    if (entry.parts > 1) time += costs.write;
    if (entry.parts > 1 && entry.part == entry.parts - 1 && !p.packed_rows) time += costs.read_all(entry.parts);
    machine.add(time, p.heads);
    parts = std::max(parts, entry.parts);
  }
  return double(launch_time + machine.end() + read_behind(p, parts));
}

// Starts of sequences of these lengths.
inline std::vector<int32_t> starts_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> starts{0};
  for (const int32_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

// The planner's parameters for packed sequences of these lengths, kept with what they point to. The maxima are those of
// the lengths, or larger ones.
struct PackedCall {
  std::vector<int32_t> cu_q, cu_k;
  PlanForwardParams params;

  struct Options {
    int multiprocessors = 132;
    bool batch_invariant = false;
    int64_t chunk = 0, most_q = 0, most_k = 0;
  };
  PackedCall(const ForwardRow& row, const Shape& heads, const std::vector<int32_t>& q, const std::vector<int32_t>& k,
             const Window& window, const Options& options)
      : cu_q(starts_of(q)), cu_k(starts_of(k)) {
    ForwardProblem problem = problem_of({.head_dim = row.d});
    problem.batch = int64_t(q.size()), problem.heads = heads.heads, problem.heads_kv = heads.heads_kv;
    problem.seqlen_q = std::max<int64_t>(options.most_q, *std::max_element(q.begin(), q.end()));
    problem.seqlen_k = std::max<int64_t>(options.most_k, *std::max_element(k.begin(), k.end()));
    problem.chunk = options.chunk;
    problem.lengths = {cu_q.data(), cu_k.data(), nullptr, nullptr, nullptr, nullptr, int32_t(q.size()),
                       int32_t(problem.seqlen_q), int32_t(problem.seqlen_k)};
    problem.total_q = cu_q.back(), problem.total_k = cu_k.back();
    problem.window = window, problem.batch_invariant = options.batch_invariant;
    REQUIRE(plan_forward_params({problem, row}, options.multiprocessors, params));
  }
  PackedCall(const ForwardRow& row, const Shape& heads, const std::vector<int32_t>& q, const std::vector<int32_t>& k,
             const Window& window, int multiprocessors = 132, bool batch_invariant = false)
      : PackedCall(row, heads, q, k, window, Options{.multiprocessors = multiprocessors,
                                                     .batch_invariant = batch_invariant}) {}
};

// Tiles of 192 rows of one head; or of 64, with packed heads.
const ForwardRow& wide();
const ForwardRow& packed();

// Lengths from a few to many, some of them none.
std::vector<int32_t> any_lengths(std::mt19937& random, size_t count, int32_t most);

// What holds for every list, also of lengths that overlap: no more entries and slots than the maxima allow, and pieces
// in the tensors.
void check_bounds(const PlannedLengths& made);

// And of lengths that do not: every K/V block of every tile of every head is in one piece, the parts of a tile follow
// each other, and have slots and tickets of their own; and pieces stand in their order.
void check(const PlannedLengths& made);

}  // namespace fa3::test
