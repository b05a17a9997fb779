// Which tiles the planner for varlen sequences (ptx/plan/plan_forward.h) splits, and what that is predicted to gain.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "../../../ptx/planned_lengths.h"
#include "integers.h"

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

// How long it takes if tiles are cut into parts of a unit, and pieces are taken from the longest to the shortest.
// Lengths are in 64ths of a block. 0: parts would be too many.
double time_with(const PlanForwardParams& p, const std::vector<int64_t>& lengths, int64_t unit) {
  int64_t slots = 0, pieces = 0, most = 1;
  for (const int64_t length : lengths) {
    const int64_t parts = divide_up(length, unit);
    pieces += parts, slots += parts > 1 ? parts : 0, most = std::max(most, parts);
  }
  if (slots > p.most_slots || most > p.most_parts) return 0;
  const Costs costs = costs_of(p, times_heads(p, pieces));
  std::vector<int64_t> times;
  for (const int64_t length : lengths) {
    const int64_t parts = divide_up(length, unit);
    const int64_t last = costs.whole(0) + (length - (parts - 1) * unit) * costs.block / 64;
    times.insert(times.end(), size_t(parts - 1), costs.part(0) + unit * costs.block / 64);
    times.push_back(parts == 1 ? last : last + costs.write + (p.packed_rows ? 0 : costs.read_all(parts)));
  }
  std::sort(times.begin(), times.end(), std::greater());
  const auto machine = std::make_unique<Simulation>(p.multiprocessors);
  for (const int64_t time : times) machine->add(time, p.heads);
  return double(launch_time + machine->end() + read_behind(p, int32_t(most)));
}
std::vector<int64_t> lengths_of_tiles(const PlannedLengths& made) {
  std::vector<int64_t> lengths;
  for (const PlannedPiece& entry : made.entries)
    if (entry.part == 0) lengths.push_back(int64_t{made.tile(entry).count()} * made.tile(entry).weight);
  return lengths;
}

// How long the host's plan for one length takes, by the same costs.
double simulated_time(const ForwardProblem& problem, const RowPlan& plan, const PlanForwardParams& p) {
  const ForwardRow& row = forward_row(plan.row);
  const Costs costs = costs_of(p, plan.pieces.count());
  const int64_t all_rows = problem.seqlen_q * rows_of_query(problem, row);
  const auto machine = std::make_unique<Simulation>(p.multiprocessors);
  int32_t most = 1;
  const auto add = [&](const Work& work) {
    const int64_t first = unfold(problem, plan, work.tile).first_row;
    const int64_t rows = std::min(first + row.Br, all_rows) - std::max<int64_t>(first, 0);
    const bool reads = work.parts > 1 && work.part == work.parts - 1 && !p.packed_rows;
    machine->add(costs.whole(0) + int64_t{work.end - work.begin} * p.weight[(rows + 63) / 64 - 1] * costs.block / 64 +
                     (work.parts > 1 ? costs.write : 0) + (reads ? costs.read_all(work.parts) : 0), 1);
    most = std::max(most, work.parts);
  };
  const Pieces& pieces = plan.pieces;
  for (int32_t n = 0; n < pieces.whole_tiles; ++n) add({n, 0, unfold(problem, plan, n).blocks, 0, 1, 0, 0});
  for (int32_t n = 0; n < pieces.listed; ++n) {
    const Listed& entry = plan.list[n / pieces.tiles_per_entry];
    const int32_t nth = n % pieces.tiles_per_entry, tile = pieces.whole_tiles + int32_t(entry.tile) + nth;
    add(pieces.work(entry, nth, unfold(problem, plan, tile).blocks));
  }
  return double(launch_time + machine->end() + read_behind(p, most));
}

