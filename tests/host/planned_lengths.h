// Plans for packed lengths (ptx/plan_lengths.h), made on the host as a thread block would make them on the device.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <random>
#include <vector>

#include "forward/lengths.h"
#include "plans.h"

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
};

struct PlannedLengths {
  PlanLengthsParams params;
  std::vector<Sequence> sequences;
  std::vector<int32_t> first_tile;
  std::vector<Planned> entries;  // those that the list has; room was for most_tiles + most_slots
  PlannedCounts counts;
  PlanScratch scratch;

  template <class Threads = InTurn>
  explicit PlannedLengths(const PlanLengthsParams& p, const Threads& threads = {}) : params(p) {
    // Beyond what may be used lies something else.
    constexpr size_t beyond = 64;
    const auto most = static_cast<size_t>(most_entries(p.most_tiles, p.most_slots));
    const auto batch = static_cast<size_t>(p.lengths.batch);
    sequences.resize(batch), first_tile.resize(batch + 1), entries.resize(most + beyond, Planned{-1, 0, 0, 0, 0, 0, 0});
    std::fill_n(reinterpret_cast<unsigned char*>(&scratch), sizeof scratch, static_cast<unsigned char>(0xa5));
    plan_lengths(threads, params, {sequences.data(), first_tile.data(), entries.data(), &counts}, scratch);
    overran = std::any_of(entries.begin() + static_cast<ptrdiff_t>(most), entries.end(),
                          [](const Planned& entry) { return entry.sequence != -1; });
    entries.resize(static_cast<size_t>(std::clamp<int64_t>(counts.entries, 0, int64_t(most + beyond))));
  }
  bool overran;

  Blocks tile(int32_t sequence, int32_t q_block) const {
    return tile_blocks(params, sequences[size_t(sequence)], q_block);
  }
  Work work(int32_t number) const {
    const Planned& entry = entries[size_t(number / params.heads)];
    return entry.work(number, params.heads, number % params.heads, params.grain, tile(entry.sequence, entry.q_block));
  }
  int32_t length(const Planned& entry) const { return entry.end - entry.begin; }
};

// Starts of sequences of these lengths.
inline std::vector<int32_t> starts_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> starts{0};
  for (const int32_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

// The planner's parameters for packed sequences of these lengths, kept with what they point to.
struct PackedCall {
  std::vector<int32_t> cu_q, cu_k;
  PlanLengthsParams params;

  PackedCall(const ForwardRow& row, const Shape& heads, const std::vector<int32_t>& q, const std::vector<int32_t>& k,
             const Window& window, int multiprocessors = 132, bool batch_invariant = false)
      : cu_q(starts_of(q)), cu_k(starts_of(k)) {
    ForwardProblem problem = problem_of({.head_dim = row.d});
    problem.batch = int64_t(q.size()), problem.heads = heads.heads, problem.heads_kv = heads.heads_kv;
    problem.seqlen_q = *std::max_element(q.begin(), q.end());
    problem.seqlen_k = *std::max_element(k.begin(), k.end());
    const Lengths lengths{cu_q.data(), cu_k.data(), nullptr, nullptr, nullptr, nullptr, int32_t(q.size()),
                          int32_t(problem.seqlen_q), int32_t(problem.seqlen_k)};
    REQUIRE(plan_lengths_params(problem, row, multiprocessors, lengths, {cu_q.back(), cu_k.back()}, window,
                                batch_invariant, params));
  }
};

}  // namespace fa3::test
