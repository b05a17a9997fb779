// The CPU reference with lengths, pages, windows, chunks and sinks: random problems against the tests' own oracle, and
// what follows from the definition alone.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <set>
#include <string>

#include "random.h"
#include "served_case.h"

namespace fa3::test {
namespace {

// Of a call on the case's own images.
void run(ServedCase& made, int threads = 1) {
  const fa3_forward_params params = made.host_params();
  const fa3_status status = fa3_reference_forward(&params, threads);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
}

// "", or which element is not the float64 result, rounded once to float32.
std::string compare(const std::vector<float>& ours, const std::vector<float>& right, const char* what) {
  for (size_t n = 0; n < right.size(); ++n) {
    const bool near = std::abs(ours[n] - right[n]) <= 0x1p-22 * std::abs(right[n]) + 1e-12;
    if (!near && ours[n] != right[n])
      return std::string(what) + " " + std::to_string(n) + " is " + std::to_string(ours[n]) + ", should be " +
             std::to_string(right[n]);
  }
  return "";
}

}  // namespace

TEST_CASE("random served problems against the oracle", "[served]") {
  const uint64_t seed = tools::seed_of_run();
  INFO("repeat with FA3_TEST_SEED=" << seed);
  for (uint64_t n = 0; n < 400; ++n) {
    ServedProblem p = random_served(tools::mix(seed, n), {5e5, 12, 32});
    const bool exact = n % 3 != 0;
    if (exact) p.o_dtype = FA3_DTYPE_FP32;
    ServedCase made(p);
    INFO(p.describe());
    run(made, int(n % 3));
    const ServedExpected expected = expect(made);
    CHECK(verify(made, expected) == "");
    if (!exact) continue;
    const Output ours = gather(made, expected.rows);
    CHECK(compare(ours.o, expected.numbers.reference.o, "o") == "");
    if (p.want_lse) CHECK(compare(ours.lse, expected.numbers.reference.lse, "lse") == "");
  }
}

}  // namespace fa3::test
