// The rules of the header about lengths, windows and sinks of the backward pass, and what such a call becomes.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "../refused.h"
#include "../planned_calls.h"
#include "backward/backward.h"
#include "device/card.h"
#include "error.h"
#include "plan/backward_list.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using B = fa3_backward_params;

constexpr int32_t most = INT32_MAX;

using Change = ChangeOf<B>;

// The gradients of a forward call; dlse and dsinks, too.
B backward_of(const fa3_forward_params& f) {
  const auto at = [](fa3_tensor t, uintptr_t place) {
    t.data = far_away(place);
    return t;
  };
  B p = FA3_BACKWARD_PARAMS_INIT;
  p.q = f.q, p.k = f.k, p.v = f.v, p.o = f.o, p.lse = f.lse;
  p.dout = at(f.o, 30), p.dlse = at(f.lse, 31), p.dq = at(f.q, 32), p.dk = at(f.k, 33), p.dv = at(f.v, 34);
  p.sinks = tensor(far_away(35), FA3_DTYPE_FP32, {4}), p.dsinks = tensor(far_away(36), FA3_DTYPE_FP32, {4});
  p.cu_seqlens_q = f.cu_seqlens_q, p.cu_seqlens_k = f.cu_seqlens_k;
  p.max_seqlen_q = f.max_seqlen_q, p.max_seqlen_k = f.max_seqlen_k;
  return p;
}
B batched() { return backward_of(imaginary()); }
// Three sequences, of up to 7 queries (12 in all) and 9 keys (17 in all), 4 heads over 2, head_dim 16.
B packed() { return backward_of(imaginary_packed()); }

void window(B& p, int32_t left, int32_t right) {
  p.mask = FA3_MASK_WINDOW, p.window_left = left, p.window_right = right;
}
void chunk(B& p, int32_t size, int32_t right) {
  p.mask = FA3_MASK_CHUNK, p.window_left = size, p.window_right = right;
}
fa3_tensor slopes(std::initializer_list<int64_t> dim) { return tensor(far_away(37), FA3_DTYPE_FP32, dim); }
void rows_of_k(B& p, int64_t rows) { p.k.dim[0] = p.v.dim[0] = p.dk.dim[0] = p.dv.dim[0] = rows; }

