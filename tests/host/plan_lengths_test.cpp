// The planner for packed lengths (ptx/plan_lengths.h): its lists against what the lengths say.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "forward/cost.h"
#include "planned_lengths.h"

namespace fa3::test {
namespace {

// The K/V blocks that rows of a sequence see, from the first to the last, row by row; at least one.
Blocks blocks_of_rows(const PlanLengthsParams& p, const Sequence& s, Rows rows) {
  const int64_t Bc = p.Bc;
  int64_t begin = INT64_MAX, end = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t query = row >> p.packing.shift;
    const int64_t from = std::max<int64_t>(0, query - s.left), to = std::min<int64_t>(s.seqlen_k, query + s.right + 1);
    if (from >= to) continue;
    begin = std::min(begin, from / Bc), end = std::max(end, (to - 1) / Bc + 1);
  }
  return begin < end ? Blocks{int32_t(begin), int32_t(end)} : Blocks{0, 1};
}

// What holds for every list, also of lengths that overlap: no more entries and slots than the maxima allow, and pieces
// in the tensors.
void check_bounds(const PlannedLengths& made) {
  const PlanLengthsParams& p = made.params;
  REQUIRE_FALSE(made.overran);
  REQUIRE((made.counts.entries >= 0 && made.counts.entries <= p.most_tiles + p.most_slots));
  REQUIRE((made.counts.slots >= 0 && made.counts.slots <= p.most_slots));
  for (const Planned& entry : made.entries) {
    const auto place = made.place_of(entry);
    REQUIRE((place.sequence >= 0 && entry.q_block >= 0 && !place.rows.none()));
    const SeenBlocks blocks = made.tile(entry);
    REQUIRE((blocks.begin <= entry.begin && entry.begin < entry.end && entry.end <= blocks.end));
    REQUIRE((entry.part >= 0 && entry.part < entry.parts && entry.parts <= p.most_parts));
    if (entry.parts > 1) REQUIRE((entry.slot >= 0 && entry.slot + entry.parts <= p.most_slots));
  }
}

// Few pieces are from the longest to the shortest, as far as buckets tell lengths apart. Where they are many, the tiles
// of a sequence of which none is split follow each other, and the next sequence's longest tile is at most about twice as
// long. The list may end with a tail of split tiles.
void check_order(const PlannedLengths& made) {
  const PlanLengthsParams& p = made.params;
  int64_t tiles = 0;
  int32_t longest = 0, shortest = INT32_MAX;
  std::set<int32_t> split;  // sequences of which some tile is
  for (const Planned& entry : made.entries) {
    tiles += entry.part == 0, longest = std::max(longest, made.tile(entry).count());
    if (entry.parts > 1) split.insert(made.place_of(entry).sequence);
  }
  const bool by_sequence = tiles * p.heads >= 8 * p.multiprocessors;
  const size_t end = made.entries.size() - size_t(made.tail_entries);
  size_t n = 0;
  if (made.tail_entries > 0 && !by_sequence) return;  // all are about as long
  const auto is_in_order = [&] { return !by_sequence || split.count(made.place_of(made.entries[n]).sequence); };
  for (; made.tail_entries == 0 && n < end && is_in_order(); ++n) {
    const Planned& entry = made.entries[n];
    const int32_t length = made.tile(entry).length(made.length(entry));
    REQUIRE(length <= int64_t{shortest} + longest / (PlanScratch::buckets / 2) + 1);
    shortest = std::min(shortest, length);
  }
  std::set<int32_t> before;
  for (shortest = INT32_MAX; n < end;) {
    const auto place = made.place_of(made.entries[n]);
    const int32_t sequence = place.sequence;
    REQUIRE(before.insert(sequence).second);
    int32_t of_sequence = 0;
    for (int32_t last = place.rows.end; n < end && last > 0; ++n) {
      const auto next = made.place_of(made.entries[n]);
      REQUIRE((next.sequence == sequence && next.rows.end == last && made.entries[n].parts == 1));
      of_sequence = std::max(of_sequence, made.length(made.entries[n])), last = next.rows.begin;
    }
    const bool is_last_group = of_sequence <= longest / (p.lengths.batch <= 512 ? 64 : 4);
    REQUIRE((of_sequence <= 2 * int64_t{shortest} + 2 || is_last_group));
    shortest = std::min(shortest, of_sequence);
  }
}

// And of lengths that do not: every K/V block of every tile of every head is in one piece, the parts of a tile follow
// each other, and have slots and tickets of their own.
void check(const PlannedLengths& made) {
  check_bounds(made), check_order(made);
  const PlanLengthsParams& p = made.params;
  struct Pieces {
    Rows rows;
    std::vector<Work> parts;
  };
  std::map<std::tuple<int32_t, int32_t, int32_t>, Pieces> tiles;  // by sequence, head and first row
  std::set<int32_t> slots, tickets;
  for (int32_t n = 0; n < int32_t(made.entries.size()) * p.heads; ++n) {
    const Planned& entry = made.entries[size_t(n / p.heads)];
    const auto place = made.place_of(entry);
    Pieces& pieces = tiles[{place.sequence, n % p.heads, place.rows.begin}];
    pieces.rows = place.rows, pieces.parts.push_back(made.work(n));
  }
  size_t wanted = 0;
  for (int32_t b = 0; b < p.sequences; ++b) {
    const Sequence& s = made.sequences[size_t(b)];
    const int32_t rows = s.seqlen_q << p.packing.shift;
    for (int32_t head = 0; head < p.heads; ++head)
      for (int32_t row = 0; row < rows; ++wanted) {
        REQUIRE(tiles.count({b, head, row}) == 1);
        auto& [own, parts] = tiles[{b, head, row}];
        const Blocks blocks = blocks_of_rows(p, s, own);
        row = own.end;
        std::sort(parts.begin(), parts.end(), [](const Work& x, const Work& y) { return x.part < y.part; });
        int32_t begin = blocks.begin;
        for (size_t i = 0; i < parts.size(); ++i) {
          const Work& work = parts[i];
          REQUIRE((work.part == int(i) && work.parts == int(parts.size())));
          REQUIRE((work.begin == begin && work.begin < work.end));
          begin = work.end;
          if (work.parts == 1) continue;
          REQUIRE((work.slot == parts[0].slot && work.split_tile == parts[0].split_tile));
          const int32_t slot = work.slot + work.part;
          REQUIRE((slot >= 0 && slot < made.counts.slots * p.heads && slots.insert(slot).second));
        }
        REQUIRE(begin == blocks.end);
        if (parts.size() == 1) continue;
        const int32_t ticket = parts[0].split_tile;
        REQUIRE((ticket >= 0 && ticket < made.counts.slots / 2 * p.heads && tickets.insert(ticket).second));
      }
  }
  REQUIRE(tiles.size() == wanted);  // none of other rows
}

const ForwardRow& row_of(const char* name) {
  const int row = row_named(name);
  REQUIRE(row >= 0);
  return forward_row(row);
}
const ForwardRow& wide() { return row_of("fa3_fwd_bf16_d128_causal_192x64"); }
const ForwardRow& packed() { return row_of("fa3_fwdpacked_bf16_d128_full_64x64"); }

// Lengths from a few to many, some of them none.
std::vector<int32_t> any_lengths(std::mt19937& random, size_t count, int32_t most) {
  std::vector<int32_t> lengths;
  for (size_t i = 0; i < count; ++i) {
    const int32_t scale = 1 << random() % 14;
    lengths.push_back(random() % 8 == 0 ? 0 : std::min(most, 1 + int32_t(random() % uint32_t(scale))));
  }
  return lengths;
}
std::vector<int32_t> added(std::vector<int32_t> lengths, int32_t n) {
  lengths.push_back(n);
  return lengths;
}

}  // namespace

