// Softcap and ALiBi through the C API: on every row for them, in all kinds of planned calls and in plain ones, with
// scores far below the cap, around it and far beyond, and keys far away.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <string>

#include "../gpu.h"
#include "device_case.h"
#include "params.h"
#include "random.h"
#include "planned_case.h"

namespace fa3::test {
namespace {

uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 23000000 + uint64_t(number)); }

void run(const PlannedProblem& problem, int repeats = 2) {
  INFO(problem.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  PlannedCase made(problem);
  const std::string name = tools::forward_kernel_info(made.host_params()).name;
  INFO(name);
  CHECK((name.find("softcap") != name.npos) == (problem.softcap > 0));
  CHECK((name.find("alibi") != name.npos) == problem.has_slopes);
  const std::string verdict = run_and_verify(made, expect(made), gpu().stream, repeats);
  CHECK(verdict == "");
}

// Heads that share K and V, bottom right, with softcap if it is > 0, else ALiBi; or both.
PlannedProblem problem(float softcap, int64_t head_dim, fa3_dtype dtype, int number, bool both = false) {
  PlannedProblem p;
  p.seed = seed_for(number);
  p.dtype = dtype, p.heads = 6, p.heads_kv = 2, p.head_dim = p.head_dim_v = head_dim;
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  p.softcap = softcap, p.has_slopes = both || softcap == 0, p.slopes_each = number % 2;
  return p;
}

}  // namespace

TEST_CASE("score transforms: random calls on every row for them", "[planned]") {
  gpu();
  for (const ForwardRow& row : forward_rows)
    for (int n = 0; n < 16 && row.transforms_scores(); ++n)
      run(random_planned(seed_for(1000 + n + 16 * int(&row - forward_rows.data())), {.budget = 3e7, .row = &row}));
}

// Without anything else that has kernels of its own.
TEST_CASE("score transforms: plain batches", "[planned]") {
  gpu();
  int number = 20000;
  for (const int64_t head_dim : {64, 128, 256})
    for (const float softcap : {0.0f, 30.0f})
      for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        PlannedProblem p = problem(softcap, head_dim, number % 2 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, number);
        p.mask = mask;
        make_room(p, PlannedProblem::Lengths(2, {number % 3 ? 500 : 40, 700}), p.seed);
        std::fill(p.poisoned.begin(), p.poisoned.end(), false);
        run(p), ++number;
      }
}

// Scores of so many times N(0,1), and caps among them: on both sides of where the kernels' polynomial ends.
TEST_CASE("score transforms: scores on both sides of the cap", "[planned]") {
  gpu();
  int number = 21000;
  for (const int64_t head_dim : {64, 128, 256})
    for (const float size : {0.01f, 1.0f, 10.0f, 100.0f, 1e4f})
      for (const float softcap : {1e-6f, 1.0f, 20.0f, 50.0f, 1e6f}) {
        if (std::min(size, softcap) > 1e3f) continue;  // float32 has hardly any fractions of such capped scores
        PlannedProblem p = problem(softcap, head_dim, number % 2 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, number,
                                   number % 3 == 0);
        p.softmax_scale = size / std::sqrt(float(head_dim));
        p.packed_q = p.packed_k = true;
        make_room(p, {{number % 4 ? 200 : 3, 333}, {70, 100}, {1, 600}}, p.seed);
        run(p, 1), ++number;
      }
}

TEST_CASE("score transforms: long caches in pages", "[planned]") {
  gpu();
  int number = 22000;
  for (const float softcap : {0.0f, 50.0f})
    for (const int64_t head_dim : {64, 128, 256})
      for (const int64_t queries : {1, 130}) {
        PlannedProblem p = problem(softcap, head_dim, FA3_DTYPE_BF16, number);
        p.packed_q = p.uses_k = p.has_sinks = true, p.page_size = 64;
        if (number % 3 == 0) p.mask = FA3_MASK_WINDOW, p.window_left = 5000;
        make_room(p, {{queries, 30000}, {2, 7000}, {0, 0}, {queries, 1}}, p.seed);
        run(p, 2), ++number;
      }
}

// Softcap where scores are of two tensors, and above 256 columns: on both sides of the cap, and in parts.
TEST_CASE("score transforms: latent attention and head dimensions above 256", "[planned][latent]") {
  gpu();
  int number = 23000;
  for (const auto& [d, dv] : {std::pair{64, 512}, {64, 256}, {576, 512}, {384, 384}})
    for (const float size : {1.0f, 10.0f, 100.0f})
      for (const float softcap : {1.0f, 20.0f, 1e6f}) {
        PlannedProblem p = problem(softcap, d, number % 2 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, number);
        p.head_dim_v = dv, p.has_qv = d == 64, p.v_in_k = d == 576;
        p.heads = 16, p.heads_kv = d == dv ? 2 : 1;
        p.softmax_scale = size / std::sqrt(float(d == 64 ? d + dv : d));
        if (number % 3 == 0) p.mask = FA3_MASK_WINDOW, p.window_left = 100;
        p.packed_q = p.uses_k = true, p.page_size = 64;
        make_room(p, {{1, number % 4 ? 333 : 9000}, {70, 100}, {3, 600}, {2, 1}}, p.seed);
        run(p, 1), ++number;
      }
}

}  // namespace fa3::test