// Refused whatever the pointers are: of a call with batched tensors,
const Change bad_batched[] = {
    {"flags is 0x4, has bits", invalid, [](B& p) { p.flags = FA3_FLAG_BATCH_INVARIANT; }},
    {"FA3_FLAG_CENTERED_K and sinks cannot be had together", unsupported,
     [](B& p) { p.flags = FA3_FLAG_CENTERED_K | FA3_FLAG_DETERMINISTIC; }},
    {"FA3_FLAG_CENTERED_K and dlse cannot be had together", unsupported,
     [](B& p) { p.flags = FA3_FLAG_CENTERED_K, p.sinks = p.dsinks = {}; }},
    {"FA3_FLAG_CENTERED_K and softcap cannot be had together", unsupported,
     [](B& p) { p.flags = FA3_FLAG_CENTERED_K, p.sinks = p.dsinks = p.dlse = {}, p.softcap = 2; }},
    {"FA3_FLAG_CENTERED_K and alibi_slopes cannot be had together", unsupported,
     [](B& p) { p.flags = FA3_FLAG_CENTERED_K, p.sinks = p.dsinks = p.dlse = {}, p.alibi_slopes = slopes({4}); }},
    {"flags is 0x20, has bits", invalid, [](B& p) { p.flags = 32; }},
    {"dq.dtype is bf16, must be fp32 with FA3_FLAG_ACCUMULATE", invalid, [](B& p) { p.flags = FA3_FLAG_ACCUMULATE; }},
    {"mask is 99, must be a fa3_mask", invalid, [](B& p) { p.mask = 99; }},
    {"window_left is 1, must be 0: mask is neither FA3_MASK_WINDOW nor FA3_MASK_CHUNK", invalid,
     [](B& p) { p.window_left = 1; }},
    {"window_right is -1, must be 0: mask is neither", invalid,
     [](B& p) { p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.window_right = -1; }},
    {"window_left is -2, must be at least -1", invalid, [](B& p) { window(p, -2, 0); }},
    {"window_right is -3, must be at least -1", invalid, [](B& p) { window(p, 0, -3); }},
    {"window_left is 0, must be at least 1: a chunk has so many positions", invalid, [](B& p) { chunk(p, 0, 0); }},
    {"window_right is 1, must be 0 or -1 with FA3_MASK_CHUNK", invalid, [](B& p) { chunk(p, 4, 1); }},
    {"max_seqlen_q is 2, must be 0 or q.dim[1], which is 3, without cu_seqlens_q", invalid,
     [](B& p) { p.max_seqlen_q = 2; }},
    {"max_seqlen_k is 6, must be from 0 to k.dim[1], which is 5", invalid, [](B& p) { p.max_seqlen_k = 6; }},
    {"max_seqlen_k is -1, must be from 0", invalid, [](B& p) { p.max_seqlen_k = -1; }},
    {"sinks.dtype is bf16, must be fp32", invalid, [](B& p) { p.sinks.dtype = FA3_DTYPE_BF16; }},
    {"sinks.rank is 2, must be 1", invalid, [](B& p) { p.sinks.rank = 2; }},
    {"sinks.dim[0] is 2, must be the query heads, 4", invalid, [](B& p) { p.sinks.dim[0] = 2; }},
    {"sinks.stride[0] is -1, must be >= 0", invalid, [](B& p) { p.sinks.stride[0] = -1; }},
    {"dsinks.rank is 1, must be 0 (absent) without sinks", invalid, [](B& p) { p.sinks = {}; }},
    {"dsinks.dtype is fp16, must be fp32", invalid, [](B& p) { p.dsinks.dtype = FA3_DTYPE_FP16; }},
    {"dsinks.dtype is int32, which only lengths", invalid, [](B& p) { p.dsinks.dtype = FA3_DTYPE_INT32; }},
    {"dsinks.rank is -1, must be 1", invalid, [](B& p) { p.dsinks.rank = -1; }},
    {"dsinks.dim[0] is 5, must be the query heads, 4", invalid, [](B& p) { p.dsinks.dim[0] = 5; }},
    {"dsinks.stride[0] is 0, must be > 0", invalid, [](B& p) { p.dsinks.stride[0] = 0; }},
    {"dsinks.stride[0] is -1, must be > 0", invalid, [](B& p) { p.dsinks.stride[0] = -1; }},
    {"softcap is -1, must be finite and > 0, or 0 for none", invalid, [](B& p) { p.softcap = -1; }},
    {"softcap is inf, must be", invalid, [](B& p) { p.softcap = INFINITY; }},
    {"reserved is 1, must be 0", invalid, [](B& p) { p.reserved = 1; }},
    {"alibi_slopes.dtype is fp16, must be fp32", invalid,
     [](B& p) { p.alibi_slopes = tensor(far_away(37), FA3_DTYPE_FP16, {4}); }},
    {"alibi_slopes.dim[0] is 3, must be q.dim[0], 2", invalid, [](B& p) { p.alibi_slopes = slopes({3, 4}); }},
    {"alibi_slopes.dim[0] is 3, must be the query heads, 4", invalid, [](B& p) { p.alibi_slopes = slopes({3}); }},
    {"alibi_slopes and mask FA3_MASK_CHUNK cannot be had together", unsupported,
     [](B& p) { p.alibi_slopes = slopes({4}), chunk(p, 4, 0); }},
    {"seqused_q.dim[0] is 3, must be q.dim[0], 2", invalid, [](B& p) { p.seqused_q = lengths_at(9, 3); }},
    {"seqused_k.dtype is bf16, must be int32", invalid,
     [](B& p) { p.seqused_k = tensor(far_away(9), FA3_DTYPE_BF16, {2}); }},
    {"k.dim[1] (sequence length) is 1073741823; with sinks it is at most 1073739776", unsupported,
     [](B& p) {
       for (fa3_tensor* t : {&p.k, &p.v, &p.dk, &p.dv}) t->dim[1] = (1 << 30) - 1;
     }},
};

