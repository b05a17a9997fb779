// What the library plans (src/forward): properties that hold for any problem.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <iterator>
#include <random>

#include "plans.h"

namespace fa3::test {
TEST_CASE("every block of every tile is in one piece, on every row and card", "[plan]") {
  std::mt19937_64 random(5);
  const auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  int split = 0, behind = 0, causal = 0, some = 0, many = 0, mixed = 0;
  for (int n = 0; n < 3000; ++n) {
    Shape shape;
    shape.heads_kv = pick({1, 1, 2, 3, 8, 16});
    shape.heads = shape.heads_kv * pick({1, 1, 2, 5});
    shape.batch = pick({1, 1, 1, 2, 7, 20});
    shape.seqlen_q = random() % 3 ? 1 + random() % 4000 : 1 + random() % 20;
    shape.seqlen_k = random() % 3 ? 1 + random() % 10000 : 1 + random() % 300000;
    shape.head_dim = pick({64, 72, 128, 256});
    const int32_t mask = static_cast<int32_t>(random() % 3);
    Card card = known_cards[random() % std::size(known_cards)].card;
    if (random() % 2) card.multiprocessors = static_cast<int>(pick({1, 2, 114, 144, 1024}));
    const int multiprocessors = card.multiprocessors;
    if (random() % 4 == 0) {  // few tiles, but more than multiprocessors
      shape.batch = 1;
      shape.seqlen_q = shape.seqlen_k = 2000 + random() % 15000;
      shape.heads = shape.heads_kv =
          std::max<int64_t>(1, multiprocessors * int64_t(128 + random() % 256) / shape.seqlen_q);
    }
    const ForwardProblem problem = problem_of(shape, mask);
    const Fit fits = fit_of(problem);
    for (int i = 0; i < fits.count; ++i) {
      RowPlan made;
      plan_row(problem, fits.rows[i], card, made);
      INFO(rows[fits.rows[i]].name << " batch " << shape.batch << " heads " << shape.heads << " q " << shape.seqlen_q
                                   << " k " << shape.seqlen_k << " mask " << mask << " on " << multiprocessors);
      check(problem, made, multiprocessors);
      split += is_split(made);
      behind += is_split(made) && made.pieces.whole_tiles > 0;
      causal += is_split(made) && problem.causal;
      mixed += !is_split(made) && made.pieces.listed > 0;
      some += is_split(made) && made.pieces.ticket_tiles < made.tiles.count() - made.pieces.whole_tiles;
      many +=
          is_split(made) &&
          std::any_of(made.list, made.list + made.pieces.entries(), [](auto& l) { return l.parts > 8; });
    }
  }
  CHECK(split > 1000);
  CHECK(behind > 200);
  CHECK(causal > 200);
  CHECK(some > 50);
  CHECK(many > 100);
  CHECK(mixed > 50);
}

TEST_CASE("with packed heads also rows that see no key are in tiles", "[plan]") {
  const ForwardProblem problem =
      problem_of({.batch = 1, .seqlen_q = 64, .seqlen_k = 3, .heads = 32, .heads_kv = 4, .head_dim = 64},
                 FA3_MASK_CAUSAL_BOTTOM_RIGHT);
  int packed = 0;
  const Fit fits = fit_of(problem);
  for (int i = 0; i < fits.count; ++i) {
    RowPlan made;
    plan_row(problem, fits.rows[i], assumed_card(132), made);
    check(problem, made, 132);
    packed += forward_row(made.row).packs_heads();
  }
  CHECK(packed > 0);
}

TEST_CASE("heads that share the L2 cache are as many in every section", "[plan]") {
  const auto section = [](int64_t heads, int64_t heads_kv, int32_t mask) {
    return int(
        row_plan(
            problem_of(
                {.batch = 1, .seqlen_q = 8192, .seqlen_k = 8192, .heads = heads, .heads_kv = heads_kv, .head_dim = 128},
                mask))
            .tiles.section_heads);  // K and V of a head: 4 MB of 32
  };
  CHECK(section(32, 32, FA3_MASK_CAUSAL_TOP_LEFT) == 8);
  CHECK(section(9, 9, FA3_MASK_CAUSAL_TOP_LEFT) == 9);  // not 8 and 1
  CHECK(section(12, 12, FA3_MASK_CAUSAL_TOP_LEFT) == 6);
  CHECK(section(34, 34, FA3_MASK_CAUSAL_TOP_LEFT) == 9);
  CHECK(section(36, 9, FA3_MASK_CAUSAL_TOP_LEFT) == 36);
  CHECK(section(80, 20, FA3_MASK_CAUSAL_TOP_LEFT) == 28);  // of 20 groups of 4 heads: 7, 7 and 6
  CHECK((section(9, 9, FA3_MASK_NONE) == 1 && section(36, 9, FA3_MASK_NONE) == 1));
  // Of V with fewer columns 3 MB, of 8 bits 2 MB.
  Shape shape = square(1, 8192, 30, 128);
  const int e4m3 = row_named("fa3_fwd_e4m3_d128_causal_192x96");
  REQUIRE(e4m3 >= 0);
  CHECK(row_plan(problem_of(forward_row(e4m3), shape)).tiles.section_heads == 15);
  shape.head_dim_v = 64;
  CHECK(row_plan(problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT)).tiles.section_heads == 10);
}

