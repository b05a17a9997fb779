// Which kernels are loaded, when and for which context, and what a call asks of the driver after that.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "../forward/forward_launches.h"

namespace fa3::test {
namespace {

int chosen_rows() {
  return int(std::count_if(std::begin(rows), std::end(rows), [](auto& row) { return row.chosen; }));
}

}  // namespace

TEST_CASE("a kernel is loaded once for each context, and again when the context is another", "[launch]") {
  FakeCuda& fake = fresh();
  const fa3_forward_params p = imaginary(), q = causal({});
  CHECK((forward(p) == FA3_OK && forward(p) == FA3_OK));
  CHECK(fake.loads == 1);
  CHECK((forward(q) == FA3_OK && forward(p) == FA3_OK));
  CHECK(fake.loads == 2);
  // Destroyed, and another made at the same address.
  fake.context_id += 1000;
  CHECK((forward(p) == FA3_OK && forward(q) == FA3_OK));
  CHECK(fake.loads == 4);
  // Two contexts in turn.
  const CUcontext first = fake.context;
  const unsigned long long first_id = fake.context_id;
  fake.context = reinterpret_cast<CUcontext>(0x77770000), fake.context_id = 777;
  CHECK(forward(p) == FA3_OK);
  fake.context = first, fake.context_id = first_id;
  CHECK(forward(p) == FA3_OK);
  fake.context = reinterpret_cast<CUcontext>(0x77770000), fake.context_id = 777;
  CHECK(forward(p) == FA3_OK);
  CHECK(fake.loads == 5);
  // A thread's first context, whatever its id.
  fake.context_id = 0;
  fa3_status first_call = FA3_ERROR_CUDA;
  std::thread([&] { first_call = forward(p); }).join();
  CHECK(first_call == FA3_OK);
  CHECK(fake.unloads == 0);
}

TEST_CASE("many contexts keep their kernels apart", "[launch]") {
  FakeCuda& fake = fresh();
  const fa3_forward_params p = imaginary({.seqlen_q = 70, .seqlen_k = 100, .head_dim = 256});  // thread blocks stay
  constexpr int contexts = 600;  // more than the table has buckets
  const auto enter = [&](int i) {
    fake.context = reinterpret_cast<CUcontext>(uintptr_t{1} << 45 | uintptr_t(i) * 64);
    fake.context_id = (uint64_t{1} << 41) + unsigned(i);
    fake.multiprocessors = 1 + i;
  };
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < contexts; ++i) {
      enter(i);
      REQUIRE(forward(p) == FA3_OK);  // the fake driver refuses another context's function
      REQUIRE(int(fake.launches.back().grid[0]) == std::min(1 + i, 8));
    }
  CHECK(fake.loads == contexts);
}

TEST_CASE("many contexts are found fast", "[launch]") {
  FakeCuda& fake = fresh();
  const fa3_forward_params p = imaginary();
  const auto visit = [&](int contexts) {
    return [&, contexts] {
      for (int i = 0; i < 4096; ++i) {
        fake.context = reinterpret_cast<CUcontext>(uintptr_t{1} << 44 | uintptr_t(i % contexts) * 4096);
        fake.context_id = (uint64_t{1} << 40) + unsigned(i % contexts);
        size_t bytes;
        if (fa3_forward_workspace_size(&p, 0, &bytes) != FA3_OK) FAIL(fa3_last_error_message());
      }
    };
  };
  const double times = times_as_much(visit(4096), visit(1));  // the last one is not looked for
  INFO(times << " times as long");
  CHECK(times < 5);
}

TEST_CASE("preload leaves nothing to load but what the library does not choose", "[launch]") {
  FakeCuda& fake = fresh();
  REQUIRE(fa3_preload() == FA3_OK);
  CHECK(fake.loads == chosen_rows());
  for (const std::string& name : fake.loaded) CHECK(rows[row_named(name.c_str())].chosen);
  REQUIRE(fa3_preload() == FA3_OK);
  int unloaded = 0;  // that are not loaded here: Algorithm 3
  for (const BackwardRow& v : backward_rows) unloaded += !v.has(Trait::chosen);
  for (const ForwardRow& v : forward_rows) {
    INFO(v.name);
    const int before = fake.loads;
    fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!v.has(Trait::chosen)) {
      CHECK(forward(named(v)) == FA3_ERROR_NOT_LOADED);
      expect_message(v.name);
      expect_message("run it once before the capture");
      CHECK(fake.loads == before);
      fake.capture = CU_STREAM_CAPTURE_STATUS_NONE;
      CHECK(forward(named(v)) == FA3_OK);
      CHECK(fake.loads == before + 1);
      fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    }
    const int loaded = fake.loads;
    CHECK(forward(named(v)) == FA3_OK);
    CHECK(fake.loads == loaded);
  }
  CHECK((forward(imaginary()) == FA3_OK && forward(causal({})) == FA3_OK));
  CHECK(fake.loads == row_count - unloaded);
  CHECK(fake.capture_mode_at_load == CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(fake.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_CASE("nothing is loaded while the stream captures", "[launch]") {
  FakeCuda& fake = fresh();
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  fake.asked_about_capture = nullptr;
  CHECK(forward(imaginary()) == FA3_ERROR_NOT_LOADED);
  CHECK(fake.asked_about_capture == stream);
  expect_message("fa3_preload");
  fake.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  CHECK(forward(imaginary()) == FA3_ERROR_NOT_LOADED);
  fake.capture = CU_STREAM_CAPTURE_STATUS_NONE;
  fake.capture_result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  CHECK(forward(imaginary()) == FA3_ERROR_NOT_LOADED);
  CHECK((fake.loads == 0 && fake.launches.empty() && fake.maps.empty()));
}

TEST_CASE("threads that come first together load once", "[launch]") {
  FakeCuda& fake = fresh();
  std::atomic<int> failed{0};
  const auto together = [&](const auto& work) {
    fresh().slow = true;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    CHECK(failed == 0);
  };
  for (int context = 0; context < 8; ++context) {  // they do not always meet
    together([&] {
      for (int n = 0; n < 50; ++n) failed += forward(imaginary()) != FA3_OK;
    });
    CHECK(fake.loads == 1);
    CHECK(fake.launches.size() == 400);
  }
  together([&] { failed += fa3_preload() != FA3_OK; });
  CHECK(fake.loads == chosen_rows());
}

TEST_CASE("a warm call asks the driver for no more than it needs, and costs little itself", "[launch]") {
  FakeCuda& fake = fresh();
  fake.record = false;
  const fa3_forward_params p = imaginary();
  REQUIRE(forward(p) == FA3_OK);
  fake.calls = 0;
  REQUIRE(forward(p) == FA3_OK);
  CHECK(fake.calls == 6);  // the current context's id, four maps, the launch
  const double work = thousands([&] { forward(p); });
  INFO(work << " thousand multiplications");
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(work < 6);
#endif
}

TEST_CASE("a warm call does not plan again", "[launch]") {
  fresh().record = false;
  const auto calls_of = [](int lengths) {  // of a query each, whose keys are split
    return [=] {
      for (int n = 0; n < 64; ++n)
        forward(causal({.batch = 1, .seqlen_q = 1, .seqlen_k = 100000 + n % lengths, .heads = 8}));
    };
  };
  const double times = times_as_much(calls_of(64), calls_of(4));  // more lengths than a thread remembers, and as many
  INFO(times << " times as long");
  CHECK(times > 1.7);
}

}  // namespace fa3::test
