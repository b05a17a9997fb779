// All functions from several threads at once. The thread sanitizer runs this, too (tests/tsan).
#include <catch2/catch_test_macros.hpp>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "../api/public_calls.h"

namespace fa3::test {

TEST_CASE("threads call everything at once, in one context after the other", "[launch][threads]") {
  for (int context = 0; context < 4; ++context) {
    FakeCuda& fake = fresh();
    fake.record = false;
    std::atomic<int> wrong{0};
    const auto work = [&](int first) {
      const int count = static_cast<int>(std::size(public_calls));
      for (int n = 0; n < 3 * count; ++n) {  // each thread begins with another function
        wrong += public_calls[(first + n) % count].run() != FA3_OK;
        wrong += std::string(fa3_last_error_message()) != "";
      }
    };
    std::vector<std::thread> threads;
    for (int id = 0; id < 6; ++id) threads.emplace_back(work, 4 * id);
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

}  // namespace fa3::test