// The shortest time of all units.
double best_time(const PlannedLengths& made) {
  const PlanForwardParams& p = made.params;
  const std::vector<int64_t> lengths = lengths_of_tiles(made);
  const int64_t longest = lengths.empty() ? 64 : *std::max_element(lengths.begin(), lengths.end());
  const double whole = time_with(p, lengths, longest);
  double best = whole;
  for (int64_t unit = longest / 64; unit >= 1 << p.least_unit; unit = std::min(unit - 1, unit * 49 / 50)) {
    const double time = time_with(p, lengths, unit * 64);
    if (time == 0) break;
    if (worth_splitting(int64_t(time), int64_t(whole))) best = std::min(best, time);
  }
  return best;
}

// The shortest time if a set is split as a call of one length is where tiles are few (split.cpp): all into parts of one
// length, up to two pieces for each multiprocessor, with packed heads one; or not at all.
double time_by_host(const PlannedLengths& made) {
  const PlanForwardParams& p = made.params;
  const std::vector<int64_t> lengths = lengths_of_tiles(made);
  if (lengths.empty()) return simulated_time(made);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const double whole = time_with(p, lengths, longest);
  double best = whole;
  const int64_t most = (p.packed_rows ? 1 : 2) * int64_t{p.multiprocessors} / (int64_t(lengths.size()) * p.heads);
  for (int64_t parts = 2; parts <= most; ++parts) {
    const int64_t unit = divide_up(longest, parts * 64);
    if (unit < 1 << p.least_unit) break;
    const double time = time_with(p, lengths, unit * 64);
    if (time > 0 && worth_splitting(int64_t(time), int64_t(whole))) best = std::min(best, time);
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
  for (const PlannedPiece& entry : made.entries) CHECK(made.length(entry) <= all / 132 * 5 / 4);
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
  CHECK((made.counts.slots >= 4 && made.sorted_entries == made.entries.size()));
  for (size_t n = 0; n < size_t(made.counts.slots); ++n) CHECK(made.entries[n].parts > 1);
  CHECK(simulated_time(made) < 0.4 * made.times.whole);
}

static int64_t pieces_of(const PlannedLengths& made) { return int64_t(made.entries.size()) * made.params.heads; }

// Is it in sections though pieces are few? By the model, which knows of no L2 cache, that may take longer; on a card
// such calls are 2 to 32% faster so (H200, d 128 and 256, sequences of 512 to 4096).
static bool for_cache(const PlannedLengths& made) {
  return made.many && pieces_of(made) < few_rounds * int64_t{made.params.multiprocessors};
}

TEST_CASE("equal lengths take hardly longer than as the planner for them splits", "[lengths]") {
  int split = 0, whole = 0, longer = 0;
  double sum = 0;
  for (const Shape& shape : equal_shapes())
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const int multiprocessors : {78, 114, 132}) {
        ForwardProblem problem = problem_of(shape, mask);
        const RowPlan plan = row_plan(problem, multiprocessors);
        problem.lengths.batch = int32_t(shape.batch);
        problem.lengths.max_q = int32_t(shape.seqlen_q), problem.lengths.max_k = int32_t(shape.seqlen_k);
        problem.total_q = problem.total_k = -1, problem.window = mask == FA3_MASK_NONE ? no_window : causal_window;
        PlanForwardParams params;
        REQUIRE(plan_forward_params({problem, forward_row(plan.row)}, multiprocessors, params));
        const PlannedLengths made(params);
        const bool is_split_here = made.counts.slots > 0;
        INFO(shape.batch << " x " << shape.seqlen_q << " x " << shape.seqlen_k << ", heads " << shape.heads << ", d "
                         << shape.head_dim << ", mask " << mask << ", " << multiprocessors);
        const double ratio = simulated_time(made) / simulated_time(problem, plan, params);
        // An entry of the list is for all heads. So without a mask the last wave of tiles cannot always be split alone,
        // nor at quotas. Of more than 32 parts not every number is tried.
        CHECK(ratio < (for_cache(made) ? 1.06 : mask == FA3_MASK_NONE && shape.seqlen_q > 1 ? 1.09 : 1.04));
        if (is_split_here && !is_split(plan)) CHECK(ratio < 1.01);
        // Tiles in which some warpgroups have no rows take a little less than is predicted of a tail.
        if (made.tail_entries > 0) CHECK(simulated_time(made) > 0.97 * made.times.planned);
        if (made.tail_entries > 0) CHECK(simulated_time(made) < 1.01 * made.times.planned);
        const double whole_us = double(made.times.whole) / 1e3;
        CHECK((whole_us > 0.85 * plan.whole_us && whole_us < 1.3 * plan.whole_us));
        sum += ratio, longer += ratio > 1.03 && !for_cache(made), (is_split_here ? split : whole)++;
      }
  CHECK((split > 200 && whole > 200));
  CHECK((sum / (split + whole) < 0.995 && longer <= (split + whole) / 40));
}

