// The CPU reference: cases worked out by hand, scales that it refuses, and any number of threads.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "packed_memory.h"

namespace fa3::test {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

TEST_CASE("one query, two keys, by hand", "[reference]") {
  // Scores are 2 ln 3 * 0.5 = ln 3 and 0, so the weights are 3/4 and 1/4, and LSE is ln 4.
  float q[] = {1}, k[] = {2 * 1.0986122886681098f, 0}, v[] = {8, 4}, o[1], lse[1];
  fa3_forward_params p = describe({1, 1, 2, 1, 1, 1}, FA3_DTYPE_FP32, q, k, v, o, lse);
  p.softmax_scale = 0.5f;
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  CHECK_THAT(o[0], WithinRel(7.0, 1e-6));
  CHECK_THAT(lse[0], WithinRel(1.3862943611198906, 1e-6));
}

TEST_CASE("equal scores average the keys that are seen, by hand", "[reference]") {
  float q[3] = {}, k[4] = {}, v[] = {1, 2, 4, 9}, o[3], lse[3];
  fa3_forward_params p = describe({1, 3, 4, 1, 1, 1}, FA3_DTYPE_FP32, q, k, v, o, lse);
  struct {
    int mask;
    float o[3];
    double seen[3];
  } const cases[] = {{FA3_MASK_NONE, {4, 4, 4}, {4, 4, 4}},
                     {FA3_MASK_CAUSAL_TOP_LEFT, {1, 1.5f, 7 / 3.0f}, {1, 2, 3}},
                     {FA3_MASK_CAUSAL_BOTTOM_RIGHT, {1.5f, 7 / 3.0f, 4}, {2, 3, 4}}};
  for (const auto& c : cases) {
    p.mask = c.mask;
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
    for (int i = 0; i < 3; ++i) {
      CHECK(o[i] == c.o[i]);
      CHECK_THAT(lse[i], WithinAbs(std::log(c.seen[i]), 1e-7));
    }
  }
}

TEST_CASE("a scale below the normal numbers is not the default, by hand", "[reference]") {
  float q[] = {1}, k[] = {0, 80}, v[] = {8, 4}, o[1], lse[1];
  fa3_forward_params p = describe({1, 1, 2, 1, 1, 1}, FA3_DTYPE_FP32, q, k, v, o, lse);
  for (const float scale : {0x1p-149f, 0x1p-127f}) {
    p.softmax_scale = scale;
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
    CHECK((o[0] == 6 && lse[0] == std::log(2.0f)));
  }
  p.softmax_scale = 0;  // 1
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  CHECK((o[0] == 4 && lse[0] == 80));
}

TEST_CASE("a row that sees no key is 0 and -inf, by hand", "[reference]") {
  float q[] = {1, 1, 1}, k[] = {1, NAN}, v[] = {5, NAN}, o[3], lse[3];
  fa3_forward_params p = describe({1, 3, 1, 1, 1, 1}, FA3_DTYPE_FP32, q, k, v, o, lse);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  CHECK((o[0] == 0 && o[1] == 0 && o[2] == 5));
  CHECK((lse[0] == -INFINITY && lse[1] == -INFINITY && lse[2] == 1));
  for (int mask = FA3_MASK_NONE; mask <= FA3_MASK_CAUSAL_BOTTOM_RIGHT; ++mask) {
    p = describe({1, 3, 0, 1, 1, 1}, FA3_DTYPE_FP32, q, nullptr, nullptr, o, lse);
    p.mask = mask;
    o[2] = lse[2] = 7;
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
    CHECK((o[2] == 0 && lse[2] == -INFINITY));
  }
}

TEST_CASE("rows that see no key get neither v_mean nor lse_offset", "[reference]") {
  uint8_t q[48] = {}, k[16] = {}, v[16], o[48];
  std::fill(v, v + 16, 0x38);  // 1
  float lse[3], one = 1, offset[3] = {NAN, 5, 6}, mean[16];
  std::fill(mean, mean + 16, 2.0f);
  fa3_forward_params p = describe({1, 3, 1, 1, 1, 16}, FA3_DTYPE_E4M3, q, k, v, o, lse);
  p.q_scale = p.k_scale = p.v_scale = tensor(&one, FA3_DTYPE_FP32, {1, 1, 1});
  p.o_scale = tensor(&one, FA3_DTYPE_FP32, {1});
  p.v_mean = tensor(mean, FA3_DTYPE_FP32, {1, 1, 16});
  p.lse_offset = tensor(offset, FA3_DTYPE_FP32, {1, 1, 3});
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  CHECK((o[0] == 0 && o[31] == 0 && o[32] == 0x44));  // 3
  CHECK((lse[0] == -INFINITY && lse[1] == -INFINITY && lse[2] == 6));
}

TEST_CASE("a masked key has no influence, whatever it holds", "[reference]") {
  float q[] = {1, 1}, k[] = {1, NAN}, v[] = {5, INFINITY}, o[2], lse[2];
  fa3_forward_params p = describe({1, 2, 2, 1, 1, 1}, FA3_DTYPE_FP32, q, k, v, o, lse);
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  CHECK((o[0] == 5 && lse[0] == 1));
  CHECK((std::isnan(o[1]) && std::isnan(lse[1])));
}

TEST_CASE("large scores neither overflow nor lose the small ones", "[reference]") {
  float q[] = {1000}, k[] = {1000, 999.999f, -1000}, v[] = {1, 2, 4}, o[1], lse[1];
  fa3_forward_params p = describe({1, 1, 3, 1, 1, 1}, FA3_DTYPE_FP32, q, k, v, o, lse);
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  const double weight = std::exp(1000.0 * (static_cast<double>(k[1]) - 1000.0));
  CHECK_THAT(o[0], WithinRel((1 + 2 * weight) / (1 + weight), 1e-6));
  CHECK_THAT(lse[0], WithinRel(1e6 + std::log1p(weight), 1e-7));
}

TEST_CASE("scores and values that are not finite", "[reference]") {
  const float inf = INFINITY, nan = NAN;
  struct {
    float score[3], v[3], o, lse;
  } const cases[] = {
      {{0, nan, 0}, {1, 1, 1}, nan, nan},         {{0, inf, 0}, {1, 1, 1}, nan, nan},
      {{-inf, 0, 0}, {7, 1, 3}, 2, std::log(2.f)}, {{0, -inf, 0}, {1, 7, 3}, 2, std::log(2.f)},
      {{-inf, -inf, -inf}, {1, 1, 1}, nan, -inf}, {{0, 0, 0}, {1, inf, 1}, inf, std::log(3.f)},
      {{0, 0, 0}, {inf, -inf, 1}, nan, std::log(3.f)}, {{0, -inf, 0}, {1, inf, 1}, nan, std::log(2.f)},
      {{0, -2000, 0}, {1, 7, 3}, 2, std::log(2.f)}};
  for (const auto& c : cases) {
    // The same in one block of keys and in two.
    for (int distance : {1, 40}) {
      INFO("case " << &c - cases << " distance " << distance);
      std::vector<float> k(3 * distance, -inf), v(k.size(), 0.0f);
      for (int i = 0; i < 3; ++i) k[i * distance] = c.score[i], v[i * distance] = c.v[i];
      float q = 1, o, lse;
      fa3_forward_params p =
          describe({1, 1, static_cast<int64_t>(k.size()), 1, 1, 1}, FA3_DTYPE_FP32, &q, k.data(), v.data(), &o, &lse);
      REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
      const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
      CHECK(same(o, c.o));
      CHECK((same(lse, c.lse) || std::fabs(lse - c.lse) < 1e-6f));
    }
  }
}

TEST_CASE("scales that are not positive numbers are refused by the reference", "[reference]") {
  const Shape s{.batch = 2, .seqlen_q = 70, .seqlen_k = 150, .heads = 4, .heads_kv = 2, .head_dim = 16};
  Memory memory(s, FA3_DTYPE_E4M3, FA3_DTYPE_E4M3);
  fa3_forward_params& p = memory.params;
  std::vector<float> q(2 * 4 * 2, 1), k(2 * 2 * 3, 1), v(2 * 2, 1), o(1, 1);
  p.q_scale = tensor(q.data(), FA3_DTYPE_FP32, {2, 4, 2}), p.k_scale = tensor(k.data(), FA3_DTYPE_FP32, {2, 2, 3});
  p.v_scale = tensor(v.data(), FA3_DTYPE_FP32, {2, 2, 1}), p.o_scale = tensor(o.data(), FA3_DTYPE_FP32, {1});
  const struct {
    float& scale;
    const char* name;
  } places[] = {{q[1 * 8 + 2 * 2 + 1], "q_scale[1][2][1]"}, {q[0], "q_scale[0][0][0]"}, {k[11], "k_scale[1][1][2]"},
                {v[1], "v_scale[0][1][0]"}, {o[0], "o_scale[0]"}};
  for (const auto& [scale, name] : places)
    for (const auto& [value, text] :
         {std::pair{0.0f, "0"}, {-0.0f, "-0"}, {-1.5f, "-1.5"}, {INFINITY, "inf"}, {NAN, "nan"}}) {
      scale = value;
      CHECK(fa3_reference_forward(&p, 1) == FA3_ERROR_INVALID_ARGUMENT);
      CHECK(std::string(fa3_last_error_message()) == name + std::string(" is ") + text + ", must be > 0 and finite");
      scale = 1;
    }
  CHECK((memory.o.untouched() && memory.lse.untouched()));
  CHECK(fa3_reference_forward(&p, 1) == FA3_OK);
}

TEST_CASE("the result does not depend on the number of threads", "[reference]") {
  const Shape shape{.batch = 2, .seqlen_q = 150, .seqlen_k = 150, .heads = 2, .heads_kv = 1, .head_dim = 32};
  Memory one(shape, FA3_DTYPE_BF16, FA3_DTYPE_FP32);
  Memory many(shape, FA3_DTYPE_BF16, FA3_DTYPE_FP32);
  one.params.mask = many.params.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  REQUIRE(fa3_reference_forward(&one.params, 1) == FA3_OK);
  for (int threads : {0, 2, 7, 1000, 2147483647}) {
    REQUIRE(fa3_reference_forward(&many.params, threads) == FA3_OK);
    CHECK(std::memcmp(one.o.as(), many.o.as(), one.o.bytes()) == 0);
    CHECK(std::memcmp(one.lse.as(), many.lse.as(), one.lse.bytes()) == 0);
  }
}

}  // namespace fa3::test
