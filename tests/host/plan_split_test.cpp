// Which tiles the planner for packed lengths (ptx/plan_lengths.h) splits, and what that is predicted to gain.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "planned_lengths.h"

namespace fa3::test {
namespace {

// The paper's grid, few heads, few queries on caches, and short sequences.
std::vector<Shape> equal_shapes() {
  std::vector<Shape> shapes;
  for (const int64_t d : {64, 128, 256})
    for (int64_t n = 512; n <= 16384; n *= 2) shapes.push_back(square(16384 / n, n, 2048 / d, d));
  for (const int64_t heads : {1, 2, 4, 8, 10, 28})
    for (const int64_t n : {2048, 4096, 16384}) shapes.push_back(square(1, n, heads, 128));
  for (const auto& [batch, keys] : {std::pair{1, 8192}, {1, 131072}, {8, 8192}, {32, 4096}, {64, 8192}, {128, 2048}})
    for (const int64_t queries : {1, 4})
      for (const auto& [d, heads, heads_kv] : {std::tuple{128, 32, 8}, {128, 32, 1}, {128, 8, 8}, {256, 32, 8}})
        shapes.push_back({.batch = batch, .seqlen_q = queries, .seqlen_k = keys, .heads = heads, .heads_kv = heads_kv,
                          .head_dim = d});
  for (const int64_t batch : {1, 4, 16, 64})
    for (const auto& [queries, keys] :
         {std::pair{1, 64}, {1, 200}, {1, 512}, {16, 200}, {16, 1000}, {64, 64}, {64, 512}})
      shapes.push_back({.batch = batch, .seqlen_q = queries, .seqlen_k = keys, .heads = 8, .heads_kv = 8,
                        .head_dim = 128});
  return shapes;
}

// Some steps of decoding, prefills, and both in one.
struct Mixture {
  std::vector<int32_t> q, k;
  Shape heads;
  bool packs;
};
Mixture any_mixture(std::mt19937& random) {
  const auto between = [&](int32_t least, int32_t most) {
    return least + int32_t(random() % uint32_t(most - least + 1));
  };
  const auto about = [&](int32_t least, int32_t most) {  // short ones are as frequent as long ones
    const int32_t scale = std::min(most, least << random() % 12);
    return between(std::min(scale, most / 2), scale);
  };
  Mixture made;
  made.packs = random() % 2;
  const int32_t heads = made.packs ? 1 << random() % 4 : between(1, 16), longest = about(500, 131072);
  made.heads = {.heads = made.packs ? 4 * heads : heads, .heads_kv = heads};
  const bool alike = random() % 3 == 0;
  for (int32_t n = between(1, made.packs ? 256 : 20); n > 0; --n) {
    const int32_t keys = alike ? longest : about(60, longest);
    const int32_t queries = made.packs || random() % 2 ? 1 : std::min({keys, 2048, between(1, 4000)});
    made.q.push_back(queries), made.k.push_back(keys);
  }
  if (random() % 4 == 0) made.k[0] = 200000;
  return made;
}

// The shortest time of all units, if tiles are cut into parts of a unit and taken from the longest to the shortest.
double best_time(const PlannedLengths& made) {
  const PlanLengthsParams& p = made.params;
  std::vector<std::pair<SeenBlocks, int32_t>> tiles;
  int32_t longest = 0;
  for (const Planned& entry : made.entries)
    if (entry.part == 0) {
      const SeenBlocks blocks = made.tile(entry);
      tiles.push_back({blocks, blocks.length()}), longest = std::max(longest, blocks.length());
    }
  double best = 1e30;
  for (int32_t unit = longest; unit >= 1 << p.least_unit; unit = std::min(unit - 1, unit * 49 / 50)) {
    std::vector<std::pair<int32_t, bool>> pieces;
    int64_t slots = 0;
    int32_t most = 1;
    for (const auto& [blocks, length] : tiles) {
      const int32_t parts = (length + unit - 1) / unit;
      for (int32_t n = 0; n < parts; ++n) {
        const int32_t read = n == parts - 1 && parts > 1 ? read_blocks(p, parts) : 0;
        pieces.push_back({std::min(unit, length - n * unit) + read, parts > 1});
      }
      slots += parts > 1 ? parts : 0, most = std::max(most, parts);
    }
    if (slots > p.most_slots || most > p.most_parts) break;
    std::sort(pieces.begin(), pieces.end(), std::greater());
    const Costs costs = costs_of(p, of_all_heads(p, int64_t(pieces.size())));
    const auto machine = std::make_unique<Simulation>(p.multiprocessors);
    for (const auto& [length, is_part] : pieces)
      machine->add(is_part ? costs.part(length) : costs.whole(length), p.heads);
    best = std::min(best, double(launch_time + machine->end() + read_behind(p, most)));
  }
  return best;
}

}  // namespace

TEST_CASE("a long sequence among short ones is split into pieces that balance", "[lengths]") {
  std::vector<int32_t> q(64, 1), k(64, 1000);
  const Shape heads{.heads = 32, .heads_kv = 8};
  const PackedCall alike(packed(), heads, q, k, no_window);
  CHECK(PlannedLengths(alike.params).counts.slots == 0);
  k[17] = 131072;
  const PackedCall call(packed(), heads, q, k, no_window);
  const PlannedLengths made(call.params);
  check(made);
  CHECK(made.counts.slots >= 10);
  const int64_t all = 8 * (63 * 16 + 2048);  // blocks of 64 keys
  for (const Planned& entry : made.entries) CHECK(made.length(entry) <= all / 132 * 5 / 4);
  CHECK(made.times.planned < made.times.whole / 4);
  const double time = simulated_time(made);
  CHECK((made.times.planned > time * 0.9 && made.times.planned < time * 1.1));
}

// Also where pieces are many, which are not split as a rule: 256 steps of decoding, 8 of which are long.
TEST_CASE("what is longer than the rest is split among many, and comes first", "[lengths]") {
  std::vector<int32_t> q(256, 1), k(256, 1000);
  const Shape heads{.heads = 32, .heads_kv = 8};
  CHECK(PlannedLengths(PackedCall(packed(), heads, q, k, no_window).params).counts.slots == 0);
  k[100] = 131072;
  const PackedCall call(packed(), heads, q, k, no_window);
  const PlannedLengths made(call.params);
  check(made);
  CHECK((made.counts.slots >= 4 && made.sorted_entries == size_t(made.counts.slots)));
  CHECK(simulated_time(made) < 0.4 * made.times.whole);
}

TEST_CASE("equal lengths take hardly longer than as the planner for them splits", "[lengths]") {
  int split = 0, whole = 0, longer = 0;
  double sum = 0;
  for (const Shape& shape : equal_shapes())
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const int multiprocessors : {78, 114, 132}) {
        const ForwardProblem problem = problem_of(shape, mask);
        const RowPlan plan = planned(problem, multiprocessors);
        const Lengths lengths{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, int32_t(shape.batch),
                              int32_t(shape.seqlen_q), int32_t(shape.seqlen_k)};
        PlanLengthsParams params;
        REQUIRE(plan_lengths_params(problem, forward_row(plan.row), multiprocessors, lengths, {-1, -1},
                                    mask == FA3_MASK_NONE ? no_window : causal_window, false, params));
        const PlannedLengths made(params);
        const bool is_split_here = made.counts.slots > 0;
        INFO(shape.batch << " x " << shape.seqlen_q << " x " << shape.seqlen_k << ", heads " << shape.heads << ", d "
                         << shape.head_dim << ", mask " << mask << ", " << multiprocessors);
        const double ratio = simulated_time(made) / 1e3 / plan.predicted_us;
        CHECK(ratio < 1.1);
        if (is_split_here && !is_split(plan)) CHECK(ratio < 1.01);
        const double whole_us = double(made.times.whole) / 1e3;
        CHECK((whole_us > 0.85 * plan.whole_us && whole_us < 1.3 * plan.whole_us));
        sum += ratio, longer += ratio > 1.05, (is_split_here ? split : whole)++;
      }
  CHECK((split > 200 && whole > 200));
  CHECK((sum / (split + whole) < 1.001 && longer < (split + whole) / 25));
}

