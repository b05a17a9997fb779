// What a right call with varlen sequences, pages, windows or sinks becomes.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "../planned_calls.h"
#include "../validated.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr int32_t most = INT32_MAX;

ForwardProblem problem_of(const P& p) { return accept(p, Rules::device); }

}  // namespace

TEST_CASE("packed tensors have a batch of 1", "[planned]") {
  P p = imaginary_packed();
  set_strides(p.q, {128, 24, 1});
  const ForwardProblem problem = problem_of(p);
  CHECK((problem.planned && !problem.causal && problem.causal_offset == 0 && problem.wants_lse));
  check_view(problem.q, p.q, {1, 12, 4, 16}, {0, 128, 24, 1});
  check_view(problem.k, p.k, {1, 17, 2, 16}, {0, 32, 16, 1});
  check_view(problem.v, p.v, {1, 17, 2, 16}, {0, 32, 16, 1});
  check_view(problem.o, p.o, {1, 12, 4, 16}, {0, 64, 16, 1});
  check_view(problem.lse, p.lse, {1, 4, 12, 1}, {0, 12, 1, 0});
  CHECK((problem.batch == 3 && problem.seqlen_q == 7 && problem.seqlen_k == 9));
  CHECK((problem.heads == 4 && problem.heads_kv == 2 && problem.head_dim == 16 && problem.head_dim_v == 16));
  CHECK((problem.total_q == 12 && problem.total_k == 17));
  const Lengths& lengths = problem.lengths;
  CHECK((lengths.cu_q == p.cu_seqlens_q.data && lengths.cu_k == p.cu_seqlens_k.data));
  CHECK((!lengths.used_q && !lengths.used_k && !lengths.leftpad_k && !lengths.batch_k));
  CHECK((lengths.batch == 3 && lengths.max_q == 7 && lengths.max_k == 9));
  CHECK((problem.page_size == 0 && problem.page_table.empty() && problem.sinks.empty()));
  CHECK((problem.schedule == nullptr && problem.schedule_bytes == 0 && !problem.batch_invariant));
  CHECK(problem.softmax_scale == 0.25);

  // No sequence has more rows than there are.
  p.max_seqlen_q = p.max_seqlen_k = most;
  const ForwardProblem clipped = problem_of(p);
  CHECK((clipped.seqlen_q == 12 && clipped.seqlen_k == 17));
  CHECK((clipped.lengths.max_q == 12 && clipped.lengths.max_k == 17));
}

TEST_CASE("a problem has the caller's pages, cache and schedule", "[planned]") {
  P p = imaginary_paged();
  p.page_table.stride[0] = 100;
  p.schedule = far_away(20), p.schedule_bytes = 640, p.flags = FA3_FLAG_BATCH_INVARIANT;
  const ForwardProblem paged = problem_of(p);
  check_view(paged.k, p.k, {6, 8, 2, 16}, {256, 32, 16, 1});
  check_view(paged.page_table, p.page_table, {3, 4, 1, 1}, {100, 1, 0, 0});
  CHECK((paged.page_size == 8 && paged.batch == 3 && paged.seqlen_q == 7 && paged.seqlen_k == 32));
  CHECK((paged.total_q == 12 && paged.total_k == -1 && paged.lengths.used_k == p.seqused_k.data));
  CHECK((paged.schedule == p.schedule && paged.schedule_bytes == 640 && paged.batch_invariant));
  p.max_seqlen_k = 5;
  CHECK((problem_of(p).seqlen_k == 5 && problem_of(p).lengths.max_k == 5));

  p = imaginary_cached();
  const ForwardProblem cached = problem_of(p);
  check_view(cached.k, p.k, {5, 32, 2, 16}, {1024, 32, 16, 1});
  check_view(cached.sinks, p.sinks, {4, 1, 1, 1}, {1, 0, 0, 0});
  CHECK((cached.batch == 3 && cached.seqlen_q == 2 && cached.seqlen_k == 32 && cached.total_q == -1));
  const Lengths& lengths = cached.lengths;
  CHECK((lengths.used_q == p.seqused_q.data && lengths.used_k == p.seqused_k.data));
  CHECK((lengths.leftpad_k == p.leftpad_k.data && lengths.batch_k == p.cache_batch_idx.data && !lengths.cu_q));
  CHECK(lengths.caches == 5);

  // Without pointers what is there is known by its dims.
  p = imaginary_paged();
  p.page_table.data = p.cu_seqlens_q.data = nullptr, p.sinks = tensor(nullptr, FA3_DTYPE_FP32, {4});
  const ForwardProblem shapes = accept(p, Rules::shapes);
  CHECK((shapes.planned && shapes.page_size == 8 && shapes.page_table.dim[1] == 4 && shapes.total_q == 12));
  CHECK(shapes.sinks.dim[0] == 4);

  p = imaginary_packed();
  p.cu_seqlens_q.dim[0] = p.cu_seqlens_k.dim[0] = 1;
  CHECK((problem_of(p).batch == 0 && problem_of(p).empty()));
}

