// Latent attention and head dimensions above 256: which calls are right, what becomes of them, how they are planned.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <string>

#include "../planned_calls.h"
#include "../validated.h"
#include "forward/plan/planned.h"
#include "plan/plans.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

// 3 sequences, of up to 2 queries of 16 heads, on one cache of 40 keys of 576 columns.
constexpr int64_t d = 576, dv = 512, rope = 64, keys = 40;
P one_tensor() {
  P p = imaginary({.batch = 3, .seqlen_q = 2, .seqlen_k = keys, .heads = 16, .heads_kv = 1, .head_dim = d,
                   .head_dim_v = dv});
  p.v = p.k, p.v.dim[3] = dv;
  return p;
}
// The same with a second query; K stands behind V in the cache.
P two_queries() {
  P p = one_tensor();
  p.q = tensor(p.q.data, FA3_DTYPE_BF16, {3, 2, 16, rope}), p.k.dim[3] = rope, move(p.k, 2 * dv);
  p.qv = tensor(far_away(6), FA3_DTYPE_BF16, {3, 2, 16, dv});
  return p;
}
// And on a cache of e4m3, token by token.
P over_e4m3() {
  P p = two_queries();
  change_to_latent_tokens(p, far_away(7));
  return p;
}
P packed_over_e4m3() {
  P p = packed_call({.heads = 16, .heads_kv = 1, .head_dim = rope, .head_dim_v = 304});
  p.v.dtype = FA3_DTYPE_E4M3, p.v_scale = latent_scale(p.v, far_away(7));
  p.qv = tensor(far_away(6), FA3_DTYPE_BF16, {p.q.dim[0], 16, 304});
  return p;
}
P apart() {
  return imaginary({.batch = 3, .seqlen_q = 2, .seqlen_k = keys, .heads = 6, .heads_kv = 2, .head_dim = 384,
                    .head_dim_v = 320});
}
P packed_queries() {
  P p = two_queries();
  p.q = tensor(p.q.data, FA3_DTYPE_BF16, {5, 16, rope}), p.qv = tensor(p.qv.data, FA3_DTYPE_BF16, {5, 16, dv});
  p.o = tensor(p.o.data, FA3_DTYPE_BF16, {5, 16, dv}), p.lse = tensor(p.lse.data, FA3_DTYPE_FP32, {16, 5});
  p.cu_seqlens_q = lengths_at(20, 4), p.max_seqlen_q = 3;
  return p;
}

