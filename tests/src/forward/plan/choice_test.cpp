// Which row and which pieces the planner takes (src/forward/plan/plan.cpp): those that measured fastest.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "forward/plan/tiles.h"
#include "plans.h"

namespace fa3::test {

TEST_CASE("what is split, and what is not", "[plan]") {
  // One sequence, one head: as many parts as pay for being put together.
  const Shape long_keys{.batch = 1, .seqlen_q = 1, .seqlen_k = 131072, .heads = 1, .heads_kv = 1, .head_dim = 128};
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
    const RowPlan& made = row_plan(problem_of(long_keys, mask));
    CHECK((made.tiles.count() == 1 && made.pieces.listed > 16));
  }
  // A wave and a half is split, whole waves and so many that the last does not matter are not.
  const auto heads = [](int64_t batch, int64_t n) {
    return is_split(row_plan(
        problem_of({.batch = batch, .seqlen_q = 256, .seqlen_k = 4096, .heads = n, .heads_kv = n, .head_dim = 64})));
  };
  CHECK(heads(1, 200));
  CHECK_FALSE(heads(1, 264));
  CHECK_FALSE(heads(100, 133));
  // Too few keys.
  CHECK_FALSE(is_split(
      row_plan(problem_of({.batch = 1, .seqlen_q = 64, .seqlen_k = 300, .heads = 1, .heads_kv = 1, .head_dim = 64}))));
  // Causal problems that fill the machine.
  CHECK_FALSE(is_split(row_plan(problem_of(square(1, 8192, 16, 128), FA3_MASK_CAUSAL_TOP_LEFT))));
  CHECK(is_split(row_plan(problem_of(square(1, 8192, 2, 128), FA3_MASK_CAUSAL_TOP_LEFT))));
  CHECK_FALSE(is_split(row_plan(problem_of(square(1, 5618, 4, 256), FA3_MASK_CAUSAL_TOP_LEFT), 7)));
  // Only rows that know how.
  for (const ForwardRow& row : forward_rows) {
    if (row.has(Trait::planned)) continue;  // takes other problems
    const Shape shape{.batch = 1, .seqlen_q = 64, .seqlen_k = 8192, .heads = 1, .heads_kv = 1, .head_dim = row.d,
                      .head_dim_v = row.dv};
    INFO(row.name);
    CHECK(is_split(row_plan(problem_of(row, shape))) == row.has(Trait::splits));
  }
}

TEST_CASE("where the longest tiles are cut, the longest pieces come first", "[plan]") {
  int cut = 0;
  for (const int64_t heads : {2, 3, 4, 5, 6})
    for (const int64_t seqlen : {2048, 4096, 8192}) {
      const ForwardProblem problem = problem_of(square(1, seqlen, heads, 128), FA3_MASK_CAUSAL_TOP_LEFT);
      const RowPlan& made = row_plan(problem);
      if (!is_split(made) || made.pieces.ticket_tiles == made.tiles.count()) continue;
      ++cut;
      int last = INT32_MAX;
      for (int n = 0; n < made.pieces.listed; ++n) {
        const Work work = made.pieces.work(made.list[n], 0, unfold(problem, made, int32_t(made.list[n].tile)).blocks);
        CHECK(work.end - work.begin <= last);
        last = work.end - work.begin;
      }
    }
  CHECK(cut > 3);
}

