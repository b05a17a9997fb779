// How long pieces and plans are predicted to take (src/forward/plan/cost.h), against a naive simulation of the machine.
#include <catch2/catch_test_macros.hpp>
#include <catch2/catch_approx.hpp>
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "forward/plan/cost.h"
#include "plans.h"

namespace fa3::test {
namespace {

// The multiprocessors of a naive simulation.
class Machine {
 public:
  explicit Machine(int multiprocessors) : free_(size_t(multiprocessors), 0) {}
  void add(int64_t time) {  // to the first that is free
    std::pop_heap(free_.begin(), free_.end(), std::greater());
    total_ += time, longest_ = std::max(longest_, time);
    end_ = std::max(end_, free_.back() += time);
    std::push_heap(free_.begin(), free_.end(), std::greater());
  }
  int64_t end() const { return end_; }
  int64_t longest() const { return longest_; }
  double average() const { return double(total_) / double(free_.size()); }

 private:
  std::vector<int64_t> free_;
  int64_t end_ = 0, longest_ = 0, total_ = 0;
};

// Costs on a row of tiles with so few query rows, and so many blocks at most, for so many multiprocessors.
RowCosts costs_of(const ForwardProblem& problem, const RowPlan& made, int64_t longest, int multiprocessors) {
  const ForwardRow& row = forward_row(made.row);
  RowCosts costs = fa3::costs_of(row);
  const bool is_short = longest * row.Bc < 1024;
  const int64_t warpgroups = std::min<int64_t>((problem.seqlen_q + 63) / 64, row.warpgroups());
  for (Costs* c : {&costs.together, &costs.behind})
    if (warpgroups < row.warpgroups() && (!is_short || c == &costs.behind))
      c->block = int32_t(block_time(row, c->block, warpgroups));
  if (is_short && made.tiles.count() > 4 * multiprocessors) costs.behind.piece = costs.among;
  return costs;
}

}  // namespace

TEST_CASE("times are predicted from what the multiprocessors do", "[cost]") {
  std::mt19937_64 random(8);
  const auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  int split = 0, shared = 0, one_wave = 0, ragged = 0, many = 0, among = 0, mixed = 0;
  for (int n = 0; n < 3000; ++n) {
    const int multiprocessors = int(pick({132, 132, 78, 16, 5}));
    Shape shape = square(pick({1, 1, 2}), 65 + int64_t(random() % 6000), 1, pick({64, 128, 256}));
    if (random() % 3 == 0) shape.seqlen_k = 64 + int64_t(random() % 20000);
    shape.heads = shape.heads_kv = 1 + int64_t(random() % (random() % 4 ? 12 : 150));
    const int32_t mask = int32_t(random() % 3);
    const ForwardProblem problem = problem_of(shape, mask);
    Fit fits = fit_of(problem);
    // Not those that are taken for what was measured, whatever is predicted.
    const auto is_left_out = [](int row) {
      return forward_row(row).packs_heads() || forward_row(row).has(Trait::one_tile);
    };
    fits.count = int(std::remove_if(fits.rows, fits.rows + fits.count, is_left_out) - fits.rows);
    RowPlan made;
    plan_row(problem, fits.rows[random() % size_t(fits.count)], assumed_card(multiprocessors), made);
    const ForwardRow& row = forward_row(made.row);
    const int32_t tiles = made.tiles.count();
    int64_t longest = 0;
    for (int32_t tile = 0; tile < tiles; ++tile)
      longest = std::max<int64_t>(longest, unfold(problem, made, tile).blocks);
    const RowCosts row_costs = costs_of(problem, made, longest, multiprocessors);
    among += row_costs.behind.piece != fa3::costs_of(row).behind.piece;
    INFO(row.name << " batch " << shape.batch << " heads " << shape.heads << " q " << shape.seqlen_q << " k "
                  << shape.seqlen_k << " mask " << mask << " on " << multiprocessors << ", " << tiles << " tiles");
    const auto us = [](int64_t ns) { return double(launch_time + ns) / 1e3; };

    const Costs& costs = tiles <= multiprocessors ? row_costs.together : row_costs.behind;
    Machine machine(multiprocessors);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const Unfolded it = unfold(problem, made, tile);
      const int64_t rows_left = problem.seqlen_q - it.first_row, warpgroups = (rows_left + 63) / 64;
      const bool is_ragged = !problem.causal && made.tiles.q_blocks > 1 && warpgroups < row.warpgroups();
      machine.add(is_ragged ? block_time(row, costs.whole(it.blocks), warpgroups) : costs.whole(it.blocks));
      ragged += is_ragged;
    }
    if (problem.causal && tiles < 4 * multiprocessors) CHECK(made.whole_us == us(machine.end()));
    else {  // estimated, within what any order of the tiles takes
      const auto least = int64_t(machine.average() * (problem.causal ? 0.6 : 1));
      CHECK(made.whole_us >= us(std::max(least, machine.longest())) - 0.001);
      CHECK(made.whole_us <= us(int64_t(machine.average() * (problem.causal ? 1.4 : 1)) + machine.longest()) + 0.001);
      many += problem.causal;
    }
    if (problem.causal && !is_split(made) && made.pieces.listed > 0 && tiles <= 16 * multiprocessors) {
      // Mixed lengths, whose last ones balance: as long as if all came from the longest to the shortest.
      std::vector<int64_t> lengths;
      for (int32_t tile = 0; tile < tiles; ++tile) lengths.push_back(unfold(problem, made, tile).blocks);
      std::sort(lengths.begin(), lengths.end(), std::greater());
      Machine sorted(multiprocessors);
      for (const int64_t blocks : lengths) sorted.add(costs.whole(blocks));
      CHECK(made.whole_us == us(sorted.end()));
      ++mixed;
    }
    if (!is_split(made)) {
      CHECK(made.predicted_us == made.whole_us);
    } else {
      // Whole waves, then the list.
      const int32_t waves = made.pieces.whole_tiles / multiprocessors;
      REQUIRE((made.pieces.whole_tiles % multiprocessors == 0 && (waves == 0 || !problem.causal)));
      const Costs& listed = waves == 0 ? row_costs.together : row_costs.behind;
      Machine last(multiprocessors);
      std::vector<Work> works;
      for (int i = 0; i < made.pieces.listed; ++i) {
        const int32_t tile = made.pieces.whole_tiles + int32_t(made.list[i].tile);
        works.push_back(made.pieces.work(made.list[i], 0, unfold(problem, made, tile).blocks));
        last.add(listed.time(works.back()));
      }
      const int64_t start = waves ? waves * listed.whole(unfold(problem, made, 0).blocks) : 0;
      CHECK(made.predicted_us == us(start + last.end()));
      ++split;
      // Equal shares of several tiles come with the longest pieces first.
      const auto length = [](const Work& work) { return work.end - work.begin; };
      const auto first = std::find_if(works.begin(), works.end(), [](const Work& work) { return work.part == 0; });
      const bool shares = !problem.causal && std::any_of(first, works.end(), [&](const Work& work) {
        return work.part == 0 && length(work) != length(*first);
      });
      const auto longer = [&](const Work& a, const Work& b) { return length(a) > length(b); };
      if (shares) CHECK(std::is_sorted(works.begin(), works.end(), longer));
      shared += shares;
      // Shorter parts would not be worth their boundaries.
      if (!shares)
        for (const Work& work : works) CHECK((work.parts == 1 || work.part > 0 || length(work) >= 4));
    }
    // Of the ways to cut the tiles of a single wave into equal parts, none is better.
    if (problem.causal || tiles >= multiprocessors || !row.has(Trait::splits)) continue;
    const int64_t blocks = unfold(problem, made, 0).blocks;
    for (int64_t parts = 2; parts <= std::min<int64_t>({32, multiprocessors / tiles, blocks / 4}); ++parts) {
      const int64_t unit = (blocks + parts - 1) / parts, count = (blocks + unit - 1) / unit;
      const double time = us(row_costs.together.part(unit) + row_costs.together.read_all(count));
      if (time < 0.98 * made.whole_us && time < made.whole_us - 1.01) CHECK(made.predicted_us <= time);
      ++one_wave;
    }
  }
  CHECK(split > 300);
  CHECK(shared > 30);
  CHECK(one_wave > 200);
  CHECK(ragged > 1000);
  CHECK(many > 30);
  CHECK(among > 30);
  CHECK(mixed > 50);
}