const Change bad_qv[] = {
    {"qv.rank is 3, must be 4", invalid, [](P& p) { p.qv.rank = 3; }},
    {"qv.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.qv.dtype = FA3_DTYPE_FP16; }},
    {"qv.dtype is 0, must be a fa3_dtype", invalid, [](P& p) { p.qv.dtype = FA3_DTYPE_NONE; }},
    {"qv.dim[0] is 2, must equal q.dim[0], which is 3", invalid, [](P& p) { p.qv.dim[0] = 2; }},
    {"qv.dim[1] is 1, must equal q.dim[1], which is 2", invalid, [](P& p) { p.qv.dim[1] = 1; }},
    {"qv.dim[2] is 8, must equal q.dim[2], which is 16", invalid, [](P& p) { p.qv.dim[2] = 8; }},
    {"qv.dim[3] is 504, must equal v.dim[3], which is 512", invalid, [](P& p) { p.qv.dim[3] = 504; }},
    {"qv.dim[2] is -1, must be from 0", invalid, [](P& p) { p.qv.dim[2] = -1; }},
    {"q.dim[3] (head_dim) is 72; with qv it is at most 64", unsupported, [](P& p) { p.q.dim[3] = p.k.dim[3] = 72; }},
    {"v.dim[3] (head_dim_v) is 520; the largest", unsupported, [](P& p) { p.v.dim[3] = p.o.dim[3] = 520; }},
    {"alibi_slopes and qv cannot be had together", unsupported,
     [](P& p) { p.alibi_slopes = tensor(far_away(9), FA3_DTYPE_FP32, {16}); }},
    {"q.dtype is e4m3, which cannot be had together with qv", unsupported,
     [](P& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.qv}) t->dtype = FA3_DTYPE_E4M3;
       p.q_scale = p.k_scale = p.v_scale = tensor(far_away(9), FA3_DTYPE_FP32, {1, 1, 1});
     }},
};
const Change bad_qv_on_the_device[] = {
    {"qv.stride[3] is 2, must be 1", invalid, [](P& p) { p.qv.stride[3] = 2; }},
    {"qv.stride[1] is 4, must be a multiple of 8", invalid, [](P& p) { p.qv.stride[1] = 4; }},
    {"qv.stride[0] is -8, must be >= 0", invalid, [](P& p) { p.qv.stride[0] = -8; }},
};
const Change bad_pointers[] = {
    {"qv.data is NULL", invalid, [](P& p) { p.qv.data = nullptr; }},
    {"o may overlap qv", invalid, [](P& p) { p.qv.data = p.o.data; }},
    {"lse may overlap qv", invalid, [](P& p) { p.qv.data = p.lse.data, move(p.qv, 16); }},
};
const Change bad_alignment[] = {{"qv.data is 0x", invalid, [](P& p) { move(p.qv, 8); }}};
const Change bad_packed_qv[] = {
    {"qv.rank is 4, must be 3", invalid, [](P& p) { p.qv.rank = 4; }},
    {"qv.dim[0] is 4, must equal q.dim[0], which is 5", invalid, [](P& p) { p.qv.dim[0] = 4; }},
    {"qv.dim[2] is 8, must equal v.dim[3], which is 512", invalid, [](P& p) { p.qv.dim[2] = 8; }},
};
const Change bad_latent[] = {
    {"v_scale is absent (its rank is 0), and v.dtype is e4m3", invalid, [](P& p) { p.v_scale = {}; }},
    {"v_scale.rank is 3, must be 4", invalid, [](P& p) { p.v_scale = tensor(far_away(9), FA3_DTYPE_FP32, {1, 1, 1}); }},
    {"v_scale.dtype is bf16, must be fp32", invalid, [](P& p) { p.v_scale.dtype = FA3_DTYPE_BF16; }},
    {"v_scale.dim[0] is 1, must equal v.dim[0], which is 3", invalid, [](P& p) { p.v_scale.dim[0] = 1; }},
    {"v_scale.dim[1] is 39, must equal v.dim[1], which is 40", invalid, [](P& p) { p.v_scale.dim[1] = 39; }},
    {"v_scale.dim[2] is 2, must equal v.dim[2], which is 1", invalid, [](P& p) { p.v_scale.dim[2] = 2; }},
    {"v_scale.dim[3] is 1, must be the groups of 128 columns in v.dim[3], 4", invalid,
     [](P& p) { p.v_scale.dim[3] = 1; }},
    {"v_scale.dim[1] is -1, must be from 0", invalid, [](P& p) { p.v_scale.dim[1] = -1; }},
    {"k_scale.rank is 3, must be 0 (absent)", invalid,
     [](P& p) { p.k_scale = tensor(far_away(9), FA3_DTYPE_FP32, {1, 1, 1}); }},
    {"q_scale.rank is 3, must be 0 (absent)", invalid,
     [](P& p) { p.q_scale = tensor(far_away(9), FA3_DTYPE_FP32, {1, 1, 1}); }},
    {"v_mean.rank is 3, must be 0 (absent)", invalid,
     [](P& p) { p.v_mean = tensor(far_away(9), FA3_DTYPE_FP32, {3, 1, dv}); }},
    {"v.dtype is e4m3, must be bf16 as q's", invalid, [](P& p) { p.qv = {}; }},
    {"k.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.k.dtype = FA3_DTYPE_FP16; }},
    {"v.dim[3] (head_dim_v) is 504, must be a multiple of 16 from 16 to 512", invalid,
     [](P& p) { p.v.dim[3] = p.o.dim[3] = p.qv.dim[3] = 504; }},
    {"v.dtype is e4m3, and k.dtype is not, which cannot be had together with softcap", unsupported,
     [](P& p) { p.softcap = 30; }},
    {"alibi_slopes", unsupported, [](P& p) { p.alibi_slopes = tensor(far_away(9), FA3_DTYPE_FP32, {16}); }},
};
const Change bad_latent_on_the_device[] = {
    {"v_scale.stride[3] is 2, must be 1", invalid, [](P& p) { p.v_scale.stride[3] = 2; }},
    {"v_scale.stride[1] is 166, must be a multiple of 4", invalid, [](P& p) { p.v_scale.stride[1] = 166; }},
    {"v_scale.stride[0] is -4, must be >= 0", invalid, [](P& p) { p.v_scale.stride[0] = -4; }},
    {"v.stride[1] is 648, must be a multiple of 16", invalid, [](P& p) { p.v.stride[1] = 648; }},
};
const Change bad_latent_pointers[] = {
    {"v_scale.data is NULL", invalid, [](P& p) { p.v_scale.data = nullptr; }},
    {"o may overlap v_scale", invalid, [](P& p) { p.v_scale.data = p.o.data; }},
    {"lse may overlap v_scale", invalid, [](P& p) { p.v_scale.data = p.lse.data; }},
};
const Change bad_latent_alignment[] = {{"v_scale.data is 0x", invalid, [](P& p) { move(p.v_scale, 8); }}};
const Change bad_packed_latent[] = {
    {"v_scale.rank is 4, must be 3", invalid, [](P& p) { p.v_scale.rank = 4; }},
    {"v_scale.dim[0] is 1099, must equal v.dim[0], which is 1100", invalid, [](P& p) { p.v_scale.dim[0] = 1099; }},
    {"v_scale.dim[1] is 2, must equal v.dim[1], which is 1", invalid, [](P& p) { p.v_scale.dim[1] = 2; }},
    {"v_scale.dim[2] is 2, must be the groups of 128 columns in v.dim[2], 3", invalid,
     [](P& p) { p.v_scale.dim[2] = 2; }},
};
const Change bad_wide[] = {
    {"q.dim[3] (head_dim) is 584; the largest supported is 576", unsupported,
     [](P& p) { p.q.dim[3] = p.k.dim[3] = 584; }},
    {"v.dim[3] (head_dim_v) is 520; the largest supported is 512", unsupported, [](P& p) { p.v.dim[3] = 520; }},
    {"q.dim[3] (head_dim) is 300, must be a multiple of 8 from 8 to 576", invalid,
     [](P& p) { p.q.dim[3] = p.k.dim[3] = 300; }},
    {"alibi_slopes and head_dim above 256 cannot", unsupported,
     [](P& p) { p.alibi_slopes = tensor(far_away(9), FA3_DTYPE_FP32, {6}); }},
    {"alibi_slopes and head_dim_v above 256 cannot be had together", unsupported,
     [](P& p) {
       p.softcap = 1, p.q.dim[3] = p.k.dim[3] = 64;
       p.alibi_slopes = tensor(far_away(9), FA3_DTYPE_FP32, {6});
     }},
    {"q.dim[3] (head_dim) is 384; the largest supported is 256", unsupported,
     [](P& p) {
       p.k.dtype = p.v.dtype = FA3_DTYPE_E4M3;
       p.k_scale = p.v_scale = tensor(far_away(9), FA3_DTYPE_FP32, {1, 1, 1});
     }},
    {"k.dim[1] (sequence length) is 1073741823; with head_dim above 256 it is at most 1073739776", unsupported,
     [](P& p) { p.k.dim[1] = p.v.dim[1] = (1 << 30) - 1; }},
};
// Of one tensor, above 512.
const Change bad_one_tensor[] = {
    {"q.dim[3] (head_dim) is 576; above 512 v must be the first columns of k, all but 64 of them, and v.data is 0x",
     unsupported, [](P& p) { move(p.v, 128); }},
    {"and v.stride[1] is 512, that of k 576", unsupported, [](P& p) { p.v.stride[1] = 512; }},
    {"and v.stride[0] is 8, that of k 23040", unsupported, [](P& p) { p.v.stride[0] = 8; }},
    {"and head_dim_v is 504, not from 512 to 575", unsupported, [](P& p) { p.v.dim[3] = p.o.dim[3] = 504; }},
};
const Change bad_paged_tensor[] = {
    {"q.dim[2] (head_dim) is 576; above 512 v must be", unsupported, [](P& p) { p.v.data = far_away(40); }},
    {"and v.stride[0] is 8, that of k 576", unsupported, [](P& p) { p.v.stride[0] = 8; }},
};
P packed_tensor_of_keys() {
  P p = packed_call({.heads = 16, .heads_kv = 1, .head_dim = d, .head_dim_v = dv});
  p.v = p.k, p.v.dim[2] = dv;
  return p;
}

int64_t name_row(const P& p, const char* part) {
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  const fa3_status status = fa3_forward_kernel_info(&p, 132, 1, &info);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
  CHECK_THAT(info.name, ContainsSubstring(part));
  return info.tiles;
}

}  // namespace

