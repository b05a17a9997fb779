// Constant units (ptx/plan/plan_forward.h): in which parts a row's keys are added up depends on its own keys only.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <map>

#include "planned_lengths.h"

namespace fa3::test {
namespace {

constexpr Shape heads{.heads = 8, .heads_kv = 2};

// Of each query of a sequence, by its position: the keys of each part, of those that it sees.
using PartsOfRows = std::map<int32_t, std::vector<std::pair<int32_t, int32_t>>>;

// Of the queries of entry b of the batch, which begin at this position. Cut sequences follow each other.
void add_parts(const PlannedLengths& made, int32_t b, int32_t position, PartsOfRows& all) {
  const PlanForwardParams& p = made.params;
  const int32_t each = p.cuts.each, first_row = made.sequences[size_t(b * each)].q_row;
  struct Part {
    int32_t part, begin, end;
  };
  std::map<int32_t, std::vector<Part>> found;
  for (const PlannedPiece& entry : made.entries) {
    const auto place = made.place_of(entry);
    if (place.sequence / each != b) continue;
    const Sequence& sequence = made.sequences[size_t(place.sequence)];
    for (int32_t row = place.rows.begin; row < place.rows.end; row += 1 << p.packing.shift) {
      const Keys keys = visible_of(sequence, true, true, p.packing).of(row);
      const int32_t begin = std::max(keys.begin, entry.begin * p.Bc), end = std::min(keys.end, entry.end * p.Bc);
      // A part of which some rows see nothing would make others' sums depend on who else is in their tile.
      REQUIRE((begin < end || (keys.none() && entry.parts == 1)));
      const int32_t query = sequence.q_row - first_row + p.packing.query(row);
      if (begin < end) found[position + query].push_back({entry.part, begin, end});
      else found[position + query];
    }
  }
  for (auto& [query, parts] : found) {
    std::sort(parts.begin(), parts.end(), [](const Part& x, const Part& y) { return x.part < y.part; });
    REQUIRE(all.count(query) == 0);
    for (const Part& part : parts) all[query].push_back({part.begin, part.end});
    if (parts.empty()) all[query] = {};
  }
}

}  // namespace

TEST_CASE("with a constant unit a row's parts depend on its own keys only", "[lengths]") {
  std::mt19937 random(7);
  size_t split = 0, whole = 0;
  for (int n = 0; n < 60; ++n) {
    const ForwardRow& row = n % 2 ? packed() : wide();
    const Window windows[] = {causal_window, {5000, 0, true}, {9000, 0, true}, {300, 0, true}};
    const Window window = windows[random() % 4];
    const int32_t most_q = n % 2 ? 60 : 9000;
    // A sequence: so many keys before the first of these queries.
    const int32_t queries = 1 + int32_t(random() % uint32_t(most_q)), before = int32_t(random() % 30000);
    const auto plan = [&](int32_t from, int32_t to, size_t batch, int multiprocessors) {
      auto q = any_lengths(random, batch, most_q), k = any_lengths(random, batch, 20000);
      const auto at = ptrdiff_t(random() % (batch + 1));
      q.insert(q.begin() + at, to - from), k.insert(k.begin() + at, before + to);
      const PackedCall call(row, heads, q, k, window, {.multiprocessors = multiprocessors, .batch_invariant = true,
                                                       .most_q = int64_t(random() % 9000),
                                                       .most_k = int64_t(random() % 200000)});
      const PlannedLengths made(call.params);
      check(made);
      PartsOfRows parts;
      add_parts(made, int32_t(at), before + from, parts);
      return parts;
    };
    const PartsOfRows alone = plan(0, queries, 0, 132);
    REQUIRE(alone.size() == size_t(queries));
    REQUIRE(plan(0, queries, random() % 30, 78) == alone);
    // In two steps, and the last query alone.
    const int32_t cut = int32_t(random() % uint32_t(queries));
    PartsOfRows steps = plan(cut, queries, random() % 8, 132);
    if (cut > 0) steps.merge(plan(0, cut, random() % 8, 132));
    REQUIRE(steps == alone);
    REQUIRE(plan(queries - 1, queries, random() % 8, 132).at(before + queries - 1) == alone.at(before + queries - 1));
    for (const auto& [query, parts] : alone) (parts.size() > 1 ? split : whole)++;
  }
  CHECK((split > 10000 && whole > 10000));
}

TEST_CASE("parts end with constant units of keys, and the last one has the rest", "[lengths]") {
  const PackedCall call(wide(), heads, {1, 1}, {10000, 32 * 4096 + 5000}, causal_window, 132, true);
  const PlannedLengths made(call.params);
  check(made);
  REQUIRE((call.params.unit == 64 && call.params.most_parts == 32));
  PartsOfRows parts;
  add_parts(made, 0, 9999, parts), add_parts(made, 1, 136071, parts);
  CHECK(parts[9999] == std::vector<std::pair<int32_t, int32_t>>{{0, 4096}, {4096, 8192}, {8192, 10000}});
  CHECK((parts[136071].size() == 32 && parts[136071].back() == std::pair{31 * 4096, 32 * 4096 + 5000}));
}

TEST_CASE("in chunks of positions nothing is split with a constant unit", "[lengths]") {
  const PackedCall call(wide(), heads, {20000}, {20000}, causal_window, {.batch_invariant = true, .chunk = 8192});
  const PlannedLengths made(call.params);
  check(made);
  CHECK(made.counts.slots == 0);
}

}  // namespace fa3::test