TEST_CASE("a rough prediction changes no plan", "[cost]") {
  std::mt19937_64 random(12);
  int rough = 0, split = 0;
  for (int n = 0; n < 1000; ++n) {
    const int64_t heads = 1 + int64_t(random() % 40), head_dim = 64 << random() % 3;
    const ForwardProblem problem = problem_of(square(1, 64 + int64_t(random() % 12000), heads, head_dim),
                                              random() % 4 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE);
    const Fit fits = fit_of(problem);
    const int row = fits.rows[random() % size_t(fits.count)];
    RowPlan exact, other;
    plan_row(problem, row, assumed_card(132), exact);
    plan_row(problem, row, assumed_card(132), other, no_limit_us, true);
    INFO(rows[row].name << " heads " << heads << " seqlen " << problem.seqlen_q);
    CHECK((other.tiles.count() == exact.tiles.count() && other.slots == exact.slots));
    CHECK((other.pieces.whole_tiles == exact.pieces.whole_tiles && other.pieces.listed == exact.pieces.listed));
    CHECK(other.workspace.bytes == exact.workspace.bytes);
    const auto bytes = size_t(exact.pieces.entries()) * sizeof(Listed);
    CHECK(std::memcmp(other.list, exact.list, bytes) == 0);
    const bool is_rough = other.predicted_us != exact.predicted_us;
    if (is_rough) CHECK((problem.causal && exact.slots == 0 && exact.tiles.count() > 2 * 132));
    rough += is_rough, split += exact.slots > 0;
  }
  CHECK((rough > 50 && split > 50));
}