TEST_CASE("a problem without keys is a pass, one without rows nothing", "[plan]") {
  const ForwardProblem keyless = problem_of({.batch = 3, .seqlen_q = 1000, .seqlen_k = 0, .heads = 2, .heads_kv = 2});
  const ForwardPlan& pass = plan(keyless, fit_of(keyless), assumed_card(132));
  REQUIRE(pass.launch_count == 1);
  CHECK(pass.launches[0].step == ForwardStep::empty_rows);
  CHECK(rows[pass.launches[0].row].kind == Kind::pass);
  CHECK(pass.workspace_bytes == FA3_FORWARD_WORKSPACE_BYTES);
  // A warp for each block of rows of each head, on as many multiprocessors as there are for them.
  for (const int multiprocessors : {132, 5, 1})
    for (const int64_t heads : {1, 2, 50})
      for (const int64_t seqlen_q : {1, 255, 256, 257, 1000, 30000}) {
        const ForwardProblem some =
            problem_of({.batch = 3, .seqlen_q = seqlen_q, .seqlen_k = 0, .heads = heads, .heads_kv = heads});
        const ForwardLaunch& launch = plan(some, fit_of(some), assumed_card(multiprocessors)).launches[0];
        const int64_t blocks = 3 * heads * ((seqlen_q + 255) / 256), warps = rows[launch.row].threads / 32;
        CHECK(launch.grid == std::min<int64_t>(multiprocessors, (blocks + warps - 1) / warps));
      }
  const ForwardProblem rowless = problem_of({.batch = 0});
  CHECK(plan(rowless, fit_of(rowless), assumed_card(132)).launch_count == 0);
}

TEST_CASE("a problem is planned once, and any other anew", "[plan]") {
  const Shape shape{.batch = 2, .seqlen_q = 700, .seqlen_k = 9000, .heads = 6, .heads_kv = 2, .head_dim = 128};
  const ForwardProblem problem = problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT);
  constexpr Card card = assumed_card(132);
  const Fit fits = fit_of(problem);
  const ForwardPlan& first = plan(problem, fits, card);
  const_cast<ForwardPlan&>(first).forward.whole_us = -1;  // a mark that planning would overwrite
  CHECK(plan(problem, fits, card).forward.whole_us == -1);
  // Data, strides and scale are nothing to it.
  ForwardProblem same = problem;
  same.q.data = same.o.data = nullptr, same.softmax_scale = 3, same.k.stride[1] += 8;
  CHECK(plan(same, fits, card).forward.whole_us == -1);

  // So are a few others meanwhile, and each has its own.
  const ForwardProblem second = problem_of(square(1, 512, 3, 64)), third = problem_of(square(1, 1024, 5, 256));
  for (const ForwardProblem* other : {&second, &third})
    const_cast<ForwardPlan&>(plan(*other, fit_of(*other), card)).forward.whole_us = -2;
  CHECK(plan(second, fit_of(second), card).forward.tiles.batch_heads == 3);
  CHECK(plan(third, fit_of(third), card).forward.tiles.batch_heads == 5);
  for (const ForwardProblem* other : {&second, &third})
    CHECK(plan(*other, fit_of(*other), card).forward.whole_us == -2);
  CHECK(plan(problem, fits, card).forward.whole_us == -1);

  const auto is_new = [&](const ForwardProblem& other, int multiprocessors = 132) {
    plan(problem, fits, card);  // remembered again, if it was forgotten
    const_cast<ForwardPlan&>(plan(problem, fits, card)).forward.whole_us = -1;
    return plan(other, fit_of(other), assumed_card(multiprocessors)).forward.whole_us != -1;
  };
  CHECK(is_new(problem, 131));
  // What else the card has is nothing to many queries without a mask.
  const ForwardProblem full = problem_of(shape), few = problem_of({2, 1, 9000, 6, 2, 128});
  for (const ForwardProblem* one : {&full, &few, &problem}) {
    const_cast<ForwardPlan&>(plan(*one, fit_of(*one), card)).forward.whole_us = -3;
    Card other = card;
    other.memory_bytes_per_us /= 2;
    CHECK((plan(*one, fit_of(*one), other).forward.whole_us == -3) == (one == &full));
  }
  CHECK(is_new(problem_of(shape, FA3_MASK_CAUSAL_BOTTOM_RIGHT)));
  CHECK(is_new(problem_of(shape, FA3_MASK_NONE)));
  CHECK(is_new(problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT, nullptr, FA3_DTYPE_FP16)));
  CHECK(is_new(problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT, rows[fits.rows[0]].name)));
  for (int64_t Shape::*field : {&Shape::batch, &Shape::seqlen_q, &Shape::seqlen_k, &Shape::heads, &Shape::head_dim}) {
    Shape other = shape;
    other.*field += field == &Shape::heads ? 2 : field == &Shape::head_dim ? -8 : 1;
    CHECK(is_new(problem_of(other, FA3_MASK_CAUSAL_TOP_LEFT)));
  }
  Shape other = shape;
  other.heads_kv = 3;
  CHECK(is_new(problem_of(other, FA3_MASK_CAUSAL_TOP_LEFT)));
  for (int64_t Shape::*field : {&Shape::head_dim, &Shape::head_dim_v}) {
    other = shape;
    other.head_dim_v = 128;
    other.*field = 120;
    CHECK(is_new(problem_of(other, FA3_MASK_CAUSAL_TOP_LEFT)));
  }
}

}  // namespace fa3::test
