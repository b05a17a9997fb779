// The check against float64 finds what is wrong.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>

#include "../../tools/fa3-bench/check/check.h"
#include "../../tools/fa3-bench/measure/fp8.h"
#include "bench_test.h"
#include "half.h"
#include "random.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the check of e4m3 finds errors beyond its roundings") {
  const Point point{FA3_DTYPE_E4M3, 64, true, 2, 40, 50, 4, 2, {}};
  std::vector<uint8_t> inputs[3];
  std::vector<float> floats[3];
  for (int t = 0; t < 3; ++t) {
    inputs[t] = normal_e4m3(uint64_t(t), size_t(t ? point.k_elements() : point.q_elements()));
    for (const uint8_t bits : inputs[t]) floats[t].push_back(tools::from_e4m3(bits));
  }
  std::vector<uint16_t> o(size_t(point.q_elements()));
  std::vector<float> lse(size_t(point.batch * point.heads * point.seqlen));
  Point exact = point;
  exact.dtype = FA3_DTYPE_FP32;
  auto params = exact.params({floats[0].data(), floats[1].data(), floats[2].data(), o.data(), lse.data()});
  params.o.dtype = FA3_DTYPE_BF16;
  REQUIRE(fa3_reference_forward(&params, 1) == FA3_OK);
  const HostTensors host{inputs[0].data(), inputs[1].data(), inputs[2].data(), o.data(), lse.data()};
  const auto verdict = [&] { return check_rows(point, host, 2000, 7); };
  const auto change = [&](size_t at, float by) { o[at] = tools::to_bf16(tools::from_bf16(o[at]) + by); };
  CHECK(verdict() == "");
  float largest = 0;
  for (size_t i = 64 * 100; i < 64 * 101; ++i) largest = std::max(largest, std::abs(tools::from_bf16(o[i])));
  SECTION("an error of e4m3") {
    change(64 * 100, largest / 10);
    CHECK(verdict() == "");
  }
  SECTION("o") {
    change(64 * 100, largest / 6);
    CHECK_THAT(verdict(), ContainsSubstring("o of batch"));
  }
  SECTION("lse") {
    lse[100] += 1e-2f;
    CHECK_THAT(verdict(), ContainsSubstring("lse of batch"));
  }
}

TEST_CASE("the check finds a wrong row, a wrong LSE and an element that was not written") {
  Point point{FA3_DTYPE_FP16, 64, true, 2, 40, 50, 4, 2, {}};
  point.head_dim_v = GENERATE(0, 24, 128);
  std::vector<uint16_t> tensors[4];
  for (int t = 0; t < 4; ++t) {
    tensors[t].resize(size_t(t == 0   ? point.q_elements()
                             : t == 1 ? point.k_elements()
                             : t == 2 ? point.v_elements()
                                      : point.o_elements()));
    tools::fill_normal(uint64_t(t), tensors[t].data(), tensors[t].size(), point.dtype);
  }
  std::vector<float> lse(size_t(point.batch * point.heads * point.seqlen));
  const auto params =
      point.params({tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data()});
  REQUIRE(fa3_reference_forward(&params, 1) == FA3_OK);
  const HostTensors host{tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data()};
  const auto verdict = [&] { return check_rows(point, host, 2000, 7); };
  CHECK(verdict() == "");
  SECTION("o") {
    tensors[3][1234] ^= 0x4000;
    CHECK_THAT(verdict(), ContainsSubstring("o of batch"));
  }
  SECTION("lse") {
    lse[100] += 1e-3f;
    CHECK_THAT(verdict(), ContainsSubstring("lse of batch"));
  }
  SECTION("not written") {
    tensors[3][7] = 0xffff;
    CHECK_THAT(verdict(), ContainsSubstring("not written"));
  }
}

}  // namespace fa3::bench