TEST_CASE("the tiles of a wave that is just full start together", "[cost]") {
  const int row = row_named("fa3_fwd_bf16_d128_full_192x64");
  REQUIRE(row >= 0);
  RowPlan made;
  plan_row(problem_of({.batch = 1, .seqlen_q = 192, .seqlen_k = 4096, .heads = 132, .heads_kv = 132, .head_dim = 128}),
           row, assumed_card(132), made);
  CHECK(made.whole_us == double(launch_time + fa3::costs_of(forward_row(row)).together.whole(64)) / 1e3);
}

TEST_CASE("among many tiles a single consumer takes longer for more rows", "[cost]") {
  const int row = row_named("fa3_fwdpacked_bf16_d64_full_64x128");
  REQUIRE(row >= 0);
  const auto us = [&](int64_t seqlen) {
    RowPlan made;
    plan_row(problem_of(square(132, seqlen, 10, 64)), row, assumed_card(132), made);
    return made.whole_us;
  };
  CHECK(us(34) - us(14) == Catch::Approx(10 * 20 * 0.006).margin(0.02));  // ten waves
}

TEST_CASE("the simulation gives each piece to the first multiprocessor that is free", "[cost]") {
  std::mt19937_64 random(3);
  for (int n = 0; n < 500; ++n) {
    const int multiprocessors = 1 + int(random() % 20);
    Simulation simulation(multiprocessors);
    std::vector<int64_t> free(size_t(multiprocessors), 0);
    for (int run = 0; run < 1 + int(random() % 30); ++run) {
      const int64_t time = 1 + int64_t(random() % 9), count = 1 + int64_t(random() % 50);
      simulation.add(time, count);
      for (int64_t i = 0; i < count; ++i) *std::min_element(free.begin(), free.end()) += time;
    }
    REQUIRE(simulation.end() == *std::max_element(free.begin(), free.end()));
  }
  // As many times as multiprocessors.
  Simulation simulation(Simulation::most_multiprocessors);
  Machine machine(Simulation::most_multiprocessors);
  for (int n = 0; n < 3 * Simulation::most_multiprocessors; ++n) {
    simulation.add(1000000 + n * n, 1), machine.add(1000000 + n * n);
    REQUIRE(simulation.end() == machine.end());
  }
}

TEST_CASE("single pieces are simulated in the same way", "[cost]") {
  std::mt19937_64 random(4);
  for (int n = 0; n < 500; ++n) {
    const int multiprocessors = 1 + int(random() % 200);
    Machine machine(multiprocessors);
    SingleSimulation simulation(multiprocessors);
    for (size_t left = random() % 400; left > 0; --left) {
      const int64_t time = 1 + int64_t(random() % 1000), pieces = 1 + int64_t(random() % 2);
      simulation.add(time, pieces);
      for (int64_t i = 0; i < pieces; ++i) machine.add(time);
    }
    REQUIRE(simulation.end() == machine.end());
  }
  // The longest that there may be, on as many multiprocessors as there may be.
  SingleSimulation simulation(Simulation::most_multiprocessors);
  const int64_t longest = int64_t{1} << 52;
  simulation.add(longest, 3 * Simulation::most_multiprocessors);
  CHECK(simulation.end() == 3 * longest);
}

