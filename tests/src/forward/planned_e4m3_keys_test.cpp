// The rules of the header about Q of 16 bits over K and V of e4m3, and how such calls are planned.
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "../planned_calls.h"
#include "../validated.h"
#include "forward/plan/copies.h"
#include "forward/plan/planned.h"
#include "plan/plans.h"

namespace fa3::test {
namespace {

// Of a call: K and V of e4m3 with a scale for each head of each sequence, or one for the tensor.
P over_e4m3(P p, int64_t batch, int64_t heads_kv) {
  p.k.dtype = p.v.dtype = FA3_DTYPE_E4M3;
  p.k_scale = tensor(far_away(31), FA3_DTYPE_FP32, {batch, heads_kv, 1});
  p.v_scale = tensor(far_away(32), FA3_DTYPE_FP32, {1, 1, 1});
  return p;
}
P packed_over_e4m3() { return over_e4m3(packed_call({.head_dim = 80, .head_dim_v = 80}), 3, 3); }
P paged_over_e4m3() {
  P p = over_e4m3(paged_call(16, 100, {.head_dim = 80, .head_dim_v = 80}, FA3_DTYPE_FP16), 3, 3);
  p.sinks = tensor(far_away(36), FA3_DTYPE_FP32, {6});
  return p;
}
P dense_over_e4m3() { return over_e4m3(imaginary({.seqlen_q = 5, .seqlen_k = 300, .head_dim = 64}), 2, 2); }

const Change bad[] = {
    {"k.dtype is e4m3, must be bf16 as q's", invalid, [](P& p) { p.v.dtype = FA3_DTYPE_BF16; }},
    {"k.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.k.dtype = p.v.dtype = FA3_DTYPE_FP16; }},
    {"o.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.o.dtype = FA3_DTYPE_FP16; }},
    {"k_scale is absent (its rank is 0), and k.dtype is e4m3", invalid, [](P& p) { p.k_scale = {}; }},
    {"v_scale is absent (its rank is 0), and v.dtype is e4m3", invalid, [](P& p) { p.v_scale = {}; }},
    {"k_scale.dim[0] is 2, must be 1 or cu_seqlens_q.dim[0] - 1, which is 3", invalid,
     [](P& p) { p.k_scale.dim[0] = 2; }},
    {"v_scale.dim[1] is 6, must be 1 or k.dim[1], which is 3", invalid, [](P& p) { p.v_scale.dim[1] = 6; }},
    {"v_scale.dim[2] is 7, must be 1: scales of blocks cannot be had together with", unsupported,
     [](P& p) { p.v_scale.dim[2] = 7; }},
    {"q_scale.rank is 3, must be 0 (absent): q_scale is for e4m3, and q.dtype is bf16", invalid,
     [](P& p) { p.q_scale = tensor(far_away(30), FA3_DTYPE_FP32, {1, 1, 1}); }},
    {"v_mean.rank is 3, must be 0 (absent)", invalid,
     [](P& p) { p.v_mean = tensor(far_away(34), FA3_DTYPE_FP32, {3, 3, 80}); }},
    {"lse_offset.rank is 2, must be 0 (absent)", invalid,
     [](P& p) { p.lse_offset = tensor(far_away(35), FA3_DTYPE_FP32, {6, 500}); }},
    {"flags has FA3_FLAG_TWO_LEVEL, which is for e4m3; q.dtype is bf16", invalid,
     [](P& p) { p.flags |= FA3_FLAG_TWO_LEVEL; }},
    {"k.dtype is e4m3, and q.dtype is not, which cannot be had together with softcap", unsupported,
     [](P& p) { p.softcap = 30; }},
    {"k.dtype is e4m3, and q.dtype is not, which cannot be had together with alibi_slopes", unsupported,
     [](P& p) { p.alibi_slopes = tensor(far_away(37), FA3_DTYPE_FP32, {6}); }},
    {"q.dim[2] (head_dim) is 72", invalid,
     [](P& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o}) t->dim[2] = 72;
     }},
};

ForwardProblem problem_of(const P& p) { return accept(p, Rules::shapes); }

}  // namespace

TEST_CASE("bad calls of wide queries over e4m3 are refused", "[planned]") {
  for (const Change& change : bad) {
    P p = packed_over_e4m3();
    accept(p, Rules::device);
    change.apply(p);
    for (const Rules rules : {Rules::device, Rules::shapes}) refuse(p, rules, change);
  }
}

TEST_CASE("wide queries over e4m3 are always planned", "[planned]") {
  for (const P& p : {packed_over_e4m3(), paged_over_e4m3(), dense_over_e4m3()}) {
    const ForwardProblem problem = accept(p, Rules::device);
    CHECK((problem.planned && problem.widens_keys() && !problem.kv_blocks && problem.q_scale.data == nullptr));
    CHECK((problem.k_scale.data == p.k_scale.data && problem.v_scale.data == p.v_scale.data));
  }
  const P p = dense_over_e4m3();
  P narrow = imaginary_e4m3(), same = p;
  CHECK_FALSE(accept(narrow, Rules::device).widens_keys());
  same.k.dtype = same.v.dtype = same.q.dtype, same.k_scale = same.v_scale = {};
  CHECK_FALSE(accept(same, Rules::device).planned);
  refuse(p, Rules::device, {"", FA3_OK, [](P&) {}});
}

TEST_CASE("the rows that wide queries over e4m3 may run on", "[plan][planned]") {
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (int64_t head_dim = 16; head_dim <= 256; head_dim += 16)
      for (const int64_t max_q : {1, 64, 65, 3000}) {
        const PlannedShape shape{.batch = 3, .max_q = max_q, .total_q = 3 * max_q, .max_k = 5000, .total_k = 9000,
                                 .heads = 12, .heads_kv = 4, .head_dim = head_dim, .head_dim_v = head_dim};
        const ForwardProblem problem = problem_of(over_e4m3(packed_call(shape, dtype), 3, 4));
        const Fit fits = fit_of(problem);
        REQUIRE((fits.count >= 2 && fits.v_tiles_row == -1));
        CHECK_FALSE(forward_row(fits.rows[0]).takes_copies());
        CHECK(forward_row(fits.rows[fits.count - 1]).takes_copies());
        for (int i = 0; i < fits.count; ++i) {
          const ForwardRow& row = forward_row(fits.rows[i]);
          INFO(row.name << " for head dimension " << head_dim << " and " << max_q << " queries");
          CHECK((row.has_wide_q() && row.has(Trait::planned) && dtype_of(row) == dtype));
          CHECK((row.d >= head_dim && row.d < (head_dim <= 64 ? 65 : head_dim <= 128 ? 129 : 257)));
          CHECK((!row.packs_heads() || max_q <= 64 || head_dim > 128));
          CHECK((i == 0 || row.takes_copies() || !forward_row(fits.rows[i - 1]).takes_copies()));
          CHECK((!row.has(Trait::few_rows) || 4 * max_q <= (head_dim <= 128 ? 16 : 8)));  // 3 heads take 4 rows
        }
        // Others never do.
        const Fit fit_16 = fit_of(problem_of(packed_call(shape, dtype)));
        for (int i = 0; i < fit_16.count; ++i) CHECK_FALSE(forward_row(fit_16.rows[i]).has_wide_q());
      }
}

// Half the bytes are half the time where memory is waited for.
TEST_CASE("over e4m3 decoding is predicted to be faster than in 16 bits", "[plan][planned]") {
  const PlannedShape shape{.batch = 64, .max_q = 1, .total_q = 64, .max_k = 8192, .total_k = 0, .heads = 32,
                           .heads_kv = 8, .head_dim = 128, .head_dim_v = 128};
  const auto predicted = [](const P& p) {
    const ForwardProblem problem = problem_of(p);
    return plan(problem, fit_of(problem), assumed_card(132)).forward.predicted_us;
  };
  const P wide = paged_call(16, 40000, shape);
  const double in_16 = predicted(wide), in_8 = predicted(over_e4m3(wide, 64, 8));
  CHECK(in_8 < in_16);
  CHECK(in_8 > 0.4 * in_16);
}

TEST_CASE("rows that widen are for their calls alone, also by name", "[planned]") {
  P p = packed_over_e4m3();
  for (const ForwardRow& row : forward_rows) {
    if (!row.has(Trait::planned) || row.dtype != Dtype::bf16 || row.transforms_scores() || row.d < 80) continue;
    p.kernel = row.name;
    P narrow = packed_call({.head_dim = 80, .head_dim_v = 80});
    narrow.kernel = row.name;
    if (row.stores_fp32()) narrow.o.dtype = FA3_DTYPE_FP32;
    Fit fits;
    if (!row.has(Trait::few_rows)) CHECK((fit(problem_of(p), fits) == FA3_OK) == row.has_wide_q());
    CHECK((fit(problem_of(narrow), fits) == FA3_OK) == !row.has_wide_q());
  }
}

// So many queries in a sequence of so many keys, 32 heads over 8 of 128 columns.
P batched(int64_t batch, int64_t queries, int64_t keys) {
  P p = imaginary({.batch = batch, .seqlen_q = queries, .seqlen_k = keys, .heads = 32, .heads_kv = 8, .head_dim = 128});
  p = over_e4m3(p, batch, 8);
  p.seqused_k = lengths_at(30, batch);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return p;
}
const ForwardPlan& plan_of(const P& p) {
  const ForwardProblem problem = problem_of(p);
  return plan(problem, fit_of(problem), assumed_card(132));
}
bool copies(const P& p) { return forward_row(plan_of(p).forward.row).takes_copies(); }

TEST_CASE("K and V of e4m3 are copied for many queries", "[plan][planned]") {
  for (const int64_t queries : {600, 2048, 8192}) {
    CHECK(copies(batched(1, queries, 8192)));
    CHECK((plan_of(batched(1, queries, 8192)).launch_count == 3));
    CHECK((plan_of(batched(1, queries, 8192)).launches[1].step == ForwardStep::copy_keys));
  }
  for (const int64_t queries : {1, 16, 64, 128}) {
    CHECK_FALSE(copies(batched(4, queries, 8192)));
    CHECK((plan_of(batched(4, queries, 8192)).launch_count == 2));
  }
  // A sequence's bits are not to depend on how many queries there are.
  P p = batched(1, 8192, 8192);
  p.flags = FA3_FLAG_BATCH_INVARIANT;
  CHECK_FALSE(copies(p));
}

TEST_CASE("copies of K and V take bounded memory", "[plan][planned]") {
  constexpr size_t megabyte = size_t{1} << 20, gigabyte = size_t{1} << 30;
  const auto bytes = [](const P& p) { return plan_of(p).workspace_bytes; };
  // 8192 keys of 8 heads, 128 columns of K and as many of V, 2 bytes each.
  const size_t copied = size_t{8192} * 8 * 256 * 2;
  P p = batched(1, 2048, 8192), named = p;
  named.kernel = "fa3_fwdplannedfp8kv_bf16_d128_window_128x64";
  CHECK((bytes(p) >= copied && bytes(p) < copied + 128 * megabyte && bytes(named) < 128 * megabyte));
  // A maximum below the room in the cache is what counts.
  p.max_seqlen_k = 5000;
  CHECK((copies(p) && bytes(p) < bytes(batched(1, 2048, 8192)) - copied / 4));
  // More than a gigabyte only where Q and O have it.
  CHECK((copies(batched(1, 8192, 262144)) && !copies(batched(1, 8192, 262145))));
  CHECK((copies(batched(64, 8192, 8192)) && bytes(batched(64, 8192, 8192)) > 2 * gigabyte));
  P paged = p;
  paged.max_seqlen_k = 0;
  paged.k = tensor(paged.k.data, FA3_DTYPE_E4M3, {3000, 16, 8, 128});
  paged.v = tensor(paged.v.data, FA3_DTYPE_E4M3, {3000, 16, 8, 128});
  paged.page_table = tensor(far_away(33), FA3_DTYPE_INT32, {1, 512});
  CHECK((copies(paged) && bytes(paged) == bytes(batched(1, 2048, 8192))));
  paged.page_table = tensor(far_away(33), FA3_DTYPE_INT32, {1, 16385});
  CHECK_FALSE(copies(paged));
}

}  // namespace fa3::test