TEST_CASE("lists hold every block of every tile once", "[lengths]") {
  std::mt19937 random(5);
  int split = 0, whole = 0;
  for (int n = 0; n < 200; ++n) {
    const bool packs = random() % 2;
    const size_t batch = 1 + random() % 40;
    const auto q = any_lengths(random, batch, packs ? 60 : 8192);
    auto k = any_lengths(random, batch, 8192);
    if (random() % 2) k[0] = 100000;  // one that must be split
    const Window windows[] = {no_window,      causal_window,    {-1, 0, false},
                              {300, 0, true}, {100, 100, true}, {-1, 5000, true}};
    const Shape heads{.heads = packs ? 8 : 3, .heads_kv = packs ? 2 : 3};
    const PackedCall call(packs ? packed() : wide(), heads, q, k, windows[random() % 6], 132, random() % 3 == 0);
    const PlannedLengths made(call.params);
    check(made);
    (made.counts.slots > 0 ? split : whole)++;
    if (n % 4 == 0) {
      const PlannedLengths shuffled(call.params, Shuffled());
      check(shuffled);
      CHECK((shuffled.counts.entries == made.counts.entries && shuffled.counts.slots == made.counts.slots));
      CHECK(shuffled.unit == made.unit);
    }
  }
  CHECK((split > 50 && whole > 10));
}

