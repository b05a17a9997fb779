// Softcap and ALiBi: what is refused, what a right call becomes, and which rows run it.
#include <catch2/catch_test_macros.hpp>
#include <cfloat>
#include <cmath>
#include <string>

#include "../forward/plan/plans.h"
#include "../planned_calls.h"
#include "../validated.h"

namespace fa3::test {
namespace {

fa3_tensor slopes(std::initializer_list<int64_t> dim, int32_t dtype = FA3_DTYPE_FP32) {
  return tensor(far_away(20), dtype, dim);
}
P plain() { return imaginary(); }
P with_slopes() {
  P p = imaginary();
  p.alibi_slopes = slopes({4});
  return p;
}
P in_e4m3() { return imaginary_e4m3(); }

const Change bad_plain[] = {
    {"softcap is -1, must be finite and > 0, or 0 for none", invalid, [](P& p) { p.softcap = -1; }},
    {"softcap is nan, must be", invalid, [](P& p) { p.softcap = NAN; }},
    {"softcap is inf, must be", invalid, [](P& p) { p.softcap = INFINITY; }},
    {"reserved is 1, must be 0", invalid, [](P& p) { p.reserved = 1; }},
    {"alibi_slopes.dtype is bf16, must be fp32", invalid, [](P& p) { p.alibi_slopes = slopes({4}, FA3_DTYPE_BF16); }},
    {"alibi_slopes.dtype is bf16, must be fp32", invalid,
     [](P& p) { p.alibi_slopes = slopes({2, 4}, FA3_DTYPE_BF16); }},
    {"alibi_slopes.rank is 3, must be 1 (heads) or 2 (batch, heads)", invalid,
     [](P& p) { p.alibi_slopes = slopes({1, 2, 4}); }},
    {"alibi_slopes.dim[0] is 2, must be the query heads, 4", invalid, [](P& p) { p.alibi_slopes = slopes({2}); }},
    {"alibi_slopes.dim[1] is 2, must be the query heads, 4", invalid, [](P& p) { p.alibi_slopes = slopes({2, 2}); }},
    {"alibi_slopes.dim[0] is 1, must be q.dim[0], 2", invalid, [](P& p) { p.alibi_slopes = slopes({1, 4}); }},
    {"alibi_slopes.stride[0] is -1, must be >= 0", invalid,
     [](P& p) { p.alibi_slopes = slopes({2, 4}), p.alibi_slopes.stride[0] = -1; }},
};
const Change bad_packed[] = {
    {"alibi_slopes.dim[0] is 2, must be cu_seqlens_q.dim[0] - 1, 3", invalid,
     [](P& p) { p.alibi_slopes = slopes({2, 4}); }},
};
const Change bad_with_slopes[] = {
    {"alibi_slopes and mask FA3_MASK_CHUNK cannot be had together", unsupported, [](P& p) { chunk(p, 4, 0); }},
    {"alibi_slopes and FA3_FLAG_BATCH_INVARIANT cannot be had together", unsupported,
     [](P& p) { p.flags = FA3_FLAG_BATCH_INVARIANT; }},
};
const Change bad_pointers[] = {
    {"alibi_slopes.data is NULL", invalid, [](P& p) { p.alibi_slopes.data = nullptr; }},
    {"alibi_slopes.data is 0x", invalid, [](P& p) { move(p.alibi_slopes, 1); }},
    {"lse may overlap alibi_slopes", invalid, [](P& p) { p.alibi_slopes.data = p.lse.data; }},
};
const Change bad_e4m3[] = {
    {"softcap and lse_offset cannot be had together", unsupported,
     [](P& p) { p.softcap = 30, p.lse_offset = tensor(far_away(21), FA3_DTYPE_FP32, {2, 4, p.q.dim[1]}); }},
    {"q.dtype is e4m3, which cannot be had together with alibi_slopes", unsupported,
     [](P& p) { p.alibi_slopes = slopes({4}); }},
};

const ForwardRow& row_for(const P& p) {
  ForwardProblem problem;
  REQUIRE(validate(&p, Rules::shapes, problem) == FA3_OK);
  return forward_row(plan(problem, fit_of(problem), assumed_card(132)).forward.row);
}

}  // namespace

TEST_CASE("bad softcap and slopes are refused", "[planned]") {
  constexpr Rules device = Rules::device, shapes = Rules::shapes, reference = Rules::reference;
  // The reference takes negative strides.
  refuse_all(plain, bad_plain, {device, shapes});
  refuse_all(imaginary_packed, bad_packed, {device, shapes, reference});
  refuse_all(with_slopes, bad_with_slopes, {device, shapes, reference});
  refuse_all(with_slopes, bad_pointers, {device, reference});
  refuse_all(in_e4m3, bad_e4m3, {device, shapes, reference});
}

TEST_CASE("what calls with softcap and slopes become", "[planned]") {
  P p = imaginary();
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  CHECK(!accept(p, Rules::device).planned);
  p.softcap = 0x1p-126f;
  ForwardProblem problem = accept(p, Rules::device);
  CHECK((problem.planned && !problem.causal && problem.softcap == 0x1p-126 && problem.alibi_slopes.dim[0] == 0));
  p.softcap = FLT_MAX;
  CHECK(accept(p, Rules::device).softcap == double(FLT_MAX));

  p = with_slopes();
  p.alibi_slopes.stride[0] = 3;
  problem = accept(p, Rules::device);
  CHECK((problem.planned && problem.softcap == 0));
  check_view(problem.alibi_slopes, p.alibi_slopes, {2, 4, 1, 1}, {0, 3, 0, 0});
  p.alibi_slopes = slopes({2, 4}), p.alibi_slopes.stride[0] = 0;
  check_view(accept(p, Rules::device).alibi_slopes, p.alibi_slopes, {2, 4, 1, 1}, {0, 1, 0, 0});
  p = imaginary_packed(), p.alibi_slopes = slopes({3, 4});
  check_view(accept(p, Rules::device).alibi_slopes, p.alibi_slopes, {3, 4, 1, 1}, {4, 1, 0, 0});
}

TEST_CASE("the rows for softcap and slopes, and no others", "[plan][planned]") {
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
      for (const int64_t queries : {1, 500})
        for (const int kind : {0, 1, 2, 3}) {
          P p = imaginary({.batch = 3, .seqlen_q = queries, .seqlen_k = 900, .heads = 8, .heads_kv = 2,
                           .head_dim = head_dim}, dtype);
          p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
          if (kind == 0) window(p, 300, 0);
          if (kind & 1) p.softcap = 50;
          if (kind & 2) p.alibi_slopes = slopes({8});
          const ForwardRow& row = row_for(p);
          INFO(row.name);
          CHECK((row.has(Trait::softcap) == bool(kind & 1) && row.has(Trait::alibi) == bool(kind & 2)));
          CHECK((row.d >= head_dim && row.has(Trait::planned)));
          CHECK((!row.packs_heads() || queries == 1));
          if (kind > 0) CHECK(row.d == (head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256));
        }
}

TEST_CASE("a row for softcap or slopes cannot be named for another call", "[plan][planned]") {
  struct Named {
    const char* kernel;
    int kind;
  };
  for (const auto& [kernel, kind] : {Named{"fa3_fwdplanned_bf16_d64_window_256x64", 0},
                                     {"fa3_fwdplannedsoftcap_bf16_d64_window_256x64", 1},
                                     {"fa3_fwdplannedalibi_bf16_d64_window_256x64", 2},
                                     {"fa3_fwdplannedsoftcapalibi_bf16_d64_window_256x64", 3}})
    for (const int call : {0, 1, 2, 3}) {
      P p = imaginary_packed();
      p.kernel = kernel;
      if (call & 1) p.softcap = 50;
      if (call & 2) p.alibi_slopes = slopes({4});
      INFO(kernel << " for call " << call);
      const fa3_status status = fa3_forward_check(&p);
      CHECK(status == (call == kind ? FA3_OK : invalid));
      if (call != kind) CHECK_THAT(fa3_last_error_message(), Catch::Matchers::ContainsSubstring("which is for calls"));
    }
}

}  // namespace fa3::test
