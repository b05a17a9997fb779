// What problems are made of: numbers in 16 and 8 bits, random numbers and layouts.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <algorithm>
#include <cmath>
#include <vector>

#include "fa3.h"
#include "half.h"
#include "layout.h"
#include "random.h"

namespace fa3::test {

using Catch::Matchers::WithinAbs;

TEST_CASE("16-bit conversions round to nearest even and come back") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = uint16_t(bits);
    for (const fa3_dtype dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) {
      const float value = tools::from_half(half, dtype);
      const uint16_t back = tools::to_half(value, dtype);
      if (std::isnan(value)) REQUIRE(std::isnan(tools::from_half(back, dtype)));
      else REQUIRE(back == half);
    }
  }
  CHECK(tools::to_fp16(1 + 0x1p-11f) == 0x3c00);
  CHECK(tools::to_fp16(1 + 3 * 0x1p-11f) == 0x3c02);
  CHECK(tools::to_fp16(65519.0f) == 0x7bff);
  CHECK(tools::to_fp16(65520.0f) == 0x7c00);
  CHECK(tools::to_fp16(0x1p-25f) == 0);
  CHECK(tools::to_fp16(1.5f * 0x1p-25f) == 1);
  CHECK(tools::to_bf16(1 + 0x1p-8f) == 0x3f80);
  CHECK(tools::to_bf16(1 + 3 * 0x1p-8f) == 0x3f82);
}

TEST_CASE("e4m3 conversions round to nearest even, saturate and come back") {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = tools::from_e4m3(uint8_t(bits));
    const int exponent = int(bits >> 3 & 15), fraction = int(bits & 7);
    INFO(bits);
    if ((bits & 127) == 127) {
      CHECK((std::isnan(value) && tools::to_e4m3(value) == 0x7f));
      continue;
    }
    const float magnitude =
        exponent ? std::ldexp(1 + float(fraction) / 8, exponent - 7) : std::ldexp(float(fraction), -9);
    CHECK((std::fabs(value) == magnitude && std::signbit(value) == (bits > 127) && tools::to_e4m3(value) == bits));
    if ((bits & 127) == 126) continue;
    const float next = tools::from_e4m3(uint8_t(bits + 1)), middle = (value + next) / 2;
    CHECK(tools::to_e4m3(middle) == (bits % 2 ? bits + 1 : bits));
    CHECK(tools::to_e4m3(std::nextafter(middle, next)) == bits + 1);
    CHECK(tools::to_e4m3(std::nextafter(middle, value)) == bits);
  }
  for (const float large : {448.0f, 463.9f, 464.0f, 500.0f, 1e30f, INFINITY}) {
    CHECK(tools::to_e4m3(large) == 0x7e);
    CHECK(tools::to_e4m3(-large) == 0xfe);
  }
  CHECK(tools::to_e4m3(0x1p-10f) == 0);
  CHECK(tools::to_e4m3(std::nextafter(0x1p-10f, 1.0f)) == 1);
  CHECK(tools::to_e4m3(0x1p-140f) == 0);
  CHECK(tools::to_e4m3(-NAN) == 0x7f);
  float memory[1];
  for (const fa3_dtype dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32, FA3_DTYPE_E4M3}) {
    tools::write_element(memory, 0, 1.25f, dtype);
    CHECK(tools::read_element(memory, 0, dtype) == 1.25f);
  }
  CHECK((tools::round_to(1.07f, FA3_DTYPE_E4M3) == 1.125f && tools::round_to(1.07f, FA3_DTYPE_FP16) != 1.125f));
}

TEST_CASE("random numbers are normal and independent of how they are cut") {
  std::vector<float> all(1 << 20), part(1000);
  tools::normal(7, 0, all.data(), all.size());
  tools::normal(7, 12345, part.data(), part.size());
  CHECK(std::equal(part.begin(), part.end(), all.begin() + 12345));
  double moments[5] = {};
  for (const float x : all)
    for (int n = 1; n <= 4; ++n) moments[n] += std::pow(double(x), n) / double(all.size());
  CHECK_THAT(moments[1], WithinAbs(0, 0.005));
  CHECK_THAT(moments[2], WithinAbs(1, 0.01));
  CHECK_THAT(moments[3], WithinAbs(0, 0.02));
  CHECK_THAT(moments[4], WithinAbs(3, 0.06));
}

TEST_CASE("layouts") {
  using tools::Layout;
  const Layout padded = Layout::make({2, 3, 4, 8}, {0, 2, 1, 3}, {0, 16, 5, 8});
  CHECK(padded.stride == std::vector<int64_t>{(3 * 16 + 5) * 4 + 16, 16, 3 * 16 + 5, 1});
  CHECK(Layout::packed({2, 3, 4}).stride == std::vector<int64_t>{12, 4, 1});
  CHECK(Layout::packed({2, 0, 4}).extent() == 0);
  int visits = 0;
  padded.for_each([&](int64_t) { ++visits; });
  CHECK(visits == 2 * 3 * 4 * 8);
}

}  // namespace fa3::test