TEST_CASE("tiles with fewer rows take less time", "[cost]") {
  const auto time = [](int warpgroups, int with_rows) {
    ForwardRow row = forward_row(0);
    row.Br = 64 * warpgroups;
    return block_time(row, 1200, with_rows);
  };
  for (const int all : {2, 3, 4}) {
    CHECK(time(all, all) == 1200);
    for (int some = 2; some < all; ++some) CHECK(time(all, some) == 1200 * some / all);
  }
  // One that is alone takes half as long again, and at least half of the time of all.
  CHECK((time(2, 1) == 900 && time(3, 1) == 600 && time(4, 1) == 600));
}

TEST_CASE("every row that the library chooses has costs that rank it sensibly", "[cost]") {
  CHECK((launch_time > 2000 && launch_time < 8000));
  for (const ForwardRow& row : forward_rows) {
    if (!row.has(Trait::chosen)) continue;
    const RowCosts costs = fa3::costs_of(row);
    INFO(row.name);
    // Two products at the machine's 4096 FLOP per clock (8192 in e4m3) and 1.98 GHz take at least this; three times
    // that would be slow, in e4m3, where exponentials and additions take no less time than in 16 bits, five times. With
    // packed heads there may be one consumer, which waits for its own exponentials: four times. What scores are changed
    // by comes on top. For few rows what each warp does beside its products takes most of the time.
    const int columns = row.d + row.dv + (row.has(Trait::qv) ? row.dv : 0);
    const int rows = row.most_rows() / row.cluster_blocks();
    const double least = 2.0 * rows * row.Bc * columns / (8192.0 / row.element_bytes() * 1.98);
    for (const Costs& c : {costs.together, costs.behind}) {
      const double plain = row.has(Trait::few_rows) ? 8 : row.is_8bit() ? 5 : row.packs_heads() ? 4 : 3;
      const double most = plain * (row.transforms_scores() ? 1.4 : 1);
      CHECK((c.block > least && c.block < most * least));
      // What is widened first takes longer with each block, and no longer with the piece.
      CHECK((c.piece > (row.is_latent() ? 0.4 : 0.7) * c.block && c.piece < 4.5 * c.block));
      if (row.has(Trait::splits)) CHECK((c.write > 0 && c.read > 400 && c.read < 2500));
    }
    // Behind other pieces, ends are hidden; before others, beginnings too.
    CHECK((costs.among > 600 && costs.among <= costs.behind.piece));
    CHECK(costs.behind.block == costs.together.block);
    if (!row.has(Trait::splits)) continue;
    // Those of e4m3 are not measured, but computed from the block's.
    CHECK((costs.together.write > (row.is_8bit() ? 1000 : 1500) && costs.together.write < 6000));
    CHECK(costs.behind.write <= costs.together.write);
  }
}

TEST_CASE("rows with a window have the costs of causal ones", "[cost]") {
  int windows = 0;
  for (const ForwardRow& row : forward_rows) {
    if (row.mask != Mask::window) continue;
    ForwardRow causal = row;
    causal.mask = Mask::causal;
    const RowCosts costs = fa3::costs_of(row), causal_costs = fa3::costs_of(causal);
    INFO(row.name);
    CHECK((costs.together.block == causal_costs.together.block && costs.together.piece == causal_costs.together.piece));
    CHECK((costs.behind.write == causal_costs.behind.write && costs.behind.read == causal_costs.behind.read));
    CHECK(costs.among == causal_costs.among);
    ++windows;
  }
  CHECK(windows > 0);
}

TEST_CASE("blocks take at least as long as memory", "[cost]") {
  // On an H200 all multiprocessors have 4513 bytes a nanosecond, or 6000 of what the L2 cache may hold; one has 60, or
  // 76 with two consumers.
  constexpr Card h200 = assumed_card(132);
  constexpr int64_t many = 40 << 20;
  for (const bool takes_turns : {false, true}) {
    const MemoryRates cached = rates_of(h200, many, takes_turns), memory = rates_of(h200, many + 1, takes_turns);
    for (const int64_t busy : {132, 125}) {
      CHECK(cached.time(65536, busy) == 65536 * busy / 6000);
      CHECK(memory.time(65536, busy) == 65536 * busy / 4513);
    }
    const int64_t block_time = takes_turns ? 76 : 60;
    CHECK((cached.time(65536, 1) == 65536 / block_time && memory.time(65536, 56) == 65536 / block_time));
  }
  // Decoding, as long as K and V take, and a little more: 134 MB in 512 whole tiles, or 34 MB in 8 that are split.
  for (const int64_t batch : {64, 1}) {
    const Shape shape{.batch = batch, .seqlen_q = 1, .seqlen_k = 8192, .heads = 32, .heads_kv = 8, .head_dim = 128};
    const double bytes = double(batch) * 8192 * 8 * 128 * 2 * 2, us = bytes / (batch == 1 ? 6000e3 : 4500e3);
    const RowPlan& made = row_plan(problem_of(shape));
    INFO("batch " << batch);
    CHECK((made.predicted_us > us + 4 && made.predicted_us < 1.05 * us + 12));
  }
}

