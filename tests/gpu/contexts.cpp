// The library keeps kernels by context; contexts come and go, and their addresses are used again.
#include <catch2/catch_test_macros.hpp>

#include "device_case.h"
#include "gpu.h"
#include "random.h"

namespace fa3::test {

namespace {
uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 7000000 + uint64_t(number)); }
}  // namespace

TEST_CASE("a context is destroyed and another created", "[contexts]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  Case made(random_problem(rows[0], seed_for(0), 1e7));
  const Expected expected = expect(made);
  for (int round = 0; round < 5; ++round) {
    INFO("context " << round);
    CHECK(on_thread([&]() -> std::string {
            const tools::Context context;
            if (round % 2 == 1 && fa3_preload() != FA3_OK) return fa3_last_error_message();
            const tools::Stream stream;
            return run_and_verify(made, expected, stream);
          }) == "");
  }
}

TEST_CASE("one thread switches between contexts", "[contexts]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  Case made(random_problem(forward_rows().back(), seed_for(1), 1e7));
  const Expected expected = expect(made);
  CHECK(on_thread([&]() -> std::string {
          const tools::Context a, b;  // b is current
          for (int round = 0; round < 3; ++round)
            for (const tools::Context* context : {&a, &b}) {
              context->make_current();
              const tools::Stream stream;
              if (std::string problem = run_and_verify(made, expected, stream); !problem.empty()) return problem;
            }
          return "";
        }) == "");
}

TEST_CASE("preload is idempotent", "[contexts]") {
  gpu();
  for (int i = 0; i < 3; ++i) CHECK(fa3_preload() == FA3_OK);
}

}  // namespace fa3::test