TEST_CASE("sequences without rows have no pieces, those without keys one block", "[lengths]") {
  const PlannedLengths made(PackedCall(wide(), {.heads = 2, .heads_kv = 2}, {0, 200, 0, 300, 0}, {70, 0, 0, 90, 0},
                                       causal_window).params);
  check(made);
  REQUIRE(made.counts.entries == 2 + 2);  // 192 rows are a tile
  for (const Planned& entry : made.entries) {
    const int32_t sequence = made.place_of(entry).sequence;
    CHECK((sequence == 1 || sequence == 3));
    if (sequence == 1) CHECK((entry.begin == 0 && entry.end == 1 && entry.parts == 1));
  }
  const PlannedLengths none(PackedCall(wide(), {}, {0, 0}, {5, 0}, no_window).params);
  check(none);
  CHECK(none.counts.entries == 0);
}

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
  // The time is about what the pieces take, if each multiprocessor takes the next one when it is free.
  Simulation machine(132);
  for (const Planned& entry : made.entries) {
    const Costs& costs = call.params.behind;
    const int64_t length = made.length(entry);
    machine.add(entry.parts > 1 ? costs.part(length) : costs.whole(length), 8);
  }
  const int64_t time = machine.end() + launch_time;
  CHECK((made.times.planned > time * 9 / 10 && made.times.planned < time * 11 / 10));
}

// The paper's grid, few heads, few queries on caches, and short sequences: what the planner for calls of one length
// leaves whole, and how long that takes.
TEST_CASE("equal lengths are split only where the planner for them splits, too", "[lengths]") {
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
  int split = 0, whole = 0;
  for (const Shape& shape : shapes)
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
        CHECK((is_split(plan) || !is_split_here));
        if(getenv("SHOW")) printf("RATIO %.3f sim %.3f %.3f %s: %ld x %ld x %ld heads %ld d %ld mask %d mp %d row %s host %.1f mine %.1f whole %.1f\n",simulated_time(made)/1e3/plan.predicted_us,made.times.planned/1e3/plan.predicted_us,made.times.whole/1e3/plan.whole_us,is_split(plan)?(is_split_here?"both":"host"):(is_split_here?"mine":"none"),(long)shape.batch,(long)shape.seqlen_q,(long)shape.seqlen_k,(long)shape.heads,(long)shape.head_dim,mask,multiprocessors,forward_row(plan.row).name,plan.predicted_us,made.times.planned/1e3,plan.whole_us);
        // Tiles are others under a causal mask, and their order is.
        const double whole_us = double(made.times.whole) / 1e3;
        CHECK((whole_us > 0.85 * plan.whole_us && whole_us < 1.3 * plan.whole_us));
        (is_split_here ? split : whole)++;
      }
  CHECK((split > 50 && whole > 100));
}