TEST_CASE("bad second queries and head dimensions above 256 are refused", "[latent]") {
  constexpr Rules device = Rules::device, shapes = Rules::shapes, reference = Rules::reference;
  refuse_all(two_queries, bad_qv, {device, shapes, reference});
  refuse_all(two_queries, bad_qv_on_the_device, {device, shapes});
  refuse_all(two_queries, bad_pointers, {device, reference});
  refuse_all(two_queries, bad_alignment, {device});
  refuse_all(packed_queries, bad_packed_qv, {device, shapes, reference});
  refuse_all(over_e4m3, bad_latent, {device, shapes, reference});
  refuse_all(over_e4m3, bad_latent_on_the_device, {device, shapes});
  refuse_all(over_e4m3, bad_latent_pointers, {device, reference});
  refuse_all(over_e4m3, bad_latent_alignment, {device});
  refuse_all(packed_over_e4m3, bad_packed_latent, {device, shapes, reference});
  refuse_all(apart, bad_wide, {device, shapes});
  refuse_all(one_tensor, bad_one_tensor, {device, shapes});
  refuse_all(packed_tensor_of_keys, bad_paged_tensor, {device, shapes});
}

TEST_CASE("a call with V in K is one with a second query", "[latent]") {
  const P p = one_tensor();
  const ForwardProblem problem = accept(p, Rules::device);
  CHECK((problem.planned && problem.v_in_k && problem.has_qv() && !problem.causal));
  CHECK((problem.head_dim == rope && problem.head_dim_v == dv && problem.asked_head_dim() == d));
  CHECK(problem.softmax_scale == 1 / std::sqrt(576.0));
  const auto at = [](const fa3_tensor& t, int64_t columns) {
    fa3_tensor moved = t;
    move(moved, 2 * columns);
    return moved;
  };
  check_view(problem.q, at(p.q, dv), {3, 2, 16, rope}, {2 * 16 * d, 16 * d, d, 1});
  check_view(problem.qv, p.q, {3, 2, 16, dv}, {2 * 16 * d, 16 * d, d, 1});
  check_view(problem.k, at(p.k, dv), {3, keys, 1, rope}, {keys * d, d, 0, 1});
  check_view(problem.v, p.v, {3, keys, 1, dv}, {keys * d, d, 0, 1});

  // As it is told, on the host, where there is no kernel to be pleased.
  const ForwardProblem host = accept(p, Rules::reference);
  CHECK((!host.has_qv() && host.head_dim == d && host.softmax_scale == problem.softmax_scale));
  // The same call, told with a second query.
  const ForwardProblem told = accept(two_queries(), Rules::device);
  CHECK((told.has_qv() && !told.v_in_k && told.softmax_scale == problem.softmax_scale && told.head_dim == rope));
  check_view(told.qv, two_queries().qv, {3, 2, 16, dv}, {2 * 16 * dv, 16 * dv, dv, 1});
  P scaled = two_queries();
  scaled.softmax_scale = 0.25f;
  CHECK(accept(scaled, Rules::device).softmax_scale == 0.25);
}