TEST_CASE("long and short tiles run beside each other where they are many and keys few", "[plan]") {
  // Then a section is the heads that share a K/V head, and the last tiles are listed, whole, from the longest to the
  // shortest.
  const auto mixes = [](const ForwardProblem& problem, int multiprocessors = 132) {
    const RowPlan& made = row_plan(problem, multiprocessors);
    const int tiles = made.tiles.count(), last = std::min(2 * multiprocessors, list_capacity);
    if (made.pieces.listed == 0 || is_split(made)) return false;
    const int groups = made.tiles.section_heads / problem.heads_per_kv();
    CHECK((made.tiles.section_heads % problem.heads_per_kv() == 0 && (groups == 1 || groups == 16)));
    CHECK((made.pieces.whole_tiles == tiles - last && made.pieces.listed == last));
    CHECK((made.slots == 0 && made.pieces.ticket_tiles == 0));
    int blocks = INT32_MAX, tile = 0;
    for (int n = 0; n < last; ++n) {
      const Listed& listed = made.list[n];
      const int its_tile = made.pieces.whole_tiles + int(listed.tile);
      const int its_blocks = unfold(problem, made, its_tile).blocks;
      CHECK((listed.parts == 1 && int(listed.end) == its_blocks));
      CHECK((its_blocks < blocks || (its_blocks == blocks && its_tile > tile)));
      blocks = its_blocks, tile = its_tile;
    }
    return true;
  };
  const auto causal = [](const Shape& shape) { return problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT); };
  for (const int64_t head_dim : {64, 128, 256})
    for (const int64_t seqlen : {260, 512, 1024, 2047}) {
      INFO("head_dim " << head_dim << ", " << seqlen << " tokens");
      CHECK(mixes(causal(square(32, seqlen, 20, head_dim))));
      CHECK(mixes(causal({32, seqlen, seqlen, 20, 4, head_dim})));
      CHECK_FALSE(mixes(problem_of(square(32, seqlen, 20, head_dim))));
    }
  const int e4m3 = row_named("fa3_fwd_e4m3_d128_causal_192x96");
  REQUIRE(e4m3 >= 0);
  CHECK(mixes(problem_of(forward_row(e4m3), square(32, 512, 16, 128))));
  CHECK_FALSE(mixes(causal(square(32, 2048, 20, 128))));
  CHECK(mixes(causal({64, 4096, 2047, 20, 20, 128})));
  CHECK_FALSE(mixes(causal({64, 2047, 2048, 20, 20, 128})));
  // Four tiles for each multiprocessor; fewer balance only if the longest come first.
  CHECK(mixes(causal(square(1, 512, 132, 256))));
  CHECK_FALSE(mixes(causal(square(1, 512, 131, 256))));
  CHECK(mixes(causal(square(1, 512, 78, 256)), 78));
  CHECK(mixes(causal(square(8, 512, 200, 256)), 1024));
  // All of one length; rows that take no list.
  CHECK_FALSE(mixes(causal(square(512, 192, 16, 128))));
  const ForwardProblem unmasked = problem_of(square(32, 512, 16, 128));
  CHECK_FALSE(mixes_lengths({unmasked, forward_row(row_plan(unmasked).row)}, 3, 132));
  const int alg2 = row_named("fa3_alg2_bf16_d128_causal_128x128");
  REQUIRE(alg2 >= 0);
  const ForwardProblem named = problem_of(forward_row(alg2), square(32, 512, 16, 128));
  CHECK_FALSE(mixes(named));
  CHECK(row_plan(named).tiles.section_heads == 128);  // 32 MB of K and V
}

TEST_CASE("sections are larger where short causal tiles wait for memory", "[plan]") {
  // Groups in a section on an H100, whose memory serves 0.7 of an H200's; measured there, 16384 tokens or more.
  const auto groups = [](const char* name, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) {
    const ForwardProblem problem = problem_of(square(batch, seqlen, heads, head_dim), FA3_MASK_CAUSAL_TOP_LEFT);
    return int(row_plan(problem, card_named(name)).tiles.section_heads);
  };
  for (const int64_t seqlen : {256, 384, 512, 640}) CHECK(groups("h100", 16384 / seqlen + 1, seqlen, 8, 256) == 16);
  for (const int64_t seqlen : {768, 1024}) CHECK(groups("h100", 16384 / seqlen + 1, seqlen, 8, 256) == 1);
  CHECK((groups("h100", 128, 512, 8, 256) == 16 && groups("h100", 16, 512, 16, 256) == 16));
  for (const int64_t seqlen : {384, 512}) CHECK(groups("h100", 16384 / seqlen + 1, seqlen, 16, 128) == 16);
  CHECK((groups("h100", 16, 1024, 16, 128) == 1 && groups("h100", 32, 512, 32, 64) == 1));
  for (const int64_t head_dim : {64, 128, 256}) {
    CHECK(groups("h200", 32, 512, 2048 / head_dim, head_dim) == 1);
    CHECK(groups("h100-pcie", 32, 512, 2048 / head_dim, head_dim) == 16);
  }
}