// and of one with packed queries and keys.
const Change bad_packed[] = {
    {"q.rank is 4, must be 3", invalid, [](B& p) { p.q.rank = 4; }},
    {"k.rank is 4, must be 3", invalid, [](B& p) { p.k.rank = 4; }},
    {"o.rank is 4, must be 3", invalid, [](B& p) { p.o.rank = 4; }},
    {"dout.rank is 2, must be 3", invalid, [](B& p) { p.dout.rank = 2; }},
    {"dq.rank is 4, must be 3", invalid, [](B& p) { p.dq.rank = 4; }},
    {"dk.rank is 4, must be 3", invalid, [](B& p) { p.dk.rank = 4; }},
    {"dv.rank is 4, must be 3", invalid, [](B& p) { p.dv.rank = 4; }},
    {"lse.rank is 3, must be 2", invalid, [](B& p) { p.lse.rank = 3; }},
    {"dlse.rank is 3, must be 2", invalid, [](B& p) { p.dlse.rank = 3; }},
    {"dq.rank is 3, must be 4", invalid, [](B& p) { p.cu_seqlens_q = {}; }},
    {"dk.rank is 3, must be 4", invalid, [](B& p) { p.cu_seqlens_k = {}; }},
    {"dq.dim[0] is 11, must equal q.dim[0], which is 12", invalid, [](B& p) { p.dq.dim[0] = 11; }},
    {"dout.dim[0] is 13, must equal o.dim[0], which is 12", invalid, [](B& p) { p.dout.dim[0] = 13; }},
    {"o.dim[2] is 16, must equal v.dim[2], which is 24", invalid, [](B& p) { p.v.dim[2] = 24; }},
    {"dk.dim[0] is 16, must equal k.dim[0], which is 17", invalid, [](B& p) { p.dk.dim[0] = 16; }},
    {"dv.dim[2] is 8, must equal v.dim[2], which is 16", invalid, [](B& p) { p.dv.dim[2] = 8; }},
    {"k.dim[2] is 24, must equal q.dim[2], which is 16", invalid, [](B& p) { p.k.dim[2] = 24; }},
    {"k.dim[1] is 3, must divide the query heads, q.dim[1], which is 4", invalid,
     [](B& p) {
       for (fa3_tensor* t : {&p.k, &p.v, &p.dk, &p.dv}) t->dim[1] = 3;
     }},
    {"lse.dim[1] is 4, must equal q.dim[0], which is 12", invalid, [](B& p) { p.lse.dim[1] = 4; }},
    {"dlse.dim[0] is 12, must equal q.dim[1], which is 4", invalid, [](B& p) { p.dlse.dim[0] = 12; }},
    {"q.dim[2] (head_dim) is 12, must be a multiple of 8", invalid, [](B& p) { p.q.dim[2] = 12; }},
    {"v.dim[2] (head_dim_v) is 264; the largest", unsupported, [](B& p) { p.v.dim[2] = 264; }},
    {"dq.stride[0] is 0, must be > 0", invalid, [](B& p) { p.dq.stride[0] = 0; }},
    {"dv.stride[0] is 16: elements of an output may overlap", invalid, [](B& p) { p.dv.stride[0] = 16; }},
    {"dout.stride[0] is 4, must be a multiple of 8", invalid, [](B& p) { p.dout.stride[0] = 4; }},
    {"cu_seqlens_q.dtype is fp32, must be int32", invalid, [](B& p) { p.cu_seqlens_q.dtype = FA3_DTYPE_FP32; }},
    {"cu_seqlens_q.dim[0] is 0, must be the number of sequences and 1", invalid,
     [](B& p) { p.cu_seqlens_q.dim[0] = 0; }},
    {"cu_seqlens_k.dim[0] is 3, must be cu_seqlens_q.dim[0], 4", invalid, [](B& p) { p.cu_seqlens_k.dim[0] = 3; }},
    {"cu_seqlens_k.stride[0] is 0, must be 1", invalid, [](B& p) { p.cu_seqlens_k.stride[0] = 0; }},
    {"seqused_k.dim[0] is 4, must be cu_seqlens_q.dim[0] - 1, 3", invalid,
     [](B& p) { p.seqused_k = lengths_at(9, 4); }},
    {"max_seqlen_q is 0, must be at least 1 with cu_seqlens_q", invalid, [](B& p) { p.max_seqlen_q = 0; }},
    {"max_seqlen_k is -9, must be at least 1", invalid, [](B& p) { p.max_seqlen_k = -9; }},
    {"k.dim[0] (rows) is 2147483647; with cu_seqlens_q it is", unsupported, [](B& p) { rows_of_k(p, most); }},
    {"k.dim[0] is 2, must be cu_seqlens_q.dim[0] - 1, 3", invalid,
     [](B& p) {
       const B plain = batched();
       p.k = plain.k, p.v = plain.v, p.dk = plain.dk, p.dv = plain.dv, p.cu_seqlens_k = {}, p.max_seqlen_k = 0;
     }},
};