TEST_CASE("a call over a latent cache of e4m3", "[latent]") {
  const P p = over_e4m3(), packed = packed_over_e4m3();
  for (const Rules rules : {Rules::device, Rules::shapes, Rules::reference}) {
    const ForwardProblem problem = accept(p, rules);
    CHECK((problem.planned && problem.has_qv() && problem.is_latent() && !problem.widens_keys()));
    CHECK((problem.v_scale.data == nullptr && !problem.kv_blocks && !problem.v_tiles));
    check_view(problem.k, p.k, {3, keys, 1, rope}, {keys * 328, 328, 0, 1});
    check_view(problem.v, p.v, {3, keys, 1, dv}, {keys * 656, 656, 0, 1});
    check_view(problem.latent_scale, p.v_scale, {3, keys, 1, 4}, {keys * 164, 164, 0, 1});
    const ForwardProblem packed_problem = accept(packed, rules);
    CHECK((packed_problem.is_latent() && packed_problem.head_dim_v == 304));
    check_view(packed_problem.latent_scale, packed.v_scale, {1, 1100, 1, 3}, {0, 4, 0, 1});
  }
  for (const P& other : {two_queries(), one_tensor()}) {
    const ForwardProblem problem = accept(other, Rules::device);
    CHECK((!problem.is_latent() && problem.latent_scale.data == nullptr));
  }
  // Strides that are never used, and what no key is read of.
  P any = p;
  any.v_scale.stride[2] = 5, any.v_scale.stride[3] = 1;
  accept(any, Rules::device);
  any.k.dim[1] = any.v.dim[1] = any.v_scale.dim[1] = 0, any.k.data = any.v.data = any.v_scale.data = nullptr;
  accept(any, Rules::device);
}