TEST_CASE("the window of a mask", "[planned]") {
  const struct {
    int32_t mask, left, right;
    Window window;
    int64_t chunk;
  } masks[] = {{FA3_MASK_NONE, 0, 0, {-1, -1, false}, 0},
               {FA3_MASK_CAUSAL_TOP_LEFT, 0, 0, {-1, 0, false}, 0},
               {FA3_MASK_CAUSAL_BOTTOM_RIGHT, 0, 0, {-1, 0, true}, 0},
               {FA3_MASK_WINDOW, -1, -1, {-1, -1, false}, 0},
               {FA3_MASK_WINDOW, -1, 0, {-1, 0, true}, 0},
               {FA3_MASK_WINDOW, 0, -1, {0, -1, true}, 0},
               {FA3_MASK_WINDOW, 5, 3, {5, 3, true}, 0},
               {FA3_MASK_WINDOW, -1, 2, {-1, 2, true}, 0},
               {FA3_MASK_WINDOW, most, most, {most, most, true}, 0},
               {FA3_MASK_CHUNK, 64, 0, {-1, 0, true}, 64},
               {FA3_MASK_CHUNK, 1, -1, {-1, -1, true}, 1}};
  for (const auto& [mask, left, right, window, chunk] : masks) {
    INFO("mask " << mask << " " << left << " " << right);
    P p = imaginary_packed();
    p.mask = mask, p.window_left = left, p.window_right = right;
    const ForwardProblem problem = problem_of(p);
    CHECK((problem.window.left == window.left && problem.window.right == window.right));
    CHECK((problem.window.bottom_right == window.bottom_right && problem.chunk == chunk));
    CHECK((problem.planned && !problem.causal));
  }
}

TEST_CASE("only what is new makes a problem planned", "[planned]") {
  // What it is otherwise, with its mask.
  const Change plain[] = {
      {"nothing", FA3_OK, [](P&) {}},
      {"maxima that say what the dims do", FA3_OK, [](P& p) { p.max_seqlen_q = 3, p.max_seqlen_k = 5; }},
      {"no window", FA3_OK, [](P& p) { window(p, -1, -1); }},
      {"causal", FA3_OK, [](P& p) { p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT; }},
      {"a causal window", FA3_OK, [](P& p) { window(p, -1, 0); }},
      {"a schedule", FA3_OK, [](P& p) { p.schedule = p.o.data, p.schedule_bytes = 64; }},
  };
  for (const Change& change : plain) {
    INFO(change.name);
    P p = imaginary();
    change.apply(p);
    const ForwardProblem problem = problem_of(p);
    CHECK((!problem.planned && problem.schedule == nullptr));
    const bool causal = std::string(change.name).find("causal") != std::string::npos;
    CHECK((problem.causal == causal && problem.causal_offset == (causal ? 2 : 0)));
    CHECK((problem.batch == 2 && problem.seqlen_q == 3 && problem.seqlen_k == 5));
    CHECK((problem.total_q == -1 && problem.total_k == -1 && problem.page_size == 0));
    CHECK(fa3_forward_check(&p) == FA3_OK);
  }
  const Change planned[] = {
      {"a window", FA3_OK, [](P& p) { window(p, 0, 0); }},
      {"a bound on the right", FA3_OK, [](P& p) { window(p, -1, 1); }},
      {"a chunk", FA3_OK, [](P& p) { chunk(p, 4, 0); }},
      {"a sink", FA3_OK, [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4}); }},
      {"fewer keys", FA3_OK, [](P& p) { p.max_seqlen_k = 4; }},
      {"lengths of queries", FA3_OK, [](P& p) { p.seqused_q = lengths_at(9, 2); }},
      {"lengths of keys", FA3_OK, [](P& p) { p.seqused_k = lengths_at(9, 2); }},
      {"padding", FA3_OK, [](P& p) { p.leftpad_k = lengths_at(9, 2); }},
      {"a cache", FA3_OK, [](P& p) { p.cache_batch_idx = lengths_at(9, 2); }},
      {"batch invariance", FA3_OK, [](P& p) { p.flags = FA3_FLAG_BATCH_INVARIANT; }},
  };
  for (const Change& change : planned) {
    INFO(change.name);
    P p = imaginary();
    change.apply(p);
    CHECK(problem_of(p).planned);
  }
}

TEST_CASE("the workspace is apart from lengths, pages and schedule", "[planned]") {
  P p = imaginary_paged();
  p.schedule = far_away(20), p.schedule_bytes = 640;
  const ForwardProblem problem = problem_of(p);
  const struct {
    const char* name;
    const void* data;
  } places[] = {{"cu_seqlens_q", p.cu_seqlens_q.data}, {"seqused_k", p.seqused_k.data},
                {"page_table", p.page_table.data},     {"schedule", p.schedule}};
  for (const auto& [name, data] : places) {
    CHECK(validate_workspace(problem, const_cast<void*>(data), 64, 64) == invalid);
    CHECK_THAT(last_message(), ContainsSubstring(std::string("workspace may overlap ") + name));
  }
  CHECK(validate_workspace(problem, static_cast<char*>(far_away(20)) + 640, 64, 64) == FA3_OK);
}

}  // namespace fa3::test