// Wrong in where the tensors lie.
const Change bad_pointers[] = {
    {"dsinks.data is NULL", invalid, [](B& p) { p.dsinks.data = nullptr; }},
    {"sinks.data is NULL", invalid, [](B& p) { p.sinks.data = nullptr, p.dsinks = {}; }},
    {"dsinks.data is 0x", invalid, [](B& p) { move(p.dsinks, 2); }},
    {"cu_seqlens_q.data is NULL", invalid, [](B& p) { p.cu_seqlens_q.data = nullptr; }},
    {"seqused_k.data is NULL", invalid, [](B& p) { p.seqused_k = lengths_at(0, 3); }},
    {"dsinks may overlap sinks", invalid, [](B& p) { p.dsinks.data = p.sinks.data; }},
    {"dsinks may overlap lse", invalid, [](B& p) { p.dsinks.data = p.lse.data, move(p.dsinks, 4 * 12 * 4 - 4); }},
    {"dsinks may overlap dlse", invalid, [](B& p) { p.dsinks.data = p.dlse.data, move(p.dsinks, -12); }},
    {"dq may overlap dsinks", invalid, [](B& p) { p.dsinks.data = p.dq.data; }},
    {"dk may overlap dsinks", invalid, [](B& p) { p.dsinks.data = p.dk.data; }},
    {"dv may overlap dsinks", invalid, [](B& p) { p.dsinks.data = p.dv.data; }},
    {"dsinks may overlap q", invalid, [](B& p) { p.dsinks.data = p.q.data; }},
    {"dsinks may overlap cu_seqlens_q", invalid, [](B& p) { p.dsinks.data = p.cu_seqlens_q.data; }},
    {"dq may overlap cu_seqlens_k", invalid, [](B& p) { p.cu_seqlens_k.data = p.dq.data; }},
    {"dk may overlap seqused_q", invalid,
     [](B& p) { p.seqused_q = lengths_at(8, 3), p.seqused_q.data = p.dk.data; }},
    {"dv may overlap seqused_k", invalid,
     [](B& p) { p.seqused_k = lengths_at(8, 3), p.seqused_k.data = p.dv.data, move(p.seqused_k, -8); }},
    {"dv may overlap sinks", invalid, [](B& p) { p.sinks.data = p.dv.data; }},
    {"alibi_slopes.data is NULL", invalid, [](B& p) { p.alibi_slopes = slopes({4}), p.alibi_slopes.data = nullptr; }},
    {"dk may overlap alibi_slopes", invalid,
     [](B& p) { p.alibi_slopes = slopes({4}), p.alibi_slopes.data = p.dk.data; }},
    {"dq may overlap dk", invalid, [](B& p) { p.dk.data = p.dq.data, move(p.dk, 12 * 4 * 16 * 2 - 16); }},
};

// What is unusual, and right.
const Change good_packed[] = {
    {"packed", FA3_OK, [](B&) {}},
    {"a window", FA3_OK, [](B& p) { window(p, 5, -1); }},
    {"a chunk", FA3_OK, [](B& p) { chunk(p, most, -1); }},
    {"sinks that have no gradient", FA3_OK, [](B& p) { p.dsinks = {}; }},
    {"no sinks", FA3_OK, [](B& p) { p.sinks = p.dsinks = {}; }},
    {"softcap", FA3_OK, [](B& p) { p.softcap = 1e-30f; }},
    {"softcap with slopes", FA3_OK, [](B& p) { p.softcap = 30, p.alibi_slopes = slopes({4}); }},
    {"slopes of each sequence", FA3_OK, [](B& p) { p.alibi_slopes = slopes({3, 4}); }},
    {"slopes that are one", FA3_OK, [](B& p) { p.alibi_slopes = slopes({4}), p.alibi_slopes.stride[0] = 0; }},
    {"dsinks far apart", FA3_OK, [](B& p) { p.dsinks.stride[0] = int64_t{1} << 33; }},
    {"dsinks between the sinks", FA3_OK,
     [](B& p) {
       p.sinks.stride[0] = p.dsinks.stride[0] = 2, p.dsinks.data = p.sinks.data;
       move(p.dsinks, 4);
     }},
    {"lengths that share their numbers", FA3_OK, [](B& p) { p.cu_seqlens_k.data = p.cu_seqlens_q.data; }},
    {"no sequence", FA3_OK, [](B& p) { p.cu_seqlens_q.dim[0] = p.cu_seqlens_k.dim[0] = 1; }},
    {"no rows of k", FA3_OK, [](B& p) { rows_of_k(p, 0), p.k.data = p.dv.data = nullptr; }},
    {"maxima beyond the rows", FA3_OK, [](B& p) { p.max_seqlen_q = p.max_seqlen_k = most; }},
    {"lengths of all kinds", FA3_OK, [](B& p) { p.seqused_q = lengths_at(8, 3), p.seqused_k = lengths_at(9, 3); }},
    {"batched keys of packed queries", FA3_OK,
     [](B& p) {
       const B plain = batched();
       p.k = plain.k, p.v = plain.v, p.dk = plain.dk, p.dv = plain.dv, p.cu_seqlens_k = {}, p.max_seqlen_k = 4;
       for (fa3_tensor* t : {&p.k, &p.v, &p.dk, &p.dv}) t->dim[0] = 3;
     }},
    {"packed keys of batched queries", FA3_OK,
     [](B& p) {
       const B plain = backward_of(imaginary({.batch = 3}));
       p.q = plain.q, p.o = plain.o, p.dout = plain.dout, p.dq = plain.dq, p.lse = plain.lse, p.dlse = plain.dlse;
       p.cu_seqlens_q = {}, p.max_seqlen_q = 0;
     }},
};

