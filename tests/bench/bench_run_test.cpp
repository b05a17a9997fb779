// The benchmark's runs of both directions, on the simulated driver: right results are timed, wrong ones are not.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "measure/append.h"  // not that of the simulated driver
#include "measure/combine.h"
#include "measure/measure.h"
#include "points/points.h"
#include "simulated_cuda.h"

namespace fa3::bench {

static std::vector<Result> plan(Direction direction, int64_t head_dim, bool deterministic = false) {
  Selection selection;
  selection.direction = direction;
  selection.deterministic = deterministic;
  selection.grid.dtypes = {FA3_DTYPE_BF16, FA3_DTYPE_FP16};
  selection.grid.head_dims = {head_dim};
  selection.grid.seqlens = {20};
  selection.grid.seqlen_k = 30, selection.grid.batch = 2, selection.grid.heads = 4, selection.grid.kv_heads = 2;
  return plan_points(selection.points(), 132);
}

static std::vector<Result> run(std::vector<Result> results, int checked_rows = 200) {
  Protocol protocol;
  protocol.idle_ms = 0, protocol.warmups = 1, protocol.reps = 3, protocol.checked_rows = checked_rows;
  std::vector<Point> points;
  for (const Result& result : results) points.push_back(result.point);
  Bench bench(protocol, points);
  for (int pass = 0; pass < 2; ++pass)
    for (Result& result : results) bench.run(result);
  return results;
}

TEST_CASE("right results are checked and timed, pass after pass") {
  for (const Direction direction : {Direction::forward, Direction::backward})
    for (const int64_t head_dim : {64, 256}) {
      const auto results = run(plan(direction, head_dim));
      CHECK(results.size() == 4);
      for (const Result& result : results) {
        INFO(result.point.label());
        CHECK(result.problem == "");
        CHECK(result.checked);
        CHECK(result.pass_medians.size() == 2);
      }
    }
  for (const Result& result : run(plan(Direction::backward, 64, true))) CHECK((result.checked && result.tflops() > 0));
  for (const Result& result : run(plan(Direction::backward, 64), 0)) CHECK((!result.checked && result.tflops() > 0));
}

TEST_CASE("a point whose kernel does nothing is not timed, all others are") {
  struct {
    Direction direction;
    int64_t head_dim;
    int launches;  // of kernels, before the one that does nothing
    const char* what;
  } const cases[] = {{Direction::forward, 64, 0, "o"},
                     {Direction::backward, 64, 0, "o"},  // of the forward pass before it
                     {Direction::backward, 64, 1, "dq"},  // as all keys are one block
                     {Direction::backward, 256, 1, "dk"},
                     {Direction::backward, 256, 2, "dq"}};
  for (const auto& [direction, head_dim, launches, what] : cases) {
    auto results = plan(direction, head_dim);
    test::simulate(test::Fault::nothing_done, launches);
    results = run(std::move(results));
    CHECK(results[0].problem == std::string("an element of ") + what + " was not written");
    CHECK((!results[0].checked && results[0].pass_medians.empty()));
    for (size_t i = 1; i < results.size(); ++i) CHECK((results[i].checked && results[i].pass_medians.size() == 2));
  }
}

static Point small(int64_t batch, int64_t seqlen, int64_t seqlen_k) {
  return {FA3_DTYPE_BF16, 64, true, batch, seqlen, seqlen_k, 4, 2, {}};
}

// A point of each kind of planned call, as small as the simulated driver likes them.
static std::vector<Point> planned_points() {
  std::vector<Point> points;
  const auto add = [&](std::vector<int64_t> lengths, std::vector<int64_t> lengths_k) -> PlannedCall& {
    points.push_back(small(int64_t(lengths.size()), std::ranges::max(lengths), std::ranges::max(lengths_k)));
    points.back().planned.lengths = std::move(lengths), points.back().planned.lengths_k = std::move(lengths_k);
    return points.back().planned;
  };
  add({17, 0, 40}, {17, 0, 40});
  add({17, 0, 40}, {30, 5, 40}).sinks = true;
  add({1, 1, 20}, {70, 5, 50}).page = 16;
  add({20, 30}, {20, 30}).window = 9;
  add({20, 30}, {20, 30}).chunk = 8;
  add({20, 30}, {20, 30}).softcap = 2;
  add({20, 30}, {20, 30}).alibi = true;
  points.push_back(small(2, 3, 40));
  points.back().planned.page = 16, points.back().planned.e4m3_cache = true;
  points.push_back(small(2, 1, 40));
  points.back().planned.page = 16, points.back().kv_heads = 1;
  points.back().head_dim = 576, points.back().head_dim_v = 512;
  return points;
}

static std::vector<Point> planned_backward_points() {
  std::vector<Point> points;
  for (Point& p : planned_points())
    if (!p.planned.page) points.emplace_back(p).direction = Direction::backward;
  return points;
}

TEST_CASE("planned calls are checked and timed, planned before or in the call, with a cold cache or not") {
  Protocol protocol;
  protocol.idle_ms = 0, protocol.warmups = 0, protocol.reps = 1, protocol.checked_rows = 60;
  for (const auto& points : {planned_points(), planned_backward_points()})
    for (const bool other : {false, true}) {
      protocol.plan_in_call = protocol.cold = other;
      Bench bench(protocol, points);
      for (Result& result : plan_points(points, 132)) {
        INFO(result.point.label());
        bench.run(result);
        CHECK(result.problem == "");
        CHECK((result.checked && result.tflops() > 0 && result.gbytes() > 0));
      }
    }
}

TEST_CASE("a planned call whose kernel does nothing is not timed") {
  auto points = planned_points();
  points.resize(3);
  auto results = plan_points(points, 132);
  test::simulate(test::Fault::nothing_done, 0);
  results = run(std::move(results));
  CHECK(results[0].problem == "an element of o was not written");
  CHECK((results[0].pass_medians.empty() && results[1].checked && results[2].checked));
}

TEST_CASE("a point that the library refuses is not run") {
  auto results = plan(Direction::backward, 264);
  for (const Result& result : run(std::move(results)))
    CHECK((!result.problem.empty() && !result.checked && result.pass_medians.empty()));
}

static Protocol short_protocol() {
  Protocol protocol;
  protocol.idle_ms = 0, protocol.warmups = 1, protocol.reps = 3, protocol.passes = 2, protocol.checked_rows = 200;
  return protocol;
}

TEST_CASE("combinations are checked and timed beside a copy; a wrong one is not") {
  const Protocol protocol = short_protocol();
  std::vector<Combination> few;
  for (Combination c : combinations()) {
    c.batch = std::min<int64_t>(c.batch, 3), c.seqlen = std::min<int64_t>(c.seqlen, 20);
    few.push_back(c);
  }
  for (const CombineResult& result : run_combinations(protocol, few)) {
    INFO(result.of.label());
    CHECK(result.problem == "");
    CHECK((result.us > 0 && result.copy_us > 0));
  }
  few.resize(2);
  test::simulate(test::Fault::nothing_done, 0);
  const std::vector<CombineResult> results = run_combinations(protocol, few);
  CHECK(results[0].problem == "an element of lse was not written");
  CHECK((results[0].us == 0 && results[1].problem == "" && results[1].us > 0));
}

TEST_CASE("new rows are checked and timed beside a copy; wrong ones are not") {
  const Protocol protocol = short_protocol();
  std::vector<Appending> few;
  for (Appending a : appendings()) {
    a.batch = std::min<int64_t>(a.batch, 3), a.rows = std::min<int64_t>(a.rows, 20);
    a.long_rows = std::min<int64_t>(a.long_rows, 50);
    few.push_back(a);
  }
  for (const AppendResult& result : run_appendings(protocol, few)) {
    INFO(result.of.name);
    CHECK(result.problem == "");
    CHECK((result.us > 0 && result.copy_us > 0));
  }
  few.resize(2);
  test::simulate(test::Fault::nothing_done, 0);
  const std::vector<AppendResult> results = run_appendings(protocol, few);
  CHECK((results[0].problem != "" && results[0].us == 0 && results[1].problem == "" && results[1].us > 0));
}

}  // namespace fa3::bench