TEST_CASE("the fastest row is taken", "[plan]") {
  std::set<std::string> taken;
  std::mt19937_64 random(9);
  for (int n = 0; n < 300; ++n) {
    const int64_t seqlen = 200 + int64_t(random() % 8000), heads = 1 + int64_t(random() % 12);
    const int32_t mask = random() % 2 ? FA3_MASK_NONE : FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    const ForwardProblem problem = problem_of(square(1, seqlen, heads, random() % 2 ? 64 : 128), mask);
    Fit fits = fit_of(problem);
    const auto has_one_tile = [](int row) { return forward_row(row).has(Trait::one_tile); };
    fits.count = int(std::remove_if(fits.rows, fits.rows + fits.count, has_one_tile) - fits.rows);
    REQUIRE(fits.count == 2);
    const RowPlan& made = row_plan(problem);
    if (has_one_tile(made.row)) continue;  // below
    taken.insert(rows[made.row].name);
    RowPlan first, second;
    plan_row(problem, fits.rows[0], assumed_card(132), first);
    plan_row(problem, fits.rows[1], assumed_card(132), second);
    if (problem.causal && first.tiles.count() >= 4 * 132) {  // not planned: the first row
      CHECK(made.row == fits.rows[0]);
      continue;
    }
    CHECK(made.predicted_us == std::min(first.predicted_us, second.predicted_us));
  }
  CHECK(taken.size() >= 6);
}

TEST_CASE("heads are packed for few queries, and only then", "[plan]") {
  const auto packs = [](const Shape& shape, int32_t mask) {
    return forward_row(row_plan(problem_of(shape, mask)).row).packs_heads();
  };
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const int64_t head_dim : {64, 128, 256}) {
      INFO("head_dim " << head_dim << ", mask " << mask);
      for (const int64_t heads : {4, 7, 12, 28, 32, 64, 100})
        for (const int64_t batch : {1, 8, 200}) {
          INFO(heads << " heads, batch " << batch);
          for (const int64_t seqlen_q : {1, 4})
            CHECK(packs({batch, seqlen_q, 8192, 8 * heads, 8, head_dim}, mask));
          CHECK_FALSE(packs({batch, 65, 8192, 8 * heads, 8, head_dim}, mask));
        }
      CHECK(packs({40, 64, 8192, 4, 1, head_dim}, mask));  // two tiles, in place of four that are half full
      // With one head for each of K and V nothing is packed, but these kernels wait for memory better.
      for (const int64_t batch : {1, 8, 64}) CHECK(packs({batch, 1, 8192, 8, 8, head_dim}, mask));
      // And store few rows sooner, where the others' time is short; but not many.
      for (const int64_t rows : {16, 48}) CHECK(packs({512, rows, 600, 16, 16, head_dim}, mask));
      for (const int64_t rows : {49, 64}) CHECK_FALSE(packs({512, rows, 600, 16, 16, head_dim}, mask));
      CHECK(packs({512, 64, 600, 32, 16, head_dim}, mask));
      CHECK(packs({512, 64, 8192, 16, 16, head_dim}, mask));
      CHECK(packs({33, 64, 600, 16, 16, head_dim}, mask));  // four waves
      CHECK_FALSE(packs({34, 64, 600, 16, 16, head_dim}, mask));
      // Of short sequences only where the heads that share K and V fit one tile.
      CHECK(packs({512, 16, 16, 64, 16, head_dim}, mask));
      CHECK_FALSE(packs({512, 17, 17, 64, 16, head_dim}, mask));
    }
  // All multiprocessors read the keys, where there are enough of them, as tiles or as parts.
  for (const auto& [batch, heads_kv, seqlen_k] :
       {std::array<int64_t, 3>{1, 8, 8192}, {1, 8, 131072}, {8, 8, 8192}, {1, 1, 131072}}) {
    const RowPlan& made =
        row_plan(problem_of({batch, 1, seqlen_k, 4 * heads_kv, heads_kv, 128}, FA3_MASK_CAUSAL_BOTTOM_RIGHT));
    INFO("batch " << batch << ", " << heads_kv << " heads, keys " << seqlen_k);
    CHECK(made.pieces.count() >= (batch * heads_kv == 1 ? 16 : 90));
  }
}

