// What the tests of launches share: the fake driver as no test has used it, and what they hand to it.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fa3.h"
#include "fake_cuda.h"

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
  fake.record = true, fake.slow = false;
  fake.maps.clear(), fake.launches.clear(), fake.loaded.clear();
  fake.loads = fake.unloads = fake.calls = 0;
  fake.context_id = ++contexts;
  fake.context = reinterpret_cast<CUcontext>(uintptr_t{0x1000} + 16 * contexts);
  return fake;
}

inline void expect_message(const char* text) {
  CHECK_THAT(fa3_last_error_message(), Catch::Matchers::ContainsSubstring(text));
}

inline const Row& row_of(const Launch& launch) { return *launch.carried.row; }
inline const ForwardRow& forward_row_of(const Launch& launch) { return *row_of(launch).forward(); }
inline const BackwardRow& backward_row_of(const Launch& launch) { return *row_of(launch).backward(); }
inline const PassRow& pass_row_of(const Launch& launch) { return *row_of(launch).pass(); }

}  // namespace fa3::test