TEST_CASE("which calls have V in K", "[latent]") {
  const auto v_in_k = [](int64_t q_dim, int64_t v_dim, auto change, Rules rules = Rules::device) {
    P p = one_tensor();
    p.q.dim[3] = p.k.dim[3] = q_dim, p.v.dim[3] = p.o.dim[3] = v_dim;
    change(p);
    return accept(p, rules).v_in_k;
  };
  const auto as_it_is = [](P&) {};
  for (const int64_t more : {8, 32, 64}) CHECK(v_in_k(256 + more, 256, as_it_is));
  CHECK(v_in_k(320, 264, as_it_is));
  CHECK_FALSE(v_in_k(320, 248, as_it_is));  // more than 64 columns behind V
  CHECK_FALSE(v_in_k(512, 512, as_it_is));  // none
  CHECK_FALSE(v_in_k(256, 192, as_it_is));  // kernels for both as they are
  CHECK_FALSE(v_in_k(320, 256, [](P& p) { move(p.v, 16); }));
  CHECK_FALSE(v_in_k(320, 256, [](P& p) { p.v.stride[1] += 8; }));
  CHECK_FALSE(v_in_k(320, 256, [](P& p) { p.kernel = "fa3_fwdplannedwide_bf16_d512x512_window_64x64"; }));
  CHECK(v_in_k(320, 256, [](P& p) { p.kernel = "fa3_fwdplannedmla_bf16_d64x512_window_64x128"; }));
  // A stride that is never used may be any.
  CHECK(v_in_k(320, 256, [](P& p) { p.v.stride[2] = 5; }));
  // Before there is memory, and where there is none.
  CHECK(v_in_k(320, 256, [](P& p) { p.v.data = p.k.data = nullptr; }, Rules::shapes));
  CHECK_FALSE(v_in_k(320, 256, [](P& p) { p.v.data = nullptr; }, Rules::shapes));
  CHECK(v_in_k(576, 512, [](P& p) { p.k.dim[1] = p.v.dim[1] = 0, p.k.data = nullptr; }));
}

TEST_CASE("wide calls run on rows of their own, with any number of queries", "[latent]") {
  CHECK(name_row(one_tensor(), "fa3_fwdplannedmla32rows_bf16_") == 3);
  CHECK(name_row(two_queries(), "fa3_fwdplannedmla32rows_bf16_") == 3);
  CHECK(name_row(packed_queries(), "fa3_fwdplannedmla_bf16_") == 3);
  CHECK(name_row(apart(), "fa3_fwdplannedwide_bf16_") == 6);
  P p = two_queries();
  for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.qv}) t->dtype = FA3_DTYPE_FP16;
  name_row(p, "fa3_fwdplannedmla32rows_fp16_");
  for (fa3_tensor* t : {&p.q, &p.o, &p.qv}) t->dim[1] = 1;
  p.lse.dim[2] = 1;
  name_row(p, "fa3_fwdplannedmla16rows_fp16_");
  p.flags = FA3_FLAG_BATCH_INVARIANT;
  name_row(p, "fa3_fwdplannedmla_fp16_");
  p.softcap = 30;
  name_row(p, "fa3_fwdplannedmlasoftcap_fp16_");
  p = apart(), p.softcap = 30;
  CHECK(name_row(p, "fa3_fwdplannedwidesoftcap_bf16_") == 6);
  // Over e4m3, as queries and heads, these to a power of two, make up to 16 rows, up to 32, or more.
  CHECK(name_row(over_e4m3(), "fa3_fwdplannedfp8mla32rows_bf16_") == 3);
  CHECK(name_row(packed_over_e4m3(), "fa3_fwdplannedfp8mla_bf16_") > 3);
  const auto with_rows = [](int64_t queries, int64_t heads) {
    P few = over_e4m3();
    few.q = tensor(few.q.data, FA3_DTYPE_FP16, {3, queries, heads, rope}), few.k.dtype = FA3_DTYPE_FP16;
    few.qv = tensor(few.qv.data, FA3_DTYPE_FP16, {3, queries, heads, dv});
    few.o = tensor(few.o.data, FA3_DTYPE_FP16, {3, queries, heads, dv});
    few.lse = tensor(few.lse.data, FA3_DTYPE_FP32, {3, heads, queries});
    return few;
  };
  for (const auto& [queries, heads] : {std::pair{1, 16}, {16, 1}, {4, 3}, {1, 9}})
    name_row(with_rows(queries, heads), "fa3_fwdplannedfp8mla16rows_fp16_");
  for (const auto& [queries, heads] : {std::pair{1, 32}, {1, 17}, {5, 3}, {8, 4}, {17, 1}})
    name_row(with_rows(queries, heads), "fa3_fwdplannedfp8mla32rows_fp16_");
  for (const auto& [queries, heads] : {std::pair{1, 33}, {9, 3}, {1, 128}, {300, 16}})
    name_row(with_rows(queries, heads), "fa3_fwdplannedfp8mla_fp16_");
  p = with_rows(1, 16), p.flags = FA3_FLAG_BATCH_INVARIANT;
  name_row(p, "fa3_fwdplannedfp8mla_fp16_");
  // Tiles of 64 rows, four of 16 heads' queries each.
  const auto with_queries = [](int64_t queries, uint64_t flags) {
    P many = imaginary({.batch = 1, .seqlen_q = queries, .seqlen_k = 100, .heads = 16, .heads_kv = 1, .head_dim = 512});
    many.flags = flags;
    return many;
  };
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_BATCH_INVARIANT}})
    for (const int64_t queries : {1, 64, 65, 3000})
      CHECK(name_row(with_queries(queries, flags), "fa3_fwdplannedwide_") == (queries + 3) / 4);
  // Narrow ones never do, however many queries there are.
  for (const int64_t queries : {1, 64, 65, 3000}) {
    P narrow = imaginary({.batch = 1, .seqlen_q = queries, .seqlen_k = 100, .heads = 16, .heads_kv = 1,
                          .head_dim = 256});
    window(narrow, 5, 0);
    name_row(narrow, "_d256_");
  }
}