TEST_CASE("short sequences have a thread block for each tile", "[plan]") {
  // The rows of a tile, or 0 if thread blocks stay.
  const auto rows = [](const Shape& shape, int32_t mask, int multiprocessors = 132) {
    const ForwardProblem problem = problem_of(shape, mask);
    const ForwardPlan& made = plan(problem, fit_of(problem), assumed_card(multiprocessors));
    const ForwardRow& row = forward_row(made.forward.row);
    const bool is_short = row.has(Trait::one_tile);
    const int32_t tiles = made.forward.tiles.count();
    CHECK((made.launch_count == 1 && made.launches[0].grid <= (is_short ? tiles : multiprocessors)));
    CHECK((!is_short || made.launches[0].grid == tiles));
    CHECK((!is_short || (made.workspace_bytes == FA3_FORWARD_WORKSPACE_BYTES && row.d >= shape.head_dim)));
    return is_short ? row.Br : 0;
  };
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
    for (const int64_t head_dim : {24, 64, 80, 128, 256}) {
      INFO("mask " << mask << ", head_dim " << head_dim);
      const bool is_wide = head_dim > 128;
      for (const int64_t seqlen : {1, 16, 64}) {
        CHECK(rows(square(1, seqlen, 12, head_dim), mask) == 64);
        CHECK(rows(square(1000, seqlen, 12, head_dim), mask) == 64);
      }
      for (const int64_t seqlen : {65, 100, 128}) {
        CHECK(rows(square(1, seqlen, 12, head_dim), mask) == (is_wide ? 0 : 128));
        CHECK(rows(square(1000, seqlen, 12, head_dim), mask) == (is_wide ? 0 : 128));
      }
      // Few tiles of more keys, by the number of multiprocessors.
      const auto most_tiles = [&](int64_t seqlen_k, int64_t heads_each) {
        CHECK(rows({1, 100, seqlen_k, 132 * heads_each, 132 * heads_each, head_dim}, mask) == 128);
        CHECK(rows({1, 100, seqlen_k, 132 * heads_each + 4, 132 * heads_each + 4, head_dim}, mask) == 0);
        CHECK(rows({1, 100, seqlen_k, 132 * heads_each, 132 * heads_each, head_dim}, mask, 131) == 0);
      };
      const bool is_causal = mask != FA3_MASK_NONE;
      if (head_dim <= 64 && is_causal) most_tiles(129, 5), most_tiles(256, 5);
      if (head_dim <= 64) most_tiles(257, 4), most_tiles(384, 4), most_tiles(385, 3), most_tiles(512, 3);
      else if (!is_wide) most_tiles(129, is_causal ? 3 : 2), most_tiles(256, is_causal ? 3 : 2);
      CHECK(rows({1, 100, head_dim <= 64 ? 513 : 257, 12, 12, head_dim}, mask) == 0);
      // As many queries of few keys as have four tiles.
      CHECK(rows({4, 512, 77, 8, 8, head_dim}, mask) == (is_wide ? 0 : 128));
      CHECK(rows({4, 513, 77, 8, 8, head_dim}, mask) == 0);
    }
    // Two tiles of nearly as many rows as they have room for.
    for (const int64_t seqlen : {208, 256})
      CHECK(rows(square(1000, seqlen, 12, 64), mask) == (mask == FA3_MASK_NONE ? 128 : 0));
    for (const int64_t seqlen : {160, 207}) CHECK(rows(square(1000, seqlen, 12, 64), mask) == 0);
  }
}

