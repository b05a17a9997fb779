// The rules of the header about FP8 with varlen sequences, pages, windows and sinks.
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "../planned_calls.h"
#include "../validated.h"

namespace fa3::test {
namespace {

// An e4m3 call and what makes it planned, which the message names.
const Change planned_by_one[] = {
    {"mask FA3_MASK_WINDOW", unsupported, [](P& p) { window(p, 3, -1); }},
    {"mask FA3_MASK_CHUNK", unsupported, [](P& p) { chunk(p, 64, 0); }},
    {"cu_seqlens_q", unsupported, [](P& p) { p.cu_seqlens_q = lengths_at(9, 3), p.max_seqlen_q = 4; }},
    {"cu_seqlens_k", unsupported, [](P& p) { p.cu_seqlens_k = lengths_at(9, 3), p.max_seqlen_k = 4; }},
    {"seqused_q", unsupported, [](P& p) { p.seqused_q = lengths_at(9, 2); }},
    {"seqused_k", unsupported, [](P& p) { p.seqused_k = lengths_at(9, 2); }},
    {"leftpad_k", unsupported, [](P& p) { p.leftpad_k = lengths_at(9, 2); }},
    {"page_table", unsupported, [](P& p) { p.page_table = tensor(far_away(9), FA3_DTYPE_INT32, {2, 3}); }},
    {"cache_batch_idx", unsupported, [](P& p) { p.cache_batch_idx = lengths_at(9, 2); }},
    {"sinks", unsupported, [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4}); }},
    {"FA3_FLAG_BATCH_INVARIANT", unsupported, [](P& p) { p.flags |= FA3_FLAG_BATCH_INVARIANT; }},
    {"max_seqlen_k", unsupported, [](P& p) { p.max_seqlen_k = 299; }},
};

// Calls of e4m3, with a scale for each head of each sequence, V's mean and LSE's offset.
P packed_e4m3() {
  P p = packed_call({.head_dim = 80, .head_dim_v = 80}, FA3_DTYPE_E4M3);
  add_scales(p);
  p.v_mean = tensor(far_away(34), FA3_DTYPE_FP32, {3, 3, 80});
  p.lse_offset = tensor(far_away(35), FA3_DTYPE_FP32, {6, 500});
  return p;
}
P paged_e4m3() {
  P p = paged_call(16, 100, {.head_dim = 80, .head_dim_v = 80}, FA3_DTYPE_E4M3);
  add_scales(p);
  p.sinks = tensor(far_away(36), FA3_DTYPE_FP32, {6});
  return p;
}

const Change bad_e4m3[] = {
    {"q_scale.dim[0] is 2, must be 1 or cu_seqlens_q.dim[0] - 1, which is 3", invalid,
     [](P& p) { p.q_scale.dim[0] = 2; }},
    {"q_scale.dim[1] is 3, must be 1 or q.dim[1], which is 6", invalid, [](P& p) { p.q_scale.dim[1] = 3; }},
    {"k_scale.dim[1] is 6, must be 1 or k.dim[1], which is 3", invalid, [](P& p) { p.k_scale.dim[1] = 6; }},
    {"v_scale.dim[0] is 0, must be 1 or", invalid, [](P& p) { p.v_scale.dim[0] = 0; }},
    {"v_scale.rank is 1, must be 3", invalid, [](P& p) { p.v_scale = tensor(far_away(9), FA3_DTYPE_FP32, {3}); }},
    {"k_scale is absent (its rank is 0), and q.dtype is e4m3", invalid, [](P& p) { p.k_scale = {}; }},
    {"v_mean.dim[0] is 2, must equal cu_seqlens_q.dim[0] - 1, which is 3", invalid, [](P& p) { p.v_mean.dim[0] = 2; }},
    {"v_mean.dim[1] is 6, must equal k.dim[1], which is 3", invalid, [](P& p) { p.v_mean.dim[1] = 6; }},
    {"v_mean.dim[2] is 64, must equal v.dim[2], which is 80", invalid, [](P& p) { p.v_mean.dim[2] = 64; }},
    {"lse_offset.rank is 3, must be 2", invalid,
     [](P& p) { p.lse_offset = tensor(far_away(35), FA3_DTYPE_FP32, {3, 6, 300}); }},
    {"lse_offset.dim[0] is 3, must equal q.dim[1], which is 6", invalid, [](P& p) { p.lse_offset.dim[0] = 3; }},
    {"lse_offset.dim[1] is 501, must equal q.dim[0], which is 500", invalid, [](P& p) { p.lse_offset.dim[1] = 501; }},
    {"lse_offset.dtype is bf16, must be fp32", invalid, [](P& p) { p.lse_offset.dtype = FA3_DTYPE_BF16; }},
    {"v.rank is 4, must be 3", invalid,
     [](P& p) { p.v = tensor(p.v.data, FA3_DTYPE_E4M3, {3, 700, 3, 80}); }},
    {"o.dim[2] is 64, must equal v.dim[2], which is 80", invalid, [](P& p) { p.o.dim[2] = 64; }},
};
const Change bad_paged_e4m3[] = {
    {"k_scale.dim[0] is 100, must be 1 or cu_seqlens_q.dim[0] - 1, which is 3", invalid,
     [](P& p) { p.k_scale.dim[0] = 100; }},
    {"k_scale.dim[1] is 2, must be 1 or k.dim[2], which is 3", invalid, [](P& p) { p.k_scale.dim[1] = 2; }},
    {"v.rank is 3, must be 4", invalid, [](P& p) { p.v = tensor(p.v.data, FA3_DTYPE_E4M3, {1600, 3, 80}); }},
    // A sink is compared with scores, so what these lack is asked for without LSE, too.
    {"lse_offset.dim[1] is 7, must equal q.dim[0], which is 500", invalid,
     [](P& p) { p.lse = {}, p.lse_offset = tensor(far_away(35), FA3_DTYPE_FP32, {6, 7}); }},
};

}  // namespace