TEST_CASE("long caches of a few heads are split", "[latent]") {
  ForwardProblem problem;
  P p = imaginary({.batch = 2, .seqlen_q = 1, .seqlen_k = 30000, .heads = 128, .heads_kv = 1, .head_dim = d,
                   .head_dim_v = dv});
  p.v = p.k, p.v.dim[3] = dv;
  REQUIRE(validate(&p, Rules::shapes, problem) == FA3_OK);
  const ForwardPlan& made = plan(problem, fit_of(problem), assumed_card(132));
  const ForwardRow& row = forward_row(made.forward.row);
  CHECK((row.has(Trait::qv) && row.has(Trait::multicast) && made.forward.tiles.count() == 2));
  CHECK(made.forward.pieces.count() >= 66);
  REQUIRE(made.launch_count == 3);
  CHECK((made.launches[1].grid == 132 && made.schedule_bytes > 0));
  CHECK((made.launches[2].step == ForwardStep::add_parts && made.launches[2].grid == 264));
  // Slots of 128 rows of V's columns.
  CHECK(made.workspace_bytes >= size_t(made.forward.slots) * 128 * (dv * 4 + 16));
}

TEST_CASE("kernels for a second query and without one are not taken for each other", "[latent]") {
  const auto refused = [](P p, const char* kernel, const char* why) {
    p.kernel = kernel;
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    expect(fa3_forward_kernel_info(&p, 132, 0, &info), FA3_ERROR_INVALID_ARGUMENT, why);
  };
  refused(two_queries(), "fa3_fwdplannedwide_bf16_d512x512_window_64x64", "which is for calls without qv");
  refused(apart(), "fa3_fwdplannedmla_bf16_d64x512_window_64x128", "which is for calls with qv");
  refused(one_tensor(), "fa3_fwdplannedpacked_bf16_d256_window_64x32",
          "head_dim up to 256; q.dim[3] (head_dim) is 576");
  refused(two_queries(), "fa3_fwdpacked_bf16_d256_full_64x32", "which is for calls without lengths");
  refused(two_queries(), "fa3_fwdplannedfp8mla_bf16_d64x512_window_64x128",
          "which is for v of e4m3; v.dtype is bf16");
  refused(one_tensor(), "fa3_fwdplannedfp8mla32rows_bf16_d64x512_window_64x128", "which is for v of e4m3");
  refused(over_e4m3(), "fa3_fwdplannedmla_bf16_d64x512_window_64x128", "which is for v of q's dtype; v.dtype is e4m3");
  refused(over_e4m3(), "fa3_fwdplannedmlacluster_bf16_d64x512_window_128x128", "which is for v of q's dtype");
  P p = over_e4m3();
  p.kernel = "fa3_fwdplannedfp8mla_bf16_d64x512_window_64x128";
  name_row(p, p.kernel);
}

}  // namespace fa3::test