TEST_CASE("with packed heads tiles are cut evenly, or ever shorter, or not at all", "[plan]") {
  const auto decode = [](int64_t batch, int64_t seqlen_k) -> const RowPlan& {
    return row_plan(problem_of({batch, 1, seqlen_k, 32, 8, 128}));
  };
  const auto lengths = [](const RowPlan& plan) {
    std::vector<int> blocks;
    for (int n = 0; n < plan.pieces.entries(); ++n) blocks.push_back(int(plan.list[n].end) - int(plan.list[n].begin));
    return blocks;
  };
  // Short times: as many equal parts as there are multiprocessors for.
  const RowPlan& even = decode(1, 8192);
  CHECK((even.pieces.whole_tiles == 0 && even.pieces.tiles_per_entry == 8 && even.pieces.count() == 128));
  for (const int blocks : lengths(even)) CHECK(blocks == 8);
  // A single tile has 32 parts, not 43, which would be shorter by one block only; but 64 if that saves four blocks, and
  // not more than a warp reads m and l of at once.
  CHECK(row_plan(problem_of({1, 1, 8192, 32, 1, 128})).pieces.entries() == 32);
  for (const int64_t seqlen_k : {16384, 32768})
    CHECK(row_plan(problem_of({1, 1, seqlen_k, 32, 1, 128})).pieces.entries() == 64);
  // Of the most keys as many as have their blocks from memory as fast as two warpgroups take them.
  CHECK(row_plan(problem_of({1, 1, 131072, 32, 1, 128})).pieces.entries() == 59);
  // So are long ones, if that leaves few multiprocessors without any.
  for (const auto& [batch, seqlen_k, parts] :
       {std::array<int64_t, 3>{1, 131072, 16}, {1, 262144, 16}, {2, 65536, 8}, {8, 32768, 2}}) {
    const RowPlan& plan = decode(batch, seqlen_k);
    CHECK((plan.pieces.whole_tiles == 0 && plan.pieces.tiles_per_entry == 8 * batch && plan.pieces.count() == 128));
    const std::vector<int> blocks = lengths(plan);
    CHECK(int64_t(blocks.size()) == parts);
    CHECK(blocks.front() - blocks.back() <= parts);  // the last one is what is left
  }
  // If not, as they are, or in as many parts as fill several rounds.
  for (const auto& [batch, seqlen_k, parts] :
       {std::array<int64_t, 3>{5, 32768, 3}, {6, 12000, 2}, {12, 16384, 0}, {16, 16384, 0}}) {
    const RowPlan& plan = decode(batch, seqlen_k);
    CHECK((plan.pieces.whole_tiles == (parts ? 0 : 8 * batch) && plan.pieces.entries() == parts));
  }
  const int one_consumer = row_named("fa3_fwdpacked_bf16_d128_full_64x64");
  REQUIRE(one_consumer >= 0);
  for (const auto& [batch, seqlen_k, parts] : {std::array<int64_t, 3>{12, 16384, 4}, {6, 12000, 8}}) {
    RowPlan rounds;
    plan_row(problem_of({batch, 1, seqlen_k, 32, 8, 128}), one_consumer, assumed_card(132), rounds);
    CHECK((rounds.pieces.whole_tiles == 0 && rounds.pieces.entries() == parts));
  }
  // Of many tiles the last 132 so, in three parts.
  const RowPlan& last = decode(64, 8192);
  CHECK((last.pieces.whole_tiles == 512 - 132 && last.pieces.tiles_per_entry == 132 && last.pieces.entries() == 3));
  CHECK(lengths(last)[0] > 4 * lengths(last)[2]);
  // Short ones, too, if otherwise few of them would be left for a last wave.
  for (const auto& [batch, seqlen_k] : {std::pair{17, 2048}, {17, 4096}, {20, 4096}, {34, 4096}}) {
    const RowPlan& few_left = decode(batch, seqlen_k);
    CHECK((few_left.pieces.whole_tiles == 8 * batch - 132 && few_left.pieces.entries() == 3));
  }
  // Many short ones not at all, nor where each multiprocessor has one.
  for (const auto& [batch, seqlen_k] : {std::pair{128, 2048}, {32, 4096}, {16, 4096}, {20, 2048}, {24, 4096}})
    CHECK_FALSE(is_split(decode(batch, seqlen_k)));
  // Tiles of more rows than there are would wait for the same memory.
  for (const int64_t heads : {8, 16, 64, 128, 512, 1024}) {
    const ForwardRow& row = forward_row(row_plan(problem_of({1, 1, 8192, heads, 8, 128})).row);
    CHECK((row.packs_heads() && row.Br == (heads <= 512 ? 64 : 128)));
  }
}