// Of other seeds one set in a thousand takes longer, up to 16%: where pieces are just more than two for each
// multiprocessor, or tiles are many, causal and short.
TEST_CASE("random lengths take hardly longer than as calls of one length are split", "[lengths]") {
  int count = 0, many = 0, longer = 0;
  for (const unsigned seed : {3, 4, 5, 6}) {
    std::mt19937 random(seed);
    for (int n = 0; n < 1600; ++n) {
      const Mixture set = any_mixture(random);
      const PackedCall call(set.packs ? packed() : wide(), set.heads, set.q, set.k, causal_window);
      const PlannedLengths made(call.params);
      const double ratio = simulated_time(made) / time_by_host(made);
      INFO("seed " << seed << ", set " << n << ", " << set.q.size() << " sequences, heads " << call.params.heads);
      CHECK(ratio < 1.1);
      ++count, longer += ratio > 1.05 && !for_cache(made), many += pieces_of(made) >= few_rounds * 132;
    }
  }
  CHECK((count == 6400 && many > 400 && longer <= 1));
}

TEST_CASE("random lengths take hardly longer than with the best of all units", "[lengths]") {
  std::mt19937 random(3);
  int count = 0, longer = 0;
  double sum = 0;
  for (int n = 0; n < 300; ++n) {
    const Mixture set = any_mixture(random);
    const PackedCall call(set.packs ? packed() : wide(), set.heads, set.q, set.k, causal_window);
    const PlannedLengths made(call.params);
    const double ratio = simulated_time(made) / best_time(made);
    INFO("set " << n << ", " << set.q.size() << " sequences, heads " << call.params.heads << ", ratio " << ratio);
    CHECK(ratio < 1.25);
    ++count, sum += ratio, longer += ratio > 1.05;
  }
  CHECK((count == 300 && sum / count < 1.015 && longer < count / 6));
}

// A plan, and what it is predicted to gain, whatever lay in the planner's memory before.
static void check_repeats(const PackedCall& call) {
  const PlannedLengths made(call.params), again(call.params, InTurn(), 0x7f);
  CHECK((made.counts.entries == again.counts.entries && made.counts.slots == again.counts.slots));
  CHECK((made.times.planned == again.times.planned && made.times.whole == again.times.whole));
  const size_t bytes = std::min(made.entries.size(), again.entries.size()) * sizeof(PlannedPiece);
  CHECK(std::memcmp(made.entries.data(), again.entries.data(), bytes) == 0);
}

TEST_CASE("a plan follows from lengths alone", "[lengths]") {
  std::mt19937 random(7);
  for (int n = 0; n < 1000; ++n) {
    const Mixture set = any_mixture(random);
    INFO("set " << n << ", " << set.q.size() << " sequences");
    check_repeats({set.packs ? packed() : wide(), set.heads, set.q, set.k, causal_window});
  }
  // Few long ones, some of three quarters, none between, and short ones, of which some multiprocessors have two before
  // the others have one.
  for (size_t n = 100; n < 132; ++n) {
    INFO(n << " more pieces than multiprocessors");
    std::vector<int32_t> k(132 + n, 33000);
    std::fill_n(k.begin(), 5, 100000), std::fill_n(k.begin() + 5, 20, 74000);
    check_repeats({packed(), {.heads = 4, .heads_kv = 1}, std::vector<int32_t>(k.size(), 1), k, causal_window});
  }
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
    const PlannedPiece& entry = made.entries[n];
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
