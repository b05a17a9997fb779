// What the library plans at the ends of what it takes: the longest sequences, the most tiles, any number of
// multiprocessors.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "forward/plan/tiles.h"
#include "plans.h"

namespace fa3::test {

TEST_CASE("no more room is taken than for two parts for each multiprocessor", "[plan]") {
  // Cutting the longest tiles would take more.
  const ForwardProblem many_heads =
      problem_of({.batch = 2, .seqlen_q = 1514, .seqlen_k = 3913, .heads = 10, .heads_kv = 10, .head_dim = 64},
                 FA3_MASK_CAUSAL_BOTTOM_RIGHT);
  check(many_heads, row_plan(many_heads, 78), 78);
}

TEST_CASE("the blocks of very long keys are counted in grains", "[plan]") {
  constexpr int64_t most = 65535 * 64;  // keys that the list's 16 bits count in single blocks
  for (const auto& [keys, grain] : {std::pair{most, 1}, {most + 1, 2}, {2 * most, 2}, {2 * most + 1, 3}}) {
    const Shape shape{.batch = 1, .seqlen_q = 1, .seqlen_k = keys, .heads = 1, .heads_kv = 1, .head_dim = 64};
    const ForwardProblem problem = problem_of(shape);
    RowPlan made;
    plan_row(problem, 0, assumed_card(132), made);
    REQUIRE(forward_row(0).Bc == 64);
    CHECK(made.pieces.grain == grain);
    CHECK(is_split(made));
    check(problem, made, 132);
  }
  // With packed heads, as many parts as there may be, and a block more than the grains of all hold.
  const int packed = row_named("fa3_fwdpacked_bf16_d64_full_64x128");
  REQUIRE(packed >= 0);
  const Shape shape{.batch = 1, .seqlen_q = 1, .seqlen_k = 128 * 65537, .heads = 1, .heads_kv = 1, .head_dim = 64};
  const ForwardProblem problem = problem_of(shape);
  RowPlan made;
  Card card = assumed_card(1024);
  card.memory_bytes_per_us *= 2;  // which so many parts can share
  plan_row(problem, packed, card, made);
  CHECK((made.pieces.grain == 2 && made.pieces.entries() == Listed::most_packed_parts));
  check(problem, made, 1024);
}

TEST_CASE("the largest problems are planned without overflow", "[plan]") {
  constexpr int64_t most = INT32_MAX - 1024;
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const int64_t heads : {1, 2, 100, 131, 200}) {
      for (const auto& [seqlen_q, seqlen_k] : {std::pair<int64_t, int64_t>{8, most}, {most, 8}, {most, most}}) {
        const ForwardProblem problem =
            huge({.batch = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .heads = heads, .heads_kv = 1, .head_dim = 8},
                 mask);
        INFO(heads << " heads, " << seqlen_q << " x " << seqlen_k << ", mask " << mask);
        Fit fits;
        if (fit(problem, fits) != FA3_OK) {  // too many tiles
          CHECK(heads * seqlen_q / 256 > INT32_MAX - 70000);
          continue;
        }
        for (int i = 0; i < fits.count; ++i) {
          RowPlan made;
          plan_row(problem, fits.rows[i], assumed_card(132), made);
          check(problem, made, 132);
        }
        if (seqlen_q == 8 && heads == 1 && mask != FA3_MASK_CAUSAL_TOP_LEFT) {
          CHECK(row_plan(problem).pieces.grain > 1);
          CHECK(is_split(row_plan(problem)));
        }
      }
    }
}

