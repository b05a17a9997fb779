// What the tests of launches share: the fake driver as no test has used it, and what they hand to it.
#pragma once
#include <time.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "device/fake_cuda.h"
#include "fa3.h"

namespace fa3::test {

alignas(16) inline char workspace_memory[64];
inline constexpr size_t plenty = size_t{1} << 30;  // never touched
inline CUstream const stream = reinterpret_cast<CUstream>(0x5eed);

// A context that no test used before.
inline FakeCuda& fresh() {
  static unsigned long long contexts = 0;
  FakeCuda& fake = fake_cuda();
  fake.major = 9, fake.minor = 0, fake.multiprocessors = 132;
  fake.memory_kilohertz = 2619000, fake.memory_bits = 5120, fake.cache_bytes = 50 << 20, fake.kilohertz = 1980000;
  fake.capture = CU_STREAM_CAPTURE_STATUS_NONE, fake.capture_result = CUDA_SUCCESS;
  fake.failing.clear(), fake.failure = CUDA_ERROR_UNKNOWN, fake.spared = 0;
  fake.record = true, fake.slow = false, fake.held = false;
  fake.maps.clear(), fake.launches.clear(), fake.loaded.clear();
  fake.loads = fake.unloads = fake.calls = 0;
  fake.context_id = ++contexts;
  fake.context = reinterpret_cast<CUcontext>(uintptr_t{0x1000} + 16 * contexts);
  return fake;
}

// How many times as much of a processor's time some work takes as other work, each in the best of rounds that take
// turns: a slow machine is slow in both, and what else runs on it is in neither.
template <class Work, class Other>
double times_as_much(const Work& work, const Other& other) {
  const auto now = [] {
    timespec had;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
    return 1e9 * double(had.tv_sec) + double(had.tv_nsec);
  };
  double least[] = {1e18, 1e18};
  const auto measure = [&](const auto& some, double& best) {
    const double start = now();
    some();
    best = std::min(best, now() - start);
  };
  for (int round = 0; round < 40; ++round) measure(work, least[0]), measure(other, least[1]);
  return least[0] / least[1];
}

// A call's work in thousands of multiplications that wait for each other: some microseconds each, on any machine.
template <class Call>
double thousands(const Call& call) {
  constexpr int calls = 100;
  const auto repeated = [&] {
    for (int n = 0; n < calls; ++n) call();
  };
  const auto multiplications = [] {
    volatile uint64_t number = 3;
    uint64_t product = number;
    for (int n = 0; n < 1000 * calls; ++n) product = product * product + 1;
    number = product;
  };
  return times_as_much(repeated, multiplications);
}

inline void expect_message(const char* text) {
  CHECK_THAT(fa3_last_error_message(), Catch::Matchers::ContainsSubstring(text));
}

inline const Row& row_of(const Launch& launch) { return *launch.carried.row; }
inline const ForwardRow& forward_row_of(const Launch& launch) { return *row_of(launch).forward(); }
inline const BackwardRow& backward_row_of(const Launch& launch) { return *row_of(launch).backward(); }
inline const PassRow& pass_row_of(const Launch& launch) { return *row_of(launch).pass(); }

}  // namespace fa3::test
