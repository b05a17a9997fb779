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
  Case made(random_problem(forward_row(0), seed_for(0), 1e7));
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
  Case made(random_problem(forward_rows.back(), seed_for(1), 1e7));
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

// All that was loaded is gone after a reset, as of cudaDeviceReset, and the context comes back at the same address.
TEST_CASE("the primary context is reset and comes back", "[contexts]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  Case made(random_problem(forward_rows.front(), seed_for(2), 1e7));
  const Expected expected = expect(made);
  const auto use = [&](CUcontext context) {
    FA3_CU(cuCtxSetCurrent, context);
    const tools::Stream stream;
    return run_and_verify(made, expected, stream);
  };
  CHECK(on_thread([&]() -> std::string {
          CUdevice device;
          FA3_CU(cuDeviceGet, &device, 0);
          for (int round = 0; round < 5; ++round) {
            const std::string where = "round " + std::to_string(round) + ": ";
            CUcontext primary;
            FA3_CU(cuDevicePrimaryCtxRetain, &primary, device);
            FA3_CU(cuCtxSetCurrent, primary);
            if (round % 2 == 1 && fa3_preload() != FA3_OK) return where + fa3_last_error_message();
            // Once on a thread that knows the context of before, once on a new one; and the other way round.
            std::string primary_problem, other_problem;
            if (round > 2) other_problem = on_thread([&] { return use(primary); });
            primary_problem = use(primary);
            if (round <= 2) other_problem = on_thread([&] { return use(primary); });
            for (const std::string& problem : {primary_problem, other_problem})
              if (!problem.empty()) return where + problem;
            FA3_CU(cuDevicePrimaryCtxReset, device);
          }
          return "";
        }) == "");
  // The context of the run is another one, and still there.
  CHECK(run_and_verify(made, expected, gpu().stream) == "");
}

TEST_CASE("preload is idempotent", "[contexts]") {
  gpu();
  for (int i = 0; i < 3; ++i) CHECK(fa3_preload() == FA3_OK);
}

}  // namespace fa3::test