TEST_CASE("a piece more than multiprocessors waits for one of the others", "[lengths]") {
  std::vector<int32_t> q(132, 1), k(132, 6400);
  const auto whole_time = [&] {
    return PlannedLengths(PackedCall(packed(), {.heads = 1, .heads_kv = 1}, q, k, no_window).params).times.whole;
  };
  const int64_t one_each = whole_time();
  q.push_back(1), k.push_back(3840);
  const int64_t one_more = whole_time();
  CHECK((one_more > one_each * 3 / 2 && one_more < one_each * 17 / 10));
}

TEST_CASE("kernels that take no parts get none", "[lengths]") {
  const auto row = std::find_if(forward_rows.begin(), forward_rows.end(), [](const ForwardRow& r) {
    return r.dtype == Dtype::bf16 && r.d == 128 && !r.has(Trait::splits);
  });
  REQUIRE(row != forward_rows.end());
  for (const bool batch_invariant : {false, true}) {
    const PackedCall call(*row, {.heads = 1, .heads_kv = 1}, {1, 500}, {100000, 500}, no_window, 132, batch_invariant);
    const PlannedLengths made(call.params);
    check(made);
    CHECK((call.params.most_slots == 0 && made.counts.slots == 0));
  }
}

TEST_CASE("a constant unit splits a sequence as if it were alone", "[lengths]") {
  std::mt19937 random(7);
  int split = 0;
  for (int n = 0; n < 40; ++n) {
    const ForwardRow& row = n % 2 ? packed() : wide();
    const Shape heads{.heads = 8, .heads_kv = 2};
    const int32_t q = n % 2 ? 1 + int32_t(random() % 60) : 1 + int32_t(random() % 2000), k = int32_t(random() % 60000);
    const auto batch = random() % 30;
    const PackedCall alone_call(row, heads, {q}, {k}, causal_window, 132, true);
    const PackedCall call(row, heads, added(any_lengths(random, batch, n % 2 ? 60 : 8192), q),
                          added(any_lengths(random, batch, 8192), k), causal_window, 78, true);
    const PlannedLengths alone(alone_call.params), among(call.params);
    check(alone), check(among);
    std::set<std::tuple<int32_t, int, int, int>> parts;
    for (const Planned& entry : alone.entries) parts.insert({entry.q_block, entry.begin, entry.end, entry.parts});
    size_t found = 0;
    for (const Planned& entry : among.entries)
      if (among.place_of(entry).sequence == int32_t(batch))
        found += parts.count({entry.q_block, entry.begin, entry.end, entry.parts});
    CHECK(found == alone.entries.size());
    split += alone.counts.slots > 0;
  }
  CHECK(split > 10);
}

TEST_CASE("whatever numbers the lengths are, lists keep within their bounds", "[lengths]") {
  std::mt19937 random(11);
  const auto any_number = [&] {
    switch (random() % 4) {
      case 0: return int32_t(random());
      case 1: return int32_t(random() % 2) * 20000;
      default: return int32_t(random() % 20000);
    }
  };
  int full = 0, most_split = 0;
  for (int n = 0; n < 200; ++n) {
    const size_t batch = 1 + random() % 20;
    const bool packs = random() % 2, invariant = random() % 2;
    ForwardProblem problem = problem_of({.heads = 4, .heads_kv = 2, .head_dim = 128});
    problem.batch = int64_t(batch), problem.seqlen_q = packs ? 60 : 1 + int64_t(random() % 20000);
    problem.seqlen_k = 1 + int64_t(random() % 20000);
    std::vector<int32_t> numbers[5];
    for (auto& of : numbers)
      for (size_t i = 0; i <= batch; ++i) of.push_back(any_number());
    const auto given = [&](int i) { return random() % 2 ? numbers[i].data() : nullptr; };
    // Every other sequence is all of the tensor.
    if (n % 4 == 0)
      for (size_t i = 0; i <= batch; ++i) numbers[0][i] = numbers[1][i] = int32_t(i % 2) * 20000;
    Lengths lengths{given(0), given(1), given(2), given(3), given(4), nullptr, int32_t(batch), int32_t(problem.seqlen_q),
                    int32_t(problem.seqlen_k)};
    if (n % 4 == 0) lengths.cu_q = numbers[0].data(), lengths.cu_k = numbers[1].data();
    const PackedTotals totals{lengths.cu_q ? 20000 : -1, lengths.cu_k ? 20000 : -1};
    PlanLengthsParams params;
    const ForwardRow& row = packs ? packed() : wide();
    REQUIRE(plan_lengths_params(problem, row, 132, lengths, totals, causal_window, invariant, params));
    const PlannedLengths made(params);
    check_bounds(made);
    full += made.counts.entries >= params.most_tiles;
    most_split += invariant && made.counts.slots > 0;
  }
  CHECK((full > 5 && most_split > 5));
}

