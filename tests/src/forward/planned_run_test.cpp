// Planned calls on the simulated driver, from the caller's parameters to O: what the host launches, and in which
// memory, is put together by a driver that computes from the launches alone. The cases and verdicts are the GPU tests'.
#include <catch2/catch_test_macros.hpp>
#include <cuda.h>

#include <string>
#include <vector>

#include "../device/simulated_device.h"
#include "random.h"
#include "planned_case.h"

namespace fa3::test {
namespace {

// Memory of exactly this size, with poison around it.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes), memory_(bytes + 2 * guard, poison) {}
  void* get() { return memory_.data() + guard; }
  bool is_intact() const {
    for (size_t i = 0; i < guard; ++i)
      if (memory_[i] != poison || memory_[guard + bytes_ + i] != poison) return false;
    return true;
  }

 private:
  static constexpr size_t guard = 4096;
  static constexpr unsigned char poison = 0xa5;
  size_t bytes_;
  std::vector<unsigned char> memory_;
};

// "", or what is wrong with the case's outputs.
std::string run(PlannedCase& made, const PlannedExpected& expected, bool with_schedule) {
  fa3_forward_params p = made.host_params();
  size_t bytes = 0, schedule_bytes = 0;
  if (fa3_forward_workspace_size(&p, 0, &bytes) || fa3_forward_schedule_size(&p, 0, &schedule_bytes))
    return fa3_last_error_message();
  Guarded workspace(bytes), schedule(schedule_bytes);
  if (with_schedule) {
    if (fa3_forward_schedule(&p, schedule.get(), schedule_bytes, nullptr)) return fa3_last_error_message();
    p.schedule = schedule.get(), p.schedule_bytes = schedule_bytes;
  }
  if (fa3_forward(&p, workspace.get(), bytes, nullptr)) return fa3_last_error_message();
  if (!workspace.is_intact() || !schedule.is_intact()) return "something was written beside workspace or schedule";
  return verify(made, expected);
}

// Calls on rows of the table that are like this.
void run_on(bool (*wanted)(const ForwardRow&), uint64_t number) {
  make_current();
  const uint64_t seed = tools::seed_of_run();
  INFO("repeat with FA3_TEST_SEED=" << seed);
  const uint64_t first = number;
  for (const ForwardRow& row : forward_rows)
    for (int i = 0; i < 20 && wanted(row); ++i, ++number) {
      PlannedCase made(random_planned(tools::mix(seed, number), {.budget = 3e5, .most_heads = 40, .row = &row}));
      INFO(number << ": " << made.problem.describe());
      CHECK(run(made, expect(made), number % 2) == "");
    }
  CHECK(number > first);
}

}  // namespace

TEST_CASE("random planned calls, with a schedule and without", "[planned]") {
  make_current();
  const uint64_t seed = tools::seed_of_run();
  INFO("repeat with FA3_TEST_SEED=" << seed);
  for (uint64_t n = 0; n < 200; ++n) {
    PlannedProblem problem = random_planned(tools::mix(seed, n), {.budget = 5e5, .most_heads = 40, .wide = n % 5 == 4});
    INFO(n << ": " << problem.describe());
    PlannedCase made(problem);
    CHECK(run(made, expect(made), n % 2) == "");
  }
}

// Which the library chooses for more queries than these have.
TEST_CASE("random calls over copies of e4m3", "[planned]") {
  run_on([](const ForwardRow& row) { return row.takes_copies(); }, 1000);
}

TEST_CASE("random calls over latent caches of e4m3", "[planned][latent]") {
  run_on([](const ForwardRow& row) { return row.is_latent(); }, 2000);
}

}  // namespace fa3::test