void refuse_all(B (*right)(), const auto& changes, std::initializer_list<Rules> all_rules) {
  for (const Change& change : changes) {
    INFO(change.name);
    B p = right();
    change.apply(p);
    const B before = p;
    expect(fa3_backward_check(&p), change);
    for (const Rules rules : all_rules) {
      BackwardProblem problem;
      const fa3_status status = validate(&p, rules, problem);
      CHECK(status == change.status);
      CHECK_THAT(last_message(), ContainsSubstring(change.name));
      if (status == FA3_OK || rules != Rules::reference) continue;
      expect(fa3_reference_backward(&p, 1), change);
    }
    CHECK(std::memcmp(&p, &before, sizeof p) == 0);
  }
}

BackwardProblem accept(const B& p, Rules rules) {
  BackwardProblem problem;
  const fa3_status status = validate(&p, rules, problem);
  INFO(last_message());
  REQUIRE(status == FA3_OK);
  return problem;
}

}  // namespace

TEST_CASE("bad lengths, windows and sinks of the backward pass are refused", "[planned][backward]") {
  refuse_all(batched, bad_batched, {Rules::device, Rules::shapes, Rules::reference});
  // Strides and head dimensions that the kernels do not take, the reference may.
  refuse_all(packed, bad_packed, {Rules::device, Rules::shapes});
  refuse_all(packed, bad_pointers, {Rules::device, Rules::reference});
}

TEST_CASE("unusual lengths, windows and sinks of the backward pass that are right", "[planned][backward]") {
  for (const Change& change : good_packed) {
    INFO(change.name);
    B p = packed();
    change.apply(p);
    for (const Rules rules : {Rules::device, Rules::shapes, Rules::reference}) accept(p, rules);
    // Where no pointer is looked at, none need be there.
    for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.lse, &p.dlse, &p.dq, &p.dk, &p.dv, &p.sinks, &p.dsinks,
                          &p.cu_seqlens_q, &p.cu_seqlens_k, &p.seqused_q, &p.seqused_k, &p.alibi_slopes})
      t->data = nullptr;
    accept(p, Rules::shapes);
  }
}

TEST_CASE("what a packed backward call becomes", "[planned][backward]") {
  B p = packed();
  p.seqused_k = lengths_at(9, 3), p.max_seqlen_q = 100;
  window(p, 5, 2);
  const BackwardProblem problem = accept(p, Rules::device);
  CHECK((problem.planned && !problem.causal && problem.causal_offset == 0));
  CHECK((problem.batch == 3 && problem.heads == 4 && problem.heads_kv == 2 && problem.head_dim == 16));
  CHECK((problem.seqlen_q == 12 && problem.seqlen_k == 9));  // no sequence is longer than all rows
  CHECK((problem.total_q == 12 && problem.total_k == 17 && problem.chunk == 0));
  CHECK((problem.window.left == 5 && problem.window.right == 2 && problem.window.bottom_right));
  const Lengths& lengths = problem.lengths;
  CHECK((lengths.cu_q == p.cu_seqlens_q.data && lengths.cu_k == p.cu_seqlens_k.data && lengths.used_q == nullptr));
  CHECK((lengths.used_k == p.seqused_k.data && lengths.leftpad_k == nullptr && lengths.batch_k == nullptr));
  CHECK((lengths.batch == 3 && lengths.max_q == 12 && lengths.max_k == 9));
  for (const auto& [view, t] : {std::pair{&problem.dq, &p.dq}, {&problem.dout, &p.dout}, {&problem.dk, &p.dk}}) {
    CHECK((view->data == t->data && view->dim[0] == 1 && view->stride[0] == 0));
    CHECK((std::equal(t->dim, t->dim + 3, view->dim + 1) && std::equal(t->stride, t->stride + 3, view->stride + 1)));
  }
  CHECK((problem.dlse.dim[0] == 1 && problem.dlse.dim[1] == 4 && problem.dlse.dim[2] == 12));
  CHECK((problem.sinks.data == p.sinks.data && problem.dsinks.data == p.dsinks.data && problem.dsinks.dim[0] == 4));

  chunk(p, 6, 0);
  const BackwardProblem chunks = accept(p, Rules::device);
  CHECK((chunks.chunk == 6 && chunks.window.left == -1 && chunks.window.right == 0));
}

