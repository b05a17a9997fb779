// The planner for varlen sequences (ptx/plan/plan_forward.h): its lists against what the lengths say.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <map>
#include <set>

#include "planned_lengths.h"

namespace fa3::test {
namespace {

constexpr Shape few_heads{.heads = 3, .heads_kv = 3}, packed_heads{.heads = 8, .heads_kv = 2};

}  // namespace

TEST_CASE("lists hold every block of every tile once", "[lengths]") {
  std::mt19937 random(5);
  int split = 0, whole = 0, many = 0, tails = 0, at_once = 0;
  for (int n = 0; n < 300; ++n) {
    const bool packs = random() % 2, is_invariant = random() % 3 == 0;
    const size_t batch = 1 + random() % 40;
    const auto q = any_lengths(random, batch, packs ? 60 : 8192);
    auto k = any_lengths(random, batch, 8192);
    if (random() % 2) k[0] = 100000;  // one that must be split
    const Window windows[] = {no_window,      causal_window,    {-1, 0, false},
                              {300, 0, true}, {100, 100, true}, {-1, 5000, true}};
    const int64_t chunk = random() % 4 ? 0 : int64_t(1 + random() % 3000);
    const Window& window = windows[random() % (chunk ? 2 : 6)];
    const Shape heads{.heads = 8 * (1 << random() % 5), .heads_kv = packs ? 2 << random() % 3 : 8};
    const PackedCall call(packs ? packed() : wide(), packs ? heads : few_heads, q, k, window,
                          {.multiprocessors = random() % 2 ? 132 : 7, .batch_invariant = is_invariant, .chunk = chunk});
    const PlannedLengths made(call.params);
    check(made);
    (made.counts.slots > 0 ? split : whole)++;
    many += made.sorted_entries < made.entries.size(), tails += made.tail_entries > 0;
    at_once += int64_t(made.entries.size()) * call.params.heads <= call.params.multiprocessors;
    if (n % 4 == 0) {
      const PlannedLengths shuffled(call.params, Shuffled());
      check(shuffled);
      CHECK((shuffled.counts.entries == made.counts.entries && shuffled.counts.slots == made.counts.slots));
      CHECK((shuffled.unit == made.unit && shuffled.tail_entries == made.tail_entries));
    }
  }
  CHECK((split > 60 && whole > 30 && many > 30 && at_once > 20));
  CAPTURE(tails);
}

TEST_CASE("more sequences than shared memory holds are kept in the plan", "[lengths]") {
  std::mt19937 random(6);
  const size_t batch = PlanScratch::most_sequences + 1;
  for (const uint32_t most_q : {2u, 20u}) {  // 8 rows each: one tile of 64 rows, or up to three
    std::vector<int32_t> q(batch), k(batch);
    for (size_t b = 0; b < batch; ++b) q[b] = int32_t(random() % (most_q + 1)), k[b] = int32_t(random() % 300);
    k[77] = 200000, q[77] = 1;
    const PackedCall call(packed(), {.heads = 8, .heads_kv = 1}, q, k, causal_window);
    CHECK(plan_at(nullptr, call.params).sequences != nullptr);
    const PlannedLengths made(call.params);
    check(made);
    CHECK((made.counts.slots > 0 && made.sorted_entries > 0));
    CHECK((most_q == 2 ? made.sorted_entries == made.entries.size() : made.sorted_entries < 500));
  }
}

// Then no tiles share K and V, and what counts is that all are done at about the same time.
TEST_CASE("where sequences have one tile each, lists are from the longest to the shortest", "[lengths]") {
  std::mt19937 random(12);
  size_t without_rows = 0, with_tail = 0;
  for (int n = 0; n < 40; ++n) {
    const size_t batch = n % 4 ? 1 + random() % 700 : 17 + random() % 60;
    auto k = any_lengths(random, batch, 8192);
    std::vector<int32_t> q(batch, 1);
    if (n % 4 == 0) std::fill(k.begin(), k.end(), 20000);
    for (size_t b = 0; b < batch && n % 2; ++b)
      if (random() % 5 == 0) q[b] = 0, ++without_rows;
    const PackedCall call(packed(), {.heads = 32, .heads_kv = 8}, q, k, causal_window);
    const PlannedLengths made(call.params);
    check(made);
    if (made.tail_entries > 0) ++with_tail;
    else CHECK(made.sorted_entries == made.entries.size());
  }
  CHECK((without_rows > 100 && with_tail > 1));
}

// Which tiles are split is the same in every run, as results depend on it.
TEST_CASE("the tail is of the last tiles, whatever the order of rounds", "[lengths]") {
  for (const bool all_have_rows : {true, false}) {
    std::vector<int32_t> q(all_have_rows ? 17 : 24, 1);
    for (size_t b = 1; b < q.size() && !all_have_rows; b += 4) q[b] = 0;
    q.back() = q[q.size() - 2] = 1;
    const PackedCall call(packed(), {.heads = 32, .heads_kv = 8}, q, std::vector<int32_t>(q.size(), 20000), no_window);
    const PlannedLengths made(call.params), shuffled(call.params, Shuffled());
    for (const PlannedLengths* each : {&made, &shuffled}) {
      check(*each);
      REQUIRE(each->tail_entries > 0);
      const int32_t first = int32_t(q.size()) - each->tail_entries / each->entries.back().parts;
      for (const PlannedPiece& entry : each->entries)
        CHECK((entry.parts > 1) == (each->place_of(entry).sequence >= first));
    }
  }
}

TEST_CASE("tiles of a section stand together, the last of each sequence first", "[lengths]") {
  struct Case {
    int32_t batch, length, shift, last;  // as sections are to be
    bool many;
  };
  // 3.6, 5.1 and 10.9 pieces for each multiprocessor; few keys, very few and more.
  for (const Case& c : {Case{10, 512, 2, 6, false}, Case{14, 512, 0, 6, true}, Case{30, 512, 0, 6, true},
                        Case{60, 384, 3, 9, true}, Case{16, 2048, 1, 2, true}, Case{16, 1984, 0, 2, true}}) {
    CAPTURE(c.batch, c.length);
    const std::vector<int32_t> lengths(size_t(c.batch), c.length);
    const PackedCall call(wide(), {.heads = 16, .heads_kv = 16}, lengths, lengths, causal_window);
    const PlannedLengths made(call.params);
    check(made);
    const int32_t tiles = (c.length + 191) / 192;  // of a sequence
    REQUIRE((made.sections.shift == c.shift && made.sections.last == c.last && made.many == c.many));
    REQUIRE(made.entries.size() == size_t(tiles * c.batch));
    CHECK((made.sorted_entries == made.entries.size()) == !c.many);
    if (!c.many) continue;
    size_t n = 0;
    for (int32_t first = 0, end; first < c.batch; first = end) {
      end = first + (1 << c.shift);
      end = first < c.batch - c.last ? std::min(end, c.batch - c.last) : c.batch;
      for (int32_t rank = 0; rank < tiles; ++rank)
        for (int32_t sequence = first; sequence < end; ++sequence) {
          const auto place = made.place_of(made.entries[n++]);
          CHECK((place.sequence == sequence && place.rows.end == c.length - 192 * rank));
        }
    }
  }
}

TEST_CASE("sequences without rows have no pieces, those without keys one block", "[lengths]") {
  const PlannedLengths made(PackedCall(wide(), {.heads = 2, .heads_kv = 2}, {0, 200, 0, 300, 0}, {70, 0, 0, 90, 0},
                                       causal_window).params);
  check(made);
  REQUIRE(made.counts.entries == 2 + 2);  // 192 rows are a tile
  for (const PlannedPiece& entry : made.entries) {
    const int32_t sequence = made.place_of(entry).sequence;
    CHECK((sequence == 1 || sequence == 3));
    if (sequence == 1) CHECK((entry.begin == 0 && entry.end == 1 && entry.parts == 1));
  }
  const PlannedLengths none(PackedCall(wide(), {}, {0, 0}, {5, 0}, no_window).params);
  check(none);
  CHECK(none.counts.entries == 0);
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

TEST_CASE("whatever numbers the lengths are, lists keep within their bounds", "[lengths]") {
  std::mt19937 random(11);
  const auto any_number = [&] {
    switch (random() % 4) {
      case 0: return int32_t(random());
      case 1: return int32_t(random() % 2) * 20000;
      default: return int32_t(random() % 20000);
    }
  };
  int full = 0, most_split = 0, with_slots = 0, no_more_slots = 0;
  for (int n = 0; n < 400; ++n) {
    const size_t batch = 1 + random() % 20;
    const bool packs = random() % 2, invariant = random() % 2;
    ForwardProblem problem = problem_of({.heads = 4, .heads_kv = 2, .head_dim = 128});
    problem.batch = int64_t(batch), problem.seqlen_q = packs ? 60 : 1 + int64_t(random() % 20000);
    problem.seqlen_k = 1 + int64_t(random() % 20000);
    problem.chunk = random() % 4 ? 0 : int64_t(1 + random() % 5000);
    std::vector<int32_t> numbers[6];
    for (auto& of : numbers)
      for (size_t i = 0; i <= batch; ++i) of.push_back(any_number());
    const auto given = [&](int i) { return random() % 2 ? numbers[i].data() : nullptr; };
    // Every other sequence is all of the tensor.
    if (n % 4 == 0)
      for (size_t i = 0; i <= batch; ++i) numbers[0][i] = numbers[1][i] = int32_t(i % 2) * 20000;
    Lengths lengths{given(0), given(1), given(2), given(3), given(4), given(5), int32_t(batch),
                    int32_t(problem.seqlen_q), int32_t(problem.seqlen_k), 5};
    if (n % 4 == 0) lengths.cu_q = numbers[0].data(), lengths.cu_k = numbers[1].data();
    if (lengths.cu_k) lengths.batch_k = nullptr;
    problem.total_q = lengths.cu_q ? 20000 : -1, problem.total_k = lengths.cu_k ? 20000 : -1;
    PlanForwardParams params;
    const ForwardRow& row = packs ? packed() : wide();
    const int multiprocessors = random() % 2 ? 132 : 5;
    problem.lengths = lengths, problem.window = causal_window, problem.batch_invariant = invariant;
    REQUIRE(plan_forward_params({problem, row}, multiprocessors, params));
    const PlannedLengths made(params);
    check_bounds(made);
    full += made.counts.entries >= params.most_tiles;
    most_split += invariant && made.counts.slots > 0, with_slots += made.counts.slots > 0;
    no_more_slots += made.counts.slots > 0 && made.counts.slots == params.most_slots;
  }
  CAPTURE(full, most_split, with_slots, no_more_slots);
  CHECK((full > 5 && most_split > 5 && with_slots > 50 && no_more_slots > 3));
}

TEST_CASE("overlapping sequences of one row each have no more entries than tensors have rows", "[lengths]") {
  std::vector<int32_t> cu_q, cu_k;
  for (int32_t i = 0; i <= 40; ++i) cu_q.push_back(i % 2 * 5), cu_k.push_back(i % 2 * 5000);
  ForwardProblem problem = problem_of({.heads = 4, .heads_kv = 2, .head_dim = 128});
  problem.batch = 40, problem.seqlen_q = 1, problem.seqlen_k = 5000, problem.total_q = 5, problem.total_k = 5000;
  problem.lengths = {cu_q.data(), cu_k.data(), nullptr, nullptr, nullptr, nullptr, 40, 1, 5000};
  problem.window = causal_window;
  PlanForwardParams params;
  REQUIRE(plan_forward_params({problem, packed()}, 5, params));
  const PlannedLengths made(params);
  check_bounds(made);
  CHECK((params.most_tiles < 20 && made.counts.entries >= params.most_tiles));  // of 20 sequences
}

TEST_CASE("bounds are reached by the lengths that they are for", "[lengths]") {
  const Shape heads{.heads = 4, .heads_kv = 4};
  // Rows of sequences that begin a tile each with a single row of it.
  const PackedCall rows_alone(wide(), heads, {193, 193, 193, 1, 1}, {64, 64, 64, 64, 64}, no_window);
  CHECK(rows_alone.params.most_tiles == 8);
  CHECK(PlannedLengths(rows_alone.params).counts.entries == 8);
  // Two parts of just more than a constant unit each, which is 4096 keys.
  const PackedCall parts(wide(), heads, {1, 1, 1}, {4097, 4097, 4097}, no_window, 132, true);
  CHECK(parts.params.most_slots == 6);
  CHECK(PlannedLengths(parts.params).counts.slots == 6);
  // Rows are cut so that those of a tile see the same units: 193 more are a tile for each row, at worst.
  const PackedCall cut(wide(), heads, {194}, {4097}, causal_window, 132, true);
  CHECK((cut.params.cuts.each == 2 && cut.params.most_tiles == 3));
  CHECK(PlannedLengths(cut.params).counts.entries == 2 + 2);
  CHECK((parts.params.most_parts == 32 && PackedCall(packed(), heads, {1}, {1}, no_window).params.most_parts == 127));
  // Of all sequences together, however long one may be; of a window that lies in two units; of one unit.
  const PackedCall by_total(wide(), heads, {1, 1, 1}, {4097, 4097, 4097}, no_window,
                            {.batch_invariant = true, .most_k = 1 << 20});
  CHECK(by_total.params.most_slots == 6);
  CHECK(PlannedLengths(by_total.params).counts.slots == 6);
  const PackedCall by_window(wide(), heads, {1}, {100'000}, {1000, 0, true}, {.batch_invariant = true});
  CHECK((by_window.params.most_slots == 2 && PlannedLengths(by_window.params).counts.slots == 0));
  const PackedCall two_units(wide(), heads, {1}, {24 * 4096 + 2}, {1000, 0, true}, {.batch_invariant = true});
  CHECK((two_units.params.most_slots == 2 && PlannedLengths(two_units.params).counts.slots == 2));
  CHECK(PackedCall(wide(), heads, {4096}, {4096}, no_window, {.batch_invariant = true}).params.most_slots == 0);
  // Under a causal mask the first rows see fewer units: tiles of 4096 rows have none, as many two parts, as many three.
  for (const auto& [units, slots] : {std::pair{1, 0}, {2, 22 * 2}, {3, 22 * 5}, {35, 22 * 623}}) {
    const int32_t rows = units * 4096;
    const PackedCall causal(wide(), heads, {rows}, {rows}, causal_window, {.batch_invariant = true});
    CHECK(causal.params.most_slots == slots);
    CHECK(PlannedLengths(causal.params).counts.slots == slots);
  }
  // A head has no slots where heads are more than parts.
  const auto slots_of = [](int64_t heads, int64_t tiles = 1000, int64_t blocks = 1000, int64_t most_parts = 32) {
    return most_slots(132, heads, tiles, blocks, 2, most_parts);
  };
  CHECK((slots_of(198) == 2 && slots_of(199) == 0 && slots_of(1) == 396 && slots_of(1, 3, 1000, 1) == 0));
  // Nor where a tile's blocks are less than two parts; and not more than parts of four blocks.
  CHECK((slots_of(1, 10, 7) == 0 && slots_of(1, 10, 8) == 20 && slots_of(1, 10, 9) == 30 && slots_of(1, 10) == 320));
  CHECK((PackedCall(wide(), heads, {1}, {64 * 7}, no_window).params.most_slots == 0));
  CHECK((PackedCall(wide(), heads, {200}, {1 << 20}, {200, 100, true}).params.most_slots == 2 * 3));
  CHECK((PackedCall(wide(), heads, {1}, {1 << 20}, causal_window, {.chunk = 64 * 8 + 1}).params.most_slots == 3));
  // Sums over all sequences of what each may add are counted in int32.
  for (const size_t sequences : {1, 2, 3, 1000, 4097}) {
    const std::vector<int32_t> lengths(sequences, 1);
    const int64_t each = PackedCall(wide(), heads, lengths, lengths, no_window).params.most_each;
    CHECK((each * int64_t(sequences) <= INT32_MAX && (each + 1) * int64_t(sequences) > INT32_MAX));
  }
  CHECK(most_tiles(3, 1000, -1, 192) == 18);
  CHECK(most_tiles(1000, 1000, 5, 192) == 5);
  CHECK((most_tiles(2, 1000, -1, 192, 3) == 2 * 8 && most_tiles(2, 2, -1, 192, 3) == 4));
}

TEST_CASE("more rows than can be counted are refused", "[lengths]") {
  PlanForwardParams params;
  const auto takes = [&](int64_t batch, int64_t seqlen_q, int64_t seqlen_k, const std::pair<int64_t, int64_t>& totals,
                         int64_t chunk = 0, bool batch_invariant = false) {
    ForwardProblem problem = problem_of({.heads = 4, .heads_kv = 4, .head_dim = 128});
    problem.batch = batch, problem.seqlen_q = seqlen_q, problem.seqlen_k = seqlen_k, problem.chunk = chunk;
    problem.total_q = totals.first, problem.total_k = totals.second, problem.window = no_window;
    problem.batch_invariant = batch_invariant;
    return plan_forward_params({problem, wide()}, 132, params);
  };
  CHECK(takes(1, most_packed_rows, most_packed_rows, {-1, -1}));
  CHECK_FALSE(takes(1, most_packed_rows + 1, 100, {-1, -1}));
  CHECK_FALSE(takes(1, 100, most_packed_rows + 1, {-1, -1}));
  CHECK_FALSE(takes(2, 100, 100, {most_packed_rows + 1, 200}));
  CHECK_FALSE(takes(2, 100, 100, {200, most_packed_rows + 1}));
  CHECK_FALSE(takes(1 << 20, 1 << 20, 100, {-1, -1}));
  CHECK(takes(1 << 20, 1 << 20, 100, {1 << 22, -1}));
  CHECK_FALSE(takes(1 << 11, 1 << 20, 1 << 20, {1 << 22, -1}, 1));  // a Sequence for each position
  // More sequences than can be numbered, also of few rows.
  constexpr int64_t most_sequences = INT32_MAX - 65536;
  CHECK((takes(most_sequences, 1, 100, {4, -1}) && !takes(most_sequences + 1, 1, 100, {4, -1})));
  CHECK((takes(most_sequences / 4, 100, 100, {4, -1}, 34) && !takes(most_sequences / 4 + 1, 100, 100, {4, -1}, 34)));
  // Rows of slots: 32 for each tile of each head.
  const int64_t tiles = INT32_MAX / (192 * 4 * 32);
  CHECK(takes(1, tiles * 192, 1 << 20, {-1, -1}, 0, true));
  CHECK_FALSE(takes(1, (tiles + 1) * 192, 1 << 20, {-1, -1}, 0, true));
  CHECK(takes(1, (tiles + 1) * 192, 1 << 20, {-1, -1}));
}

}  // namespace fa3::test