// What is predicted is the time of the parts that are made, whose longest are the same where keys are a few more.
TEST_CASE("with packed heads as many parts as long are predicted to take as long", "[plan]") {
  const int row = row_named("fa3_fwdpacked_bf16_d128_full_64x64");
  REQUIRE(row >= 0);
  int repeated = 0;
  for (const int64_t batch : {1, 2, 3, 5, 7, 8, 11, 15})
    for (const int64_t heads_kv : {1, 4, 8}) {
      std::map<std::tuple<int, int, bool>, double> times;  // by parts, blocks of the first, and whether the cache holds
      for (int64_t blocks = 8; blocks < 800; ++blocks) {   // all keys
        RowPlan made;
        plan_row(problem_of({batch, 1, 64 * blocks, 8 * heads_kv, heads_kv, 128}), row, assumed_card(132), made);
        if (!is_split(made) || made.pieces.whole_tiles > 0) continue;
        const bool is_cached = 3 * batch * heads_kv * blocks * 64 * 128 * 4 <= 2 * assumed_card(132).cache_bytes;
        const std::tuple key{made.pieces.entries(), int(made.list[0].end), is_cached};
        const auto [first, is_new] = times.emplace(key, made.predicted_us);
        INFO(batch << " x " << 64 * blocks << " keys, " << heads_kv << " heads in " << std::get<0>(key) << " parts");
        CHECK(made.predicted_us == first->second);
        repeated += !is_new;
      }
    }
  CHECK(repeated > 1000);
}

TEST_CASE("two warpgroups take turns at the keys of whole tiles, if there are enough", "[plan]") {
  const auto takes_turns = [](int64_t batch, int64_t seqlen_k, int64_t head_dim) {
    const RowPlan& made = row_plan(problem_of({batch, 1, seqlen_k, 32, 8, head_dim}));
    CHECK(forward_row(made.row).packs_heads());
    return forward_row(made.row).has(Trait::shares_keys);
  };
  for (const int64_t batch : {24, 40, 128}) {
    for (const int64_t seqlen_k : {2048, 4096}) {
      INFO("batch " << batch << ", keys " << seqlen_k);
      CHECK((takes_turns(batch, seqlen_k, 64) && takes_turns(batch, seqlen_k, 128)));
      CHECK_FALSE(takes_turns(batch, seqlen_k, 256));  // there is no such kernel
    }
    CHECK(takes_turns(batch, 1024, 64));
    CHECK(takes_turns(batch, 1024, 128) == (batch == 24));  // a second wave of few tiles waits for the exponentials
    for (const int64_t seqlen_k : {1, 64, 128, 512}) CHECK_FALSE(takes_turns(batch, seqlen_k, 128));
  }
  for (const int64_t seqlen_k : {1, 128}) CHECK_FALSE(takes_turns(1024, seqlen_k, 64));
  // Not of parts that are short.
  for (const int64_t head_dim : {64, 128}) CHECK_FALSE(takes_turns(1, 8192, head_dim));
}

TEST_CASE("the paper's grid stays with the larger tiles", "[plan]") {
  for (const int64_t head_dim : {64, 128, 256})
    for (int64_t seqlen = 512; seqlen <= 16384; seqlen *= 2)
      for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        const ForwardProblem problem = problem_of(square(16384 / seqlen, seqlen, 2048 / head_dim, head_dim), mask);
        INFO(head_dim << " " << seqlen << " " << mask);
        CHECK(row_plan(problem).row == fit_of(problem).rows[0]);
      }
}

TEST_CASE("short sequences run on the tiles that were measured to be faster", "[plan]") {
  // Query rows of a tile for each batch and length, with 12 heads of 64 or 16 of 128.
  const struct {
    int64_t batch, seqlen;
    int d64_full, d64_causal, d128_full, d128_causal;
  } cases[] = {{1024, 33, 64, 64, 64, 64},   {256, 100, 128, 128, 128, 128}, {128, 128, 128, 128, 128, 128},
               {1, 128, 128, 128, 128, 128}, {128, 197, 256, 256, 128, 192}, {64, 256, 128, 256, 128, 192},
               {48, 320, 256, 256, 192, 192}};
  for (const auto& c : cases)
    for (const int64_t head_dim : {64, 128})
      for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        const int Br = head_dim == 64 ? (mask ? c.d64_causal : c.d64_full) : mask ? c.d128_causal : c.d128_full;
        INFO(c.batch << " sequences of " << c.seqlen << ", head_dim " << head_dim << ", mask " << mask);
        const ForwardProblem problem = problem_of(square(c.batch, c.seqlen, head_dim == 64 ? 12 : 16, head_dim), mask);
        CHECK(forward_row(row_plan(problem).row).Br == Br);
      }
}

}  // namespace fa3::test