TEST_CASE("what makes a backward problem planned, and what does not", "[planned][backward]") {
  const auto plain = [] {
    B p = batched();
    p.sinks = p.dsinks = {};
    return p;
  };
  CHECK(!accept(plain(), Rules::device).planned);
  B p = plain();
  p.max_seqlen_q = 3, p.max_seqlen_k = 5;
  CHECK(!accept(p, Rules::device).planned);
  window(p, -1, -1);
  CHECK((!accept(p, Rules::device).planned && !accept(p, Rules::device).causal));
  window(p, -1, 0);
  const BackwardProblem causal = accept(p, Rules::device);
  CHECK((!causal.planned && causal.causal && causal.causal_offset == 2));
  void (*const serving[])(B&) = {[](B& p) { window(p, 0, 0); }, [](B& p) { chunk(p, 1, 0); },
                                 [](B& p) { p.seqused_q = lengths_at(9, 2); },
                                 [](B& p) { p.seqused_k = lengths_at(9, 2); }, [](B& p) { p.max_seqlen_k = 4; },
                                 [](B& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4}); },
                                 [](B& p) { p.softcap = 30; }, [](B& p) { p.alibi_slopes = slopes({2, 4}); }};
  for (const auto& apply : serving) {
    B other = plain();
    apply(other);
    CHECK(accept(other, Rules::device).planned);
  }
}

namespace {

struct Grouped {
  int64_t batch, length, heads, heads_kv, head_dim = 128;
  int32_t left = -1, right = 0;
  uint64_t flags = 0;
  bool is_batched = false;
};
// Sequences of one length, packed or batched, whose pointers lead nowhere.
B grouped(const Grouped& s) {
  const Shape shape{.batch = s.batch, .seqlen_q = s.length, .seqlen_k = s.length, .heads = s.heads,
                    .heads_kv = s.heads_kv, .head_dim = s.head_dim};
  B p = backward_of(imaginary(shape));
  p.sinks = p.dsinks = p.dlse = {};
  p.flags = s.flags;
  window(p, s.left, s.right);
  if (s.is_batched) {
    p.seqused_k = lengths_at(9, s.batch);
    return p;
  }
  for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv})
    *t = tensor(t->data, t->dtype, {s.batch * s.length, t->dim[2], t->dim[3]});
  p.lse = tensor(p.lse.data, FA3_DTYPE_FP32, {s.heads, s.batch * s.length});
  p.cu_seqlens_q = lengths_at(6, s.batch + 1), p.cu_seqlens_k = lengths_at(7, s.batch + 1);
  p.max_seqlen_q = p.max_seqlen_k = int32_t(s.length);
  return p;
}

BackwardPlan planned(const B& p, const Card& card) {
  BackwardPlan made;
  const fa3_status status = plan(accept(p, Rules::shapes), card, made);
  INFO(last_message());
  REQUIRE(status == FA3_OK);
  return made;
}

bool is_fast(const std::string& card) { return card == "h200" || card == "gh200-144" || card == "h20"; }

}  // namespace

TEST_CASE("sections of grouped heads, and which way their blocks go, by the card", "[planned][backward]") {
  struct Choice {
    int heads;
    DqOrder dq;
    bool operator==(const Choice&) const = default;
  };
  constexpr DqOrder up = DqOrder::any, down = DqOrder::any_downwards;
  constexpr uint64_t fixed = FA3_FLAG_DETERMINISTIC;
  const struct {
    Grouped call;
    Choice slow, fast;  // memory
  } all[] = {
      {{4, 4096, 32, 8}, {2, down}, {4, up}},
      {{4, 4096, 64, 8, 64}, {2, down}, {4, up}},
      {{8, 2048, 32, 8}, {4, down}, {8, up}},
      {{8, 2049, 32, 8}, {4, down}, {4, up}},
      {{16, 1024, 64, 8, 64}, {4, down}, {8, up}},
      {{2, 8192, 32, 8}, {4, down}, {4, up}},
      {{20, 2048, 32, 4}, {2, down}, {4, down}},  // query rows that read a key have 1024 columns,
      {{4, 4096, 32, 4}, {4, down}, {4, up}},     // and of each of four parts 256
      {{16, 1024, 40, 8}, {4, down}, {8, up}},
      {{16, 1024, 40, 10}, {2, down}, {5, up}},
      {{2, 8193, 32, 8}, {1, up}, {1, up}},  // too long
      {{8, 2048, 16, 16}, {4, down}, {4, down}},
      {{8, 2048, 32, 8, 128, -1, 0, fixed}, {4, DqOrder::downwards}, {4, DqOrder::downwards}},
      {{2, 8192, 32, 8, 128, 4096, 0}, {1, up}, {8, up}},
      {{2, 8192, 64, 8, 64, 1024, 0}, {1, up}, {8, up}},
      {{2, 8192, 64, 8, 64, 1023, 0}, {1, up}, {1, up}},  // less than an eighth
      {{2, 8192, 32, 8, 128, 4096, 0, fixed}, {1, DqOrder::downwards}, {1, DqOrder::downwards}},
      {{2, 8192, 32, 8, 256}, {1, up}, {1, up}},   // another kernel computes dQ
      {{2, 8192, 32, 8, 128, -1, -1}, {1, up}, {1, up}},
  };
  for (const auto& [call, slow, fast] : all)
    for (const bool is_batched : {false, true})
      for (const NamedCard& known : known_cards) {
        Grouped varied = call;
        varied.is_batched = is_batched;
        const KeyOrder order = planned(grouped(varied), known.card).last.order;
        INFO(known.name << " " << call.batch << " x " << call.length << ", heads " << call.heads << "/"
                        << call.heads_kv << " d " << call.head_dim << " window " << call.left);
        const Choice& expected = is_fast(known.name) ? fast : slow;
        CHECK(order.section_heads == expected.heads);
        CHECK(order.dq == expected.dq);
      }
  // A driver that does not say what memory it is: as an H200.
  CHECK(planned(grouped({4, 4096, 32, 8}), card_of_device(132, 0, 0, 0)).last.order.section_heads == 4);
}