TEST_CASE("random lengths take hardly longer than with the best of all units", "[lengths]") {
  std::mt19937 random(3);
  int count = 0, longer = 0;
  double sum = 0;
  for (int n = 0; n < 300; ++n) {
    const Mixture set = any_mixture(random);
    const PackedCall call(set.packs ? packed() : wide(), set.heads, set.q, set.k, causal_window);
    const PlannedLengths made(call.params);
    if (int64_t(made.entries.size()) * call.params.heads >= few_rounds * 132) continue;  // in another order
    const double ratio = simulated_time(made) / best_time(made);
    INFO("set " << n << ", " << set.q.size() << " sequences, heads " << call.params.heads << ", ratio " << ratio);
    CHECK(ratio < 1.25);
    ++count, sum += ratio, longer += ratio > 1.05;
  }
  CHECK((count > 200 && sum / count < 1.005 && longer < count / 6));
}

TEST_CASE("a piece more than multiprocessors waits for one of the others", "[lengths]") {
  std::vector<int32_t> q(132, 1), k(132, 6400);
  const auto whole_time = [&] {
    return PlannedLengths(PackedCall(packed(), {.heads = 1, .heads_kv = 1}, q, k, no_window).params).times.whole;
  };
  const int32_t one_each = whole_time();
  q.push_back(1), k.push_back(3840);
  const int32_t one_more = whole_time();
  CHECK((one_more > one_each * 3 / 2 && one_more < one_each * 17 / 10));
}

TEST_CASE("the last of many equal tiles are split where they would fill few multiprocessors", "[lengths]") {
  std::vector<int32_t> q(33, 1), k(33, 20000);
  const Shape heads{.heads = 32, .heads_kv = 8};  // 264 pieces are two rounds
  CHECK(PlannedLengths(PackedCall(packed(), heads, {q.begin(), q.end()}, k, no_window).params).counts.slots == 0);
  q.push_back(1), k.push_back(20000);
  const PackedCall call(packed(), heads, q, k, no_window);
  const PlannedLengths made(call.params);
  check(made);
  CHECK((made.tail_entries >= 4 && made.tail_entries == made.counts.slots));
  for (size_t n = 0; n < made.entries.size(); ++n) {
    const Planned& entry = made.entries[n];
    CHECK((entry.parts > 1) == (n >= made.entries.size() - size_t(made.tail_entries)));
    if (entry.parts > 1) CHECK(std::abs(made.length(entry) * entry.parts - made.tile(entry).count()) < entry.parts);
  }
  CHECK(simulated_time(made) < 0.8 * made.times.whole);
}

TEST_CASE("the longest keys are split, too", "[lengths]") {
  const PackedCall call(packed(), {.heads = 4, .heads_kv = 1}, {1, 1, 4}, {60'000'000, 130, 100'000'001},
                        causal_window);
  const PlannedLengths made(call.params);
  check(made);
  CHECK((made.counts.slots > 100 && made.counts.slots <= 3 * 132));
}

}  // namespace fa3::test