TEST_CASE("what cards serve and compute", "[cost]") {
  // 15/16 of what data sheets promise (TB/s), and a cache of which two thirds count.
  const struct {
    const char* name;
    double terabytes;
    int64_t megabytes;
    int64_t multiprocessors;
  } cards[] = {{"h100", 3.35, 33, 132},  {"h200", 4.8, 40, 132},      {"h100-pcie", 2.04, 33, 114},
               {"gh200", 4.02, 40, 132}, {"gh200-144", 4.92, 40, 132}, {"h20", 4.02, 40, 78}};
  CHECK(std::size(cards) == std::size(known_cards));
  for (const auto& expected : cards) {
    INFO(expected.name);
    const Card& card = card_named(expected.name);
    CHECK(card.multiprocessors == expected.multiprocessors);
    CHECK(double(rates_of(card, 1e12, false).for_all) == Catch::Approx(expected.terabytes * 937.5).epsilon(0.005));
    CHECK(rates_of(card, double(expected.megabytes << 20), false).for_all > rates_of(card, 1e12, false).for_all);
    CHECK(rates_of(card, double((expected.megabytes + 1) << 20), false).for_all == rates_of(card, 1e12, false).for_all);
  }
  // Nothing is known of a card whose driver says nothing: it is taken for an H200.
  for (const double bytes : {1e6, 1e12}) {
    const MemoryRates unknown = rates_of(card_of_device(132, 0, 0, 0), bytes, false);
    const MemoryRates assumed = rates_of(assumed_card(132), bytes, false);
    CHECK((unknown.for_all == assumed.for_all && unknown.for_one == assumed.for_one));
  }
  // Blocks take longer at a lower clock; on an H20 their products take four times the clocks.
  const int n = row_named("fa3_fwd_bf16_d128_full_192x64");
  REQUIRE(n >= 0);
  const ForwardRow& row = forward_row(n);
  const RowCosts costs = fa3::costs_of(row);
  CHECK(on_card(costs, row, assumed_card(78)).behind.block == costs.behind.block);
  CHECK(on_card(costs, row, card_of_device(114, 2'000'000, 50 << 20, 990'000)).behind.block == 2 * costs.behind.block);
  const Card h20 = card_of_device(78, 4'000'000, 60 << 20, 1'980'000);
  const double products = 2.0 * 192 * 64 * 256 / 4096 / 1.98;
  CHECK(on_card(costs, row, h20).behind.block == Catch::Approx(costs.behind.block + 3 * products).margin(1.5));
}

TEST_CASE("a warp at a time adds up a row's parts", "[cost]") {
  const int64_t one_row = combine_time(16, 1, 1);
  CHECK((one_row > 1000 && one_row < 2000 && combine_time(64, 1, 1) > 2 * one_row));
  for (const int64_t rows : {2, 4}) CHECK(combine_time(16, rows, 1) == one_row);
  CHECK((combine_time(16, 5, 1) == 2 * one_row && combine_time(16, 64, 1) == 16 * one_row));
  CHECK((combine_time(16, 64, 16) == one_row && combine_time(16, 64, 8) == 2 * one_row));
  // The 33rd part costs more than others, and the 65th most of all: a lane has m and l of two parts at once.
  const auto step = [](int64_t parts) { return combine_time(parts + 1, 1, 1) - combine_time(parts, 1, 1); };
  CHECK((step(31) < 100 && step(32) > 500 && step(33) < 100));
  CHECK((step(63) < 100 && step(64) > 3000 && step(65) < 100));
}

TEST_CASE("the last part of a tile reads the others", "[cost]") {
  constexpr Costs costs{.block = 1000, .piece = 200, .write = 30, .read = 4};
  const auto time = [&](int32_t part, int32_t parts) { return costs.time({0, 5, 8, part, parts, 0, 0}); };
  CHECK(time(0, 1) == 3200);
  CHECK((time(0, 2) == 3230 && time(1, 2) == 3234));  // its own it has in registers
  CHECK((time(0, 3) == 3230 && time(1, 3) == 3230 && time(2, 3) == 3242));  // in the parts' order, its own, too
}

}  // namespace fa3::test