TEST_CASE("bounds are reached by the lengths that they are for", "[lengths]") {
  const Shape heads{.heads = 4, .heads_kv = 4};
  // Rows of sequences that begin a tile each with a single row of it.
  const PackedCall rows_alone(wide(), heads, {193, 193, 193, 1, 1}, {64, 64, 64, 64, 64}, no_window);
  CHECK(rows_alone.params.most_tiles == 8);
  CHECK(PlannedLengths(rows_alone.params).counts.entries == 8);
  // Two parts of just more than a unit each, which is 2048 keys.
  const PackedCall parts(wide(), heads, {1, 1, 1}, {2049, 2049, 2049}, no_window, 132, true);
  CHECK(parts.params.most_slots == 6);
  CHECK(PlannedLengths(parts.params).counts.slots == 6);
  CHECK((parts.params.most_parts == 32 && PackedCall(packed(), heads, {1}, {1}, no_window).params.most_parts == 127));
  // A head has no slots where heads are more than parts.
  CHECK((most_slots(132, 198) == 2 && most_slots(132, 199) == 0 && most_slots(132, 1) == 396));
  CHECK(most_tiles(3, 1000, -1, 192) == 18);
  CHECK(most_tiles(1000, 1000, 5, 192) == 5);
}

TEST_CASE("the longest keys are split, too", "[lengths]") {
  const PackedCall call(packed(), {.heads = 4, .heads_kv = 1}, {1, 1, 4}, {300'000'000, 130, 500'000'001},
                        causal_window);
  const PlannedLengths made(call.params);
  check(made);
  CHECK((made.counts.slots > 100 && made.counts.slots <= 3 * 132));
}

TEST_CASE("more rows than can be counted are refused", "[lengths]") {
  PlanLengthsParams params;
  const auto takes = [&](int64_t batch, int64_t seqlen_q, int64_t seqlen_k, const PackedTotals& totals) {
    ForwardProblem problem = problem_of({.heads = 4, .heads_kv = 4, .head_dim = 128});
    problem.batch = batch, problem.seqlen_q = seqlen_q, problem.seqlen_k = seqlen_k;
    return plan_lengths_params(problem, wide(), 132, {}, totals, no_window, false, params);
  };
  CHECK(takes(1, most_packed_rows, most_packed_rows, {-1, -1}));
  CHECK_FALSE(takes(1, most_packed_rows + 1, 100, {-1, -1}));
  CHECK_FALSE(takes(1, 100, most_packed_rows + 1, {-1, -1}));
  CHECK_FALSE(takes(2, 100, 100, {most_packed_rows + 1, 200}));
  CHECK_FALSE(takes(2, 100, 100, {200, most_packed_rows + 1}));
  CHECK_FALSE(takes(1 << 20, 1 << 20, 100, {-1, -1}));
  CHECK(takes(1 << 20, 1 << 20, 100, {1 << 22, -1}));
}

}  // namespace fa3::test
