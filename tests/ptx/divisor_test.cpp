// The division by a number known on the host (ptx/plan/divisor.h).
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <random>
#include <vector>

#include "plan/divisor.h"

namespace fa3::test {

TEST_CASE("a Divisor divides as / does", "[divisor]") {
  constexpr int32_t largest = INT32_MAX;
  std::vector<int32_t> divisors{1,      2, 3, 5, 7, 641, 65535, 65536, 65537, (1 << 30) - 1, 1 << 30, (1 << 30) + 1,
                                largest};
  std::mt19937 random(6);
  for (int i = 0; i < 2000; ++i) divisors.push_back(std::max<int32_t>(1, int32_t(random() >> 1) >> random() % 31));
  for (const int32_t d : divisors) {
    const Divisor divisor = Divisor::of(d);
    int wrong = divisor == d ? 0 : 1;
    const auto check = [&](int64_t n) { wrong += n >= 0 && n <= largest && int32_t(n) / divisor != int32_t(n) / d; };
    for (int i = 0; i < 50; ++i) {
      const int64_t multiple = int64_t(random() >> 1) / d * d;  // where the quotient changes
      check(multiple - 1), check(multiple), check(multiple + 1), check(random() >> 1);
    }
    for (const int64_t n :
         {int64_t{0}, int64_t{1}, int64_t{largest} - 1, int64_t{largest}, int64_t{largest} / d * d - 1})
      check(n);
    INFO(d);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a Divisor below 1 is 1", "[divisor]") {
  for (const int32_t d : {0, -1, INT32_MIN}) CHECK((Divisor::of(d) == 1 && 17 / Divisor::of(d) == 17));
}

}  // namespace fa3::test
