// Which rows may run a planned problem, which of them is taken, and what its plan depends on.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "../../planned_calls.h"
#include "forward/plan/planned.h"
#include "plans.h"

namespace fa3::test {
namespace {

ForwardProblem problem_of(const fa3_forward_params& p) {
  ForwardProblem problem;
  REQUIRE(validate(&p, Rules::shapes, problem) == FA3_OK);
  return problem;
}

const ForwardRow& row_for(const fa3_forward_params& p, int multiprocessors = 132) {
  const ForwardProblem problem = problem_of(p);
  return forward_row(plan(problem, fit_of(problem), assumed_card(multiprocessors)).forward.row);
}

PlannedShape with_heads(PlannedShape shape, int64_t heads, int64_t heads_kv, int64_t head_dim) {
  shape.heads = heads, shape.heads_kv = heads_kv, shape.head_dim = shape.head_dim_v = head_dim;
  return shape;
}

}  // namespace

TEST_CASE("the rows that a planned problem may run on", "[plan][planned]") {
  int packs = 0;
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
      for (const int64_t max_q : {1, 64, 65, 3000}) {
        PlannedShape shape{.batch = 3, .max_q = max_q, .total_q = 2 * max_q + 1, .max_k = 5000, .total_k = 9000};
        if (max_q == 65) shape.total_q = 3 * 65;
        const fa3_forward_params p = packed_call(with_heads(shape, 12, 4, head_dim), dtype);
        const Fit fits = fit_of(problem_of(p));
        REQUIRE((fits.count >= 1 && fits.count <= Fit::most && fits.v_tiles_row == -1));
        std::set<int> dims[2];
        for (int i = 0; i < fits.count; ++i) {
          const ForwardRow& row = forward_row(fits.rows[i]);
          INFO(row.name << " for head dimension " << head_dim);
          CHECK((row.has(Trait::planned) && row.has(Trait::chosen) && row.mask == Mask::window));
          CHECK((dtype_of(row) == dtype && row.d >= head_dim && row.dv >= head_dim));
          CHECK((!row.packs_heads() || max_q <= 64));
          dims[row.packs_heads()].insert(row.d + row.dv);
          packs += row.packs_heads();
          // None that is smaller would do.
          for (const ForwardRow& other : forward_rows)
            if (other.has(Trait::planned) && other.has(Trait::chosen) && other.dtype == row.dtype &&
                other.packs_heads() == row.packs_heads() && other.d >= head_dim && other.dv >= head_dim)
              CHECK(other.d + other.dv >= row.d + row.dv);
        }
        CHECK((dims[0].size() == 1 && dims[1].size() == (max_q <= 64 ? 1 : 0)));
      }
  CHECK(packs > 100);
}

TEST_CASE("heads are packed where queries are few, also among sequences with many", "[plan][planned]") {
  const auto packs = [](int64_t batch, int64_t max_q, int64_t total_q, int64_t heads = 32, int64_t heads_kv = 4) {
    return row_for(paged_call(16, 50000, with_heads({.batch = batch, .max_q = max_q, .total_q = total_q, .max_k = 8192},
                                                  heads, heads_kv, 128))).packs_heads();
  };
  CHECK(packs(64, 1, 64));
  CHECK(packs(1, 1, 1));
  CHECK(packs(8, 16, 128));
  CHECK(packs(64, 1, 64, 32, 32));  // with a head for each of K and V, too: its tile has fewer rows
  // 31 sequences with a query each, and one with 512.
  CHECK(packs(32, 512, 543));
  CHECK_FALSE(packs(4, 512, 2048));
  CHECK_FALSE(packs(1, 2048, 2048));
  // Batched queries: each sequence may have as many.
  fa3_forward_params p = imaginary({.batch = 8, .seqlen_q = 200, .seqlen_k = 8192, .heads = 32, .heads_kv = 4,
                                    .head_dim = 128});
  p.seqused_k = lengths_at(23, 8);
  CHECK_FALSE(row_for(p).packs_heads());
  p = imaginary({.batch = 8, .seqlen_q = 3, .seqlen_k = 8192, .heads = 32, .heads_kv = 4, .head_dim = 128});
  p.seqused_k = lengths_at(23, 8);
  CHECK(row_for(p).packs_heads());
}

TEST_CASE("tiles are as large as the average sequence fills them", "[plan][planned]") {
  const auto rows_for = [](int64_t batch, int64_t max_q, int64_t average, int64_t keys) {
    return row_for(packed_call(with_heads({.batch = batch, .max_q = max_q, .total_q = batch * average, .max_k = keys,
                                         .total_k = batch * keys}, 16, 16, 128))).Br;
  };
  CHECK(rows_for(8, 2048, 2048, 2048) == 192);
  CHECK(rows_for(64, 8192, 1024, 1024) == 192);
  CHECK(rows_for(1, 16384, 16384, 16384) == 192);
  // In 192 and 8 rows, or in 128 and 72.
  CHECK(rows_for(16, 8192, 200, 8192) == 128);
  // Few rows of packed heads fill a small tile, more a larger one.
  const auto packed_rows_for = [](int64_t queries) {
    return row_for(paged_call(64, 50000, with_heads({.batch = 16, .max_q = queries, .total_q = 16 * queries,
                                                   .max_k = 8192}, 32, 4, 128))).Br;
  };
  CHECK((packed_rows_for(1) == 64 && packed_rows_for(16) == 128));
}

TEST_CASE("with batch invariance the row does not depend on lengths", "[plan][planned]") {
  for (const int64_t heads_kv : {4, 32})
    for (const int64_t head_dim : {64, 128, 256}) {
      std::set<std::string> names;
      for (const int64_t batch : {1, 7, 300})
        for (const int64_t max_q : {1, 64, 65, 5000})
          for (const int64_t max_k : {1, 500, 100000}) {
            fa3_forward_params p = packed_call(with_heads({.batch = batch, .max_q = max_q, .total_q = batch * max_q,
                                                         .max_k = max_k, .total_k = batch * max_k}, 32, heads_kv,
                                                        head_dim));
            p.flags = FA3_FLAG_BATCH_INVARIANT;
            names.insert(row_for(p, batch % 2 ? 132 : 24).name);
            p.cu_seqlens_k = {};
            p.k.rank = p.v.rank = 4;
            p.k = tensor(p.k.data, FA3_DTYPE_BF16, {50, 64, heads_kv, head_dim}), p.v = p.k;
            p.page_table = tensor(far_away(25), FA3_DTYPE_INT32, {batch, (max_k + 63) / 64});
            names.insert(row_for(p).name);
          }
      CHECK(names.size() == 1);
      CHECK((*names.begin()).find(heads_kv == 4 ? "packed" : "fwdplanned_") != std::string::npos);
    }
}

TEST_CASE("a plan for other pointers is remembered, and one for other numbers is not taken for it", "[plan][planned]") {
  const auto planned_for = [](const fa3_forward_params& p) -> const ForwardPlan& {
    const ForwardProblem problem = problem_of(p);
    return plan(problem, fit_of(problem), assumed_card(132));
  };
  const auto numbers = [](const ForwardPlan& made) {
    return std::tuple{made.workspace_bytes, made.schedule_bytes, made.launch_count, made.forward.predicted_us,
                      made.forward.tiles.count()};
  };
  const fa3_forward_params first = packed_call();
  const ForwardPlan* const made = &planned_for(first);
  fa3_forward_params p = first;
  p.q.data = far_away(40), p.cu_seqlens_q.data = far_away(41), p.cu_seqlens_k.data = far_away(42);
  p.softmax_scale = 0.25f;
  CHECK(&planned_for(p) == made);

  // Right after the plan of a call that differs in one number only, and in a thread that has planned nothing.
  const auto differ = [&](const fa3_forward_params& a, const fa3_forward_params& b) {
    const auto plan_a = numbers(planned_for(a)), plan_b = numbers(planned_for(b));
    auto fresh = plan_a;
    std::thread([&] { fresh = numbers(planned_for(b)); }).join();
    CHECK(plan_b == fresh);
    CHECK(plan_a != plan_b);
  };
  for (const PlannedShape& shape :
       {PlannedShape{.max_q = 100}, PlannedShape{.total_q = 900}, PlannedShape{.max_k = 100},
        PlannedShape{.total_k = 2000}, PlannedShape{.batch = 9}, PlannedShape{.heads = 12}})
    differ(first, packed_call(shape));
  p = first, p.flags = FA3_FLAG_BATCH_INVARIANT, differ(first, p);
  p = first, p.schedule = far_away(43), p.schedule_bytes = 1 << 20, differ(first, p);
  const auto masked = [&](int32_t mask, int32_t left, int32_t right) {
    fa3_forward_params q = packed_call({.max_q = 5000, .total_q = 9000, .max_k = 9000, .total_k = 15000});
    q.mask = mask, q.window_left = left, q.window_right = right;
    return q;
  };
  differ(masked(FA3_MASK_WINDOW, 100, 0), masked(FA3_MASK_WINDOW, 1000, 0));
  differ(masked(FA3_MASK_WINDOW, 100, 0), masked(FA3_MASK_WINDOW, 100, 1000));
  differ(masked(FA3_MASK_CAUSAL_TOP_LEFT, 0, 0), masked(FA3_MASK_CAUSAL_BOTTOM_RIGHT, 0, 0));
  differ(masked(FA3_MASK_CHUNK, 100, 0), masked(FA3_MASK_CAUSAL_BOTTOM_RIGHT, 0, 0));
  // A problem that is not planned, of the same shape.
  const fa3_forward_params batched = imaginary({.batch = 3, .seqlen_q = 100, .seqlen_k = 500, .head_dim = 128});
  p = batched, p.seqused_q = lengths_at(22, 3);
  differ(batched, p), differ(p, batched);
}

TEST_CASE("more than the kernels can count is refused", "[plan][planned]") {
  const auto status = [](const ForwardProblem& problem) {
    Fit made;
    return fit(problem, made);
  };
  ForwardProblem problem = problem_of(packed_call(with_heads({}, 4, 2, 128)));
  problem.batch = INT32_MAX - 65536, problem.total_q = -1, problem.seqlen_q = 1000;
  CHECK(status(problem) == FA3_ERROR_UNSUPPORTED);
  problem.batch = 1000000;
  CHECK(status(problem) == FA3_OK);
  problem.heads = 4000, problem.heads_kv = 1000;
  CHECK(status(problem) == FA3_ERROR_UNSUPPORTED);
  problem.seqlen_q = 1;  // then heads are packed
  CHECK(status(problem) == FA3_OK);
}

}  // namespace fa3::test