TEST_CASE("the workspace keeps the header's bound, whatever the shape and the number of multiprocessors", "[plan]") {
  constexpr int64_t most = INT32_MAX - 1024;
  std::mt19937_64 random(7);
  const auto below = [&](double limit) {  // as often between 1 and 10 as between 10 and 100
    return static_cast<int64_t>(std::pow(limit, std::uniform_real_distribution<>(0, 1)(random)));
  };
  int split = 0, coarse = 0, most_of_all = 0;
  std::vector<int> splitting;  // rows
  for (int i = 0; i < int(forward_rows.size()); ++i)
    if (forward_row(i).has(Trait::splits) && !forward_row(i).has(Trait::planned)) splitting.push_back(i);
  for (int n = 0; n < 30000; ++n) {
    const int i = splitting[random() % splitting.size()];
    const ForwardRow& row = forward_row(i);
    const int multiprocessors = n % 2 ? 132 : static_cast<int>(below(1024.99));
    Shape shape;
    shape.heads_kv = below(200);
    shape.heads = shape.heads_kv * below(130);
    const auto more = static_cast<int64_t>(random() % 3);
    shape.batch = n % 3 ? std::max<int64_t>(1, multiprocessors * below(8) / shape.heads_kv + more) : below(1000);
    shape.seqlen_q = n % 3 ? below(300) : below(1e6);
    // Also about as many keys as the list's 16 bits count in so many blocks each.
    const int64_t grains = int64_t{65535} * row.Bc * (below(8) + 1) + static_cast<int64_t>(random() % 400) - 200;
    shape.seqlen_k = std::min(n % 5 ? below(double(most)) : grains, most);
    const ForwardProblem problem = huge(shape, row.causal() ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE);
    if (!tiles_fit({problem, row})) continue;
    RowPlan made;
    plan_row(problem, i, assumed_card(multiprocessors), made);
    if (!is_split(made)) continue;
    INFO(row.name << " batch " << shape.batch << " heads " << shape.heads << " / " << shape.heads_kv << " q "
                  << shape.seqlen_q << " k " << shape.seqlen_k << " on " << multiprocessors);
    REQUIRE(made.workspace.bytes <= most_workspace(row, multiprocessors));
    REQUIRE(made.slots <= 3 * multiprocessors);
    check(problem, made, multiprocessors);
    ++split, coarse += made.pieces.grain > 1, most_of_all += 10 * made.slots > 29 * multiprocessors;
  }
  CHECK(split > 3000);
  CHECK(coarse > 300);
  CHECK(most_of_all > 30);
  // On 132 multiprocessors, as the header has it.
  for (const ForwardRow& row : forward_rows) CHECK(most_workspace(row, 132) <= 54'000'000);
  fa3_forward_params p = imaginary({.batch = 133, .seqlen_q = 1, .seqlen_k = 4194305, .heads = 128, .heads_kv = 1,
                                    .head_dim = 256});
  size_t bytes = 0;
  REQUIRE(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_OK);
  CHECK((bytes > 50'000'000 && bytes <= 54'000'000));
}

TEST_CASE("the workspace for so many multiprocessors is enough on every card", "[plan]") {
  std::mt19937_64 random(11);
  const auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  int differ = 0, rows_differ = 0, split = 0;
  for (int n = 0; n < 3000; ++n) {
    Shape shape;
    shape.heads_kv = pick({1, 2, 3, 4, 8, 16, 40});
    shape.heads = shape.heads_kv * pick({1, 1, 4, 7, 12});
    shape.batch = pick({1, 2, 3, 5, 6, 9, 12, 17, 30, 100});
    shape.seqlen_q = random() % 4 ? pick({1, 2, 5, 16, 64}) : 1 + int64_t(random() % 3000);
    shape.seqlen_k = 1 + int64_t(random() % (random() % 2 ? 4000 : 100000));
    shape.head_dim = pick({64, 96, 128, 256});
    const ForwardProblem problem = problem_of(shape, static_cast<int32_t>(random() % 3));
    const Fit fits = fit_of(problem);
    const int multiprocessors = static_cast<int>(pick({132, 132, 114, 78, 20, 1}));
    const ForwardPlan assumed = plan(problem, fits, assumed_card(multiprocessors));
    INFO("batch " << shape.batch << " heads " << shape.heads << " / " << shape.heads_kv << " q " << shape.seqlen_q
                  << " k " << shape.seqlen_k << " on " << multiprocessors);
    std::vector<Card> cards;
    for (const NamedCard& known : known_cards) cards.push_back(known.card);
    cards.push_back({1, 100'000, 1 << 20, 500'000, 1});  // and none that there is
    cards.push_back({1, 50'000'000, 1 << 30, 4'000'000, 9});
    cards.push_back({1, 0, 0, 0, 1});
    for (Card card : cards) {
      card.multiprocessors = multiprocessors;
      const ForwardPlan& made = plan(problem, fits, card);
      REQUIRE(made.workspace_bytes == assumed.workspace_bytes);
      REQUIRE(made.forward.workspace.bytes <= made.workspace_bytes);
      check(problem, made.forward, multiprocessors);
      split += is_split(made.forward);
      rows_differ += made.forward.row != assumed.forward.row;
      differ += made.forward.pieces.entries() != assumed.forward.pieces.entries();
    }
  }
  CHECK(split > 3000);
  CHECK(differ > 300);
  CHECK(rows_differ > 300);
}