TEST_CASE("workspaces and launches of the backward pass are those of any card", "[planned][backward]") {
  std::mt19937_64 random(11);
  const auto any_of = [&](std::initializer_list<int64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  int by_card = 0, same_for_all = 0;
  for (int n = 0; n < 2000; ++n) {
    const int64_t heads_kv = any_of({1, 2, 3, 4, 8, 10, 16});
    Grouped shape{any_of({1, 2, 5, 16}), any_of({1, 100, 1024, 2048, 4096, 8192, 20000}),
                  heads_kv * any_of({1, 2, 4, 8}), heads_kv, any_of({64, 80, 128, 256})};
    shape.left = int32_t(any_of({-1, -1, 128, 1024, 4096})), shape.right = int32_t(any_of({0, 0, -1, 100}));
    shape.flags = uint64_t(any_of({0, 0, FA3_FLAG_DETERMINISTIC})), shape.is_batched = random() % 2;
    const B p = grouped(shape);
    const BackwardPlan first = planned(p, known_cards[0].card);
    for (const NamedCard& known : known_cards) {
      const BackwardPlan made = planned(p, known.card);
      CHECK(made.workspace_bytes() == first.workspace_bytes());
      CHECK(made.by_card == first.by_card);
      REQUIRE(made.last.launch_count == first.last.launch_count);
      for (int i = 0; i < made.last.launch_count; ++i) CHECK(made.last.launches[i].row == first.last.launches[i].row);
      const KeyOrder &order = made.last.order, &first_order = first.last.order;
      const bool is_same = order.section_heads == first_order.section_heads && order.dq == first_order.dq &&
                           order.behind == first_order.behind;
      if (!made.by_card) CHECK(is_same);
      (made.by_card && !is_same ? by_card : same_for_all) += 1;
    }
  }
  CHECK((by_card > 500 && same_for_all > 500));
}

// Each has a place of its own, as large as what the kernels write there.
TEST_CASE("what a planned backward call keeps in its workspace lies apart, and within it", "[planned][backward]") {
  struct Region {
    size_t begin, bytes;
  };
  std::mt19937_64 random(12);
  const auto any_of = [&](std::initializer_list<int64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  int second_sums = 0, parts = 0, one_block = 0;
  for (int n = 0; n < 4000; ++n) {
    const int64_t heads_kv = any_of({1, 2, 3, 8, 11}), length = any_of({1, 65, 128, 129, 500, 1000, 2048, 4096, 8191});
    Grouped call{any_of({1, 2, 5}), length, heads_kv * any_of({1, 2, 8}), heads_kv, any_of({64, 80, 128, 256})};
    call.left = int32_t(any_of({-1, -1, 100})), call.right = int32_t(any_of({0, -1}));
    call.flags = uint64_t(any_of({0, FA3_FLAG_DETERMINISTIC})), call.is_batched = random() % 2;
    B p = grouped(call);
    if (random() % 3 == 0) p.flags |= FA3_FLAG_CENTERED_K;
    else if (random() % 2)
      p.sinks = tensor(far_away(35), FA3_DTYPE_FP32, {call.heads}), p.dsinks = tensor(far_away(36), FA3_DTYPE_FP32,
                                                                                      {call.heads});
    const BackwardRun run = planned(p, assumed_card(132)).last;
    const BackwardRow& row = backward_row(run.row);
    const PlannedRun& planned = run.planned;
    const auto all_bytes = [](int64_t count, int64_t bytes) { return size_t(count * bytes); };
    const int64_t copies = run.order.spread.second > 0 ? 2 : 1, tiles = call.heads * int64_t{planned.call.most_tiles};
    const int64_t rows = tiles * int32_t{planned.call.Br}, rows_k = call.batch * length;
    std::vector<Region> regions = {{run.lse, all_bytes(rows, 4)},
                                   {run.delta, all_bytes(rows, 4)},
                                   {planned.list, size_t(list_bytes(planned.call))}};
    int64_t counted = 1;  // blocks that are claimed
    if (run.sums_dq) {
      regions.push_back({run.dq_sums, all_bytes(copies * rows, 4 * row.d)});
      counted += int64_t{planned.call.most_blocks} * heads_kv * run.order.parts + copies * tiles;
      CHECK(run.visits == run.counters_end - all_bytes(copies * tiles, 4));
    }
    CHECK(run.counters_end - run.counters == all_bytes(counted, 4));
    regions.push_back({run.counters, all_bytes(counted, 4)});
    if (run.order.parts > 1)
      regions.push_back({run.key_sums, all_bytes(2 * heads_kv * run.order.parts * rows_k, 4 * row.d)});
    if (p.flags & FA3_FLAG_CENTERED_K)
      regions.push_back({planned.key_means, all_bytes(call.batch * heads_kv, 4 * row.d)});
    if (p.dsinks.rank > 0) {  // of each tile, and of each thread block that has rows without keys
      CHECK(planned.sink_sums_each == run.q_tiles + planned.zero_blocks);
      regions.push_back({planned.sink_sums, all_bytes(call.heads * planned.sink_sums_each, 4)});
    }
    std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
    regions.push_back({run.workspace_bytes, 0});
    INFO(call.batch << " x " << length << ", heads " << call.heads << "/" << heads_kv << " d " << call.head_dim);
    for (size_t i = 0; i + 1 < regions.size(); ++i) {
      CHECK(regions[i].begin % 64 == 0);
      CHECK(regions[i].begin + regions[i].bytes <= regions[i + 1].begin);
    }
    second_sums += copies > 1, parts += run.order.parts > 1, one_block += row.has(Trait::one_key_block);
  }
  CHECK((second_sums > 20 && parts > 100 && one_block > 100));
}

TEST_CASE("second sums of dQ of varlen sequences are of up to 1056 tiles", "[planned][backward]") {
  const auto second = [](int64_t length, int64_t heads) {
    const Grouped call{1, length, heads, heads, 128, -1, 0, FA3_FLAG_DETERMINISTIC};
    return planned(grouped(call), assumed_card(132)).last.order.spread.second;
  };
  // Of each head one more than there are of 64 rows.
  CHECK((second(448, 132) == 132 * 8 && second(512, 117) == 117 * 9));
  CHECK((second(448, 133) == 0 && second(512, 118) == 0));
}

TEST_CASE("what the kernels of the backward pass cannot count is refused", "[planned][backward]") {
  const auto status = [](const Grouped& of, int64_t total_q, int64_t total_k, int32_t chunk_size = 0) {
    B p = grouped(of);
    for (fa3_tensor* t : {&p.q, &p.o, &p.dout, &p.dq, &p.k, &p.v, &p.dk, &p.dv})
      t->dim[0] = t == &p.k || t == &p.v || t == &p.dk || t == &p.dv ? total_k : total_q;
    p.lse.dim[1] = total_q;
    REQUIRE(fa3_tensor_pack(&p.lse) == FA3_OK);
    p.max_seqlen_q = p.max_seqlen_k = 1 << 20;
    if (chunk_size > 0) chunk(p, chunk_size, 0);
    return fa3_backward_check(&p);
  };
  // INT32_MAX rows of all heads, and one; of q in tiles of 128, one more than they fill.
  constexpr int64_t many = 1 << 20, heads = 2048;
  const Grouped one{1, 64, heads, heads, 64};
  CHECK((status(one, 64, many - 1) == FA3_OK && status(one, 64, many) == FA3_ERROR_UNSUPPORTED));
  CHECK((status(one, many - 256, 64) == FA3_OK && status(one, many - 255, 64) == FA3_ERROR_UNSUPPORTED));
  // Chunks of all sequences.
  const Grouped sequences{1 << 11, 64, 1, 1, 64};
  CHECK((status(sequences, many, many, 1 << 10) == FA3_OK));
  CHECK((status(sequences, many, many, 1) == FA3_ERROR_UNSUPPORTED));
}

}  // namespace fa3::test