TEST_CASE("with e4m3, sums on two levels, tiles and scales of blocks go together with nothing of it", "[planned]") {
  for (const Change& planned : planned_by_one) {
    const auto refuse_with = [&](const std::string& text, const P& p) {
      for (const Rules rules : {Rules::device, Rules::shapes, Rules::reference})
        refuse(p, rules, {text.c_str(), unsupported, planned.apply});
    };
    P p = imaginary_e4m3();
    planned.apply(p);
    const std::string with = std::string("cannot be had together with ") + planned.name;
    P two_level = p, tiles = p, blocks = p;
    two_level.flags |= FA3_FLAG_TWO_LEVEL;
    refuse_with("flags has FA3_FLAG_TWO_LEVEL, which " + with, two_level);
    tiles.v = tensor(p.v.data, FA3_DTYPE_E4M3, {2, 2, 19, 32, 16});
    refuse_with("v.rank is 5 (v as tiles), which " + with, tiles);
    if (p.cu_seqlens_q.rank) {
      blocks.q = tensor(p.q.data, FA3_DTYPE_E4M3, {130, 4, 32});
      blocks.o = tensor(p.o.data, FA3_DTYPE_BF16, {130, 4, 32}), blocks.lse = {};
    }
    if (p.cu_seqlens_k.rank) {
      blocks.k = tensor(p.k.data, FA3_DTYPE_E4M3, {300, 2, 32});
      blocks.v = tensor(p.v.data, FA3_DTYPE_E4M3, {300, 2, 32});
    }
    P rows = blocks;
    accept(rows, Rules::device);
    blocks.k_scale = tensor(p.k_scale.data, FA3_DTYPE_FP32, {1, 1, 5});
    refuse_with("k_scale.dim[2] is 5, must be 1: scales of blocks " + with, blocks);
    rows.q_scale = tensor(p.q_scale.data, FA3_DTYPE_FP32, {2, 4, 3});
    refuse_with("q_scale.dim[2] is 3, must be 1: scales of blocks " + with, rows);
  }
  // What says no more than the tensors do is not planned.
  P p = imaginary_e4m3();
  p.max_seqlen_q = 130, p.max_seqlen_k = 300;
  window(p, -1, 0);
  p.k_scale = tensor(p.k_scale.data, FA3_DTYPE_FP32, {1, 1, 5});
  CHECK_FALSE(accept(p, Rules::device).planned);
}

TEST_CASE("bad scales of varlen sequences and pages are refused", "[planned]") {
  refuse_all(packed_e4m3, bad_e4m3, {Rules::device, Rules::shapes, Rules::reference});
  refuse_all(paged_e4m3, bad_paged_e4m3, {Rules::device, Rules::shapes, Rules::reference});
}

TEST_CASE("an e4m3 call with varlen sequences becomes a problem", "[planned]") {
  const P p = packed_e4m3();
  const ForwardProblem problem = accept(p, Rules::device);
  CHECK((problem.planned && problem.batch == 3 && !problem.kv_blocks && !problem.v_tiles));
  check_view(problem.q_scale, p.q_scale, {3, 6, 1}, {6, 1, 0});
  check_view(problem.k_scale, p.k_scale, {3, 3, 1}, {3, 1, 0});
  check_view(problem.v_mean, p.v_mean, {3, 3, 80}, {240, 80, 1});
  check_view(problem.lse_offset, p.lse_offset, {1, 6, 500}, {0, 500, 1});
  P without = p;  // of no use without LSE or a sink, and not looked at
  without.lse = {}, without.lse_offset.dim[0] = 1;
  CHECK(accept(without, Rules::device).lse_offset.data == nullptr);
}

}  // namespace fa3::test
