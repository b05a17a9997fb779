// Plans for packed lengths (ptx/plan_lengths.h), made on the host as a thread block would make them on the device.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cstddef>
#include <cstring>
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

inline bool same(const Sequence& a, const Sequence& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

struct PlannedLengths {
  PlanLengthsParams params;
  std::vector<Sequence> sequences;  // that there are, as the lengths say
  std::vector<Planned> entries;     // those that the list has
  PlannedCounts counts;
  PlanScratch scratch;
  bool overran = false;  // something was written outside of the plan's memory

  template <class Threads = InTurn>
  explicit PlannedLengths(const PlanLengthsParams& p, const Threads& threads = {}) : params(p) {
    for (int32_t b = 0; b < p.lengths.batch; ++b)
      sequences.push_back(sequence_at(p.lengths, p.total_q, p.total_k, p.window, b));
    // Beyond what may be used lies something else.
    constexpr size_t beyond = 4096;
    constexpr unsigned char untouched = 0xa5;
    const auto bytes = static_cast<size_t>(plan_bytes(p));
    std::vector<std::max_align_t> memory((bytes + 2 * beyond) / sizeof(std::max_align_t) + 1);
    auto* const first = reinterpret_cast<unsigned char*>(memory.data());
    std::fill_n(first, bytes + 2 * beyond, untouched);
    std::fill_n(reinterpret_cast<unsigned char*>(&scratch), sizeof scratch, untouched);
    const LengthsPlan plan = plan_at(first + beyond, params);
    plan_lengths(threads, params, plan, scratch);
    for (size_t i = 0; i < beyond; ++i) overran |= first[i] != untouched || first[beyond + bytes + i] != untouched;
    counts = *plan.counts;
    const int64_t most = most_entries(p.most_tiles, p.most_slots);
    entries.assign(plan.entries, plan.entries + std::clamp<int64_t>(counts.entries, 0, most));
  }

  // Of which sequence an entry is.
  int32_t sequence_of(const Planned& entry) const {
    for (size_t b = 0; b < sequences.size(); ++b)
      if (same(sequences[b], entry.sequence)) return int32_t(b);
    return -1;
  }
  Blocks tile(const Planned& entry) const { return tile_blocks(params, entry.sequence, entry.q_block); }
  Work work(int32_t number) const {
    return entries[size_t(number / params.heads)].work(number, params.heads, number % params.heads);
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