TEST_CASE("the most and longest tiles take as long as their blocks, on few multiprocessors, too", "[plan]") {
  // Years: eight keys for each of so many heads would be more than the largest number of nanoseconds.
  constexpr int64_t most = INT32_MAX - 1024, all = 1 << 30;
  constexpr double most_us = INT64_MAX / 11e3;  // so many are counted, at least
  const Shape shapes[] = {
      {.batch = 1, .seqlen_q = 1, .seqlen_k = most, .heads = all, .heads_kv = all, .head_dim = 128},
      {.batch = 1, .seqlen_q = 200, .seqlen_k = most, .heads = all / 4, .heads_kv = all / 4, .head_dim = 128},
      {.batch = all / 16, .seqlen_q = 200, .seqlen_k = most, .heads = 8, .heads_kv = 2, .head_dim = 256}};
  int packed = 0, limited = 0;
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const int multiprocessors : {1, 2, 3, 7, 40, 132}) {
        const ForwardProblem problem = huge(shape, mask);
        Fit fits;
        REQUIRE(fit(problem, fits) == FA3_OK);
        for (int i = 0; i < fits.count; ++i) {
          const ForwardRow& row = forward_row(fits.rows[i]);
          packed += row.packs_heads();
          RowPlan made;
          plan_row(problem, fits.rows[i], assumed_card(multiprocessors), made);
          // 4.5 bytes a picosecond, or the products.
          const double tiles = made.tiles.count();
          const double blocks = tiles * most / row.Bc / multiprocessors;
          INFO(row.name << " q " << shape.seqlen_q << " mask " << mask << " on " << multiprocessors);
          for (const double us : {made.predicted_us, made.whole_us})
            CHECK((us > std::min(0.3 * blocks, most_us) && us < 3 * blocks));
          check(problem, made, multiprocessors);
          limited += made.whole_us > most_us;
        }
      }
  CHECK((packed > 0 && limited > 0));
}

TEST_CASE("lengths and tiles that the kernels cannot count are refused", "[plan]") {
  constexpr int64_t most_rows = INT32_MAX - 1024, most_tiles = INT32_MAX - 65536;
  Fit made;
  const auto fits = [&](const Shape& shape) { return fit(huge(shape), made); };
  CHECK(fits({.batch = 1, .seqlen_q = most_rows, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) == FA3_OK);
  CHECK(fits({.batch = 1, .seqlen_q = 1, .seqlen_k = most_rows, .heads = 1, .heads_kv = 1}) == FA3_OK);
  CHECK(fits({.batch = 1, .seqlen_q = most_rows + 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) ==
        FA3_ERROR_UNSUPPORTED);
  CHECK(fits({.batch = 1, .seqlen_q = 1, .seqlen_k = most_rows + 1, .heads = 1, .heads_kv = 1}) ==
        FA3_ERROR_UNSUPPORTED);
  // One tile for each head of each batch entry.
  CHECK(fits({.batch = most_tiles, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) == FA3_OK);
  CHECK(fits({.batch = most_tiles + 1, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) ==
        FA3_ERROR_UNSUPPORTED);
  // A row with larger tiles may hold what a smaller one does not.
  CHECK(fits({.batch = most_tiles / 2, .seqlen_q = 250, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 64}) ==
        FA3_OK);
  CHECK(made.count == 3);  // two, and one for short sequences
  CHECK(
      fits({.batch = most_tiles / 2 + 1, .seqlen_q = 250, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 64}) ==
      FA3_OK);
  CHECK((made.count == 1 && forward_row(made.rows[0]).Br == 256));
}

TEST_CASE("packed heads that make too many rows are refused", "[plan]") {
  constexpr int64_t most = INT32_MAX - 1024;
  const int row = row_named("fa3_fwdpacked_bf16_d128_full_128x128");
  REQUIRE(row >= 0);
  Fit made;
  for (const bool fits : {true, false}) {
    ForwardProblem problem = huge({.batch = 1, .seqlen_q = most / 8 + !fits, .seqlen_k = 1, .heads = 7, .heads_kv = 1});
    problem.kernel = rows[row].name;
    CHECK(fit(problem, made) == (fits ? FA3_OK : FA3_ERROR_UNSUPPORTED));
    problem.kernel = nullptr;
    CHECK(fit(problem, made) == FA3_OK);
  }
  // More heads than rows: other kernels take them.
  const ForwardProblem many = huge({.batch = 1, .seqlen_q = 1, .seqlen_k = 1, .heads = (1 << 30) + 1, .heads_kv = 1});
  REQUIRE(fit(many, made) == FA3_OK);
  for (int i = 0; i < made.count; ++i) CHECK_FALSE(forward_row(made.rows[i]).packs_heads());
}

}  // namespace fa3::test
