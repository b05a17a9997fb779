// Where the CPU reference rounds, and how: formats, products, exponentials and results.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "../formats.h"
#include "packed_memory.h"

namespace fa3::test {

// With one key of score 0, O is V: the formats can be seen through the API.
TEST_CASE("every 16-bit pattern is read and written as what it is", "[reference]") {
  for (int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) {
    const Shape shape{.batch = 256, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 256};
    std::vector<uint16_t> zero(65536), v(65536), o(65536);
    std::vector<float> wide(65536);
    for (int i = 0; i < 65536; ++i) v[i] = static_cast<uint16_t>(i);
    fa3_forward_params p = describe(shape, dtype, zero.data(), zero.data(), v.data(), o.data(), nullptr);
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
    p.o = tensor(wide.data(), FA3_DTYPE_FP32, {256, 1, 1, 256});
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
    size_t wrong = 0;
    for (int i = 0; i < 65536; ++i) {
      const long double value = value_of(static_cast<uint16_t>(i), dtype);
      if (std::isnan(value)) wrong += !std::isnan(value_of(o[i], dtype)) || !std::isnan(wide[i]);
      else if (value == 0) wrong += (o[i] & 0x7fff) != 0 || wide[i] != 0;  // 0 + 1 * -0 is +0
      else wrong += o[i] != i || wide[i] != static_cast<float>(value);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every pattern of e4m3 is read and written as what it is", "[reference]") {
  uint8_t zero[256] = {}, v[256], o[256];
  float wide[256], one = 1;
  for (int i = 0; i < 256; ++i) v[i] = static_cast<uint8_t>(i);
  fa3_forward_params p = describe({1, 1, 1, 1, 1, 256}, FA3_DTYPE_E4M3, zero, zero, v, o, nullptr);
  p.q_scale = p.k_scale = p.v_scale = tensor(&one, FA3_DTYPE_FP32, {1, 1, 1});
  p.o_scale = tensor(&one, FA3_DTYPE_FP32, {1});
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  p.o = tensor(wide, FA3_DTYPE_FP32, {1, 1, 1, 256}), p.o_scale = {};
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  for (int i = 0; i < 256; ++i) {
    INFO(i);
    const long double value = value_of(static_cast<uint16_t>(i), FA3_DTYPE_E4M3);
    if (std::isnan(value)) CHECK((o[i] == 0x7f && std::isnan(wide[i])));
    else if (value == 0) CHECK((o[i] == 0 && wide[i] == 0));  // 0 + 1 * -0 is +0
    else CHECK((o[i] == i && wide[i] == static_cast<float>(value)));
  }
  CHECK((wide[0x7e] == 448 && wide[0x08] == 0x1p-6f && wide[0x01] == 0x1p-9f && wide[0xfe] == -448));
}

TEST_CASE("results are rounded once, to nearest even", "[reference]") {
  for (int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) {
    const uint16_t infinity = dtype == FA3_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    std::vector<float> v;
    std::mt19937 random(7);
    for (int i = 0; i < 60000; ++i) {
      // Around and at the middle between neighbours, over the whole range, and beyond its ends.
      const uint16_t below = random() % infinity;
      const long double a = value_of(below, dtype),
                        b = below + 1 < infinity ? value_of(below + 1, dtype) : 65520 + 0 * a;
      const float middle =
          static_cast<float>(dtype == FA3_DTYPE_BF16 && below + 1 == infinity ? 0x1.ffp127L : (a + b) / 2);
      const float choices[] = {middle, std::nextafter(middle, INFINITY), std::nextafter(middle, -INFINITY),
                               std::ldexp(1.0f + static_cast<float>(random() % 8388608) / 8388608,
                                          static_cast<int>(random() % 276) - 149)};
      v.push_back((random() % 2 ? -1 : 1) * choices[i % 4]);
    }
    const int64_t rows = static_cast<int64_t>(v.size()) / 200;
    std::vector<float> zero(v.size());
    std::vector<uint16_t> o(v.size());
    fa3_forward_params p =
        describe({rows, 1, 1, 1, 1, 200}, FA3_DTYPE_FP32, zero.data(), zero.data(), v.data(), o.data(), nullptr);
    p.o.dtype = dtype;
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
    size_t wrong = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      const uint16_t right = std::isinf(v[i]) ? infinity | (std::signbit(v[i]) ? 0x8000 : 0) : nearest(v[i], dtype);
      wrong += v[i] == 0 ? (o[i] & 0x7fff) != 0 : o[i] != right;
    }
    CHECK(wrong == 0);
  }
}

// With V of zeros, O is v_mean.
TEST_CASE("results in e4m3 are rounded once, to nearest even, and never beyond 448", "[reference]") {
  std::vector<float> values = {448,      463.9f,          464,       464.1f, 480, 1e30f, INFINITY, -INFINITY, NAN,
                               0x1p-10f, 0x1.000002p-10f, 0x1p-126f, 1e-45f, 432, 416,   440};
  for (uint16_t below = 0; below < 0x7e; ++below) {
    const float middle =
        static_cast<float>((value_of(below, FA3_DTYPE_E4M3) + value_of(below + 1, FA3_DTYPE_E4M3)) / 2);
    for (const float x : {middle, std::nextafter(middle, INFINITY), std::nextafter(middle, -INFINITY)})
      values.push_back(x), values.push_back(-x);
  }
  while (values.size() % 16) values.push_back(3);
  const int64_t heads = static_cast<int64_t>(values.size()) / 16;
  std::vector<uint8_t> zero(values.size()), o(values.size());
  float one = 1;
  fa3_forward_params p =
      describe({1, 1, 1, heads, heads, 16}, FA3_DTYPE_E4M3, zero.data(), zero.data(), zero.data(), o.data(), nullptr);
  p.q_scale = p.k_scale = p.v_scale = tensor(&one, FA3_DTYPE_FP32, {1, 1, 1});
  p.o_scale = tensor(&one, FA3_DTYPE_FP32, {1});
  p.v_mean = tensor(values.data(), FA3_DTYPE_FP32, {1, heads, 16});
  REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  for (size_t i = 0; i < values.size(); ++i) {
    INFO(values[i]);
    CHECK(o[i] == (std::isnan(values[i]) ? 0x7f : nearest(values[i], FA3_DTYPE_E4M3)));
  }
  CHECK((o[0] == 0x7e && o[5] == 0x7e && o[7] == 0xfe && o[9] == 0 && o[10] == 1));
}

TEST_CASE("a product is rounded before it is added", "[reference]") {
  // Two keys of the same weight, with V and -V: what is left of a product that was not rounded would be O.
  const Shape shape{.batch = 1, .seqlen_q = 200, .seqlen_k = 3, .heads = 1, .heads_kv = 1, .head_dim = 64};
  Memory memory(shape, FA3_DTYPE_FP32, FA3_DTYPE_FP32);
  float *k = memory.k.as<float>(), *v = memory.v.as<float>();
  for (int x = 0; x < 64; ++x) k[128 + x] = k[64 + x], v[x] = 0, v[128 + x] = -v[64 + x];
  REQUIRE(fa3_reference_forward(&memory.params, 1) == FA3_OK);
  const float* o = memory.o.as<float>();
  CHECK(std::count(o, o + 200 * 64, 0.0f) == 200 * 64);
}

TEST_CASE("a weight is its exponential to one unit in the last place", "[reference]") {
  // The first two keys have the weight 1, and V is minus the upper bits of the third's weight: O shows the lower ones.
  constexpr int count = 20000;
  const Shape shape{.batch = count, .seqlen_q = 1, .seqlen_k = 3, .heads = 1, .heads_kv = 1, .head_dim = 2};
  Memory memory(shape, FA3_DTYPE_FP32, FA3_DTYPE_FP32);
  memory.params.softmax_scale = 1;
  float *q = memory.q.as<float>(), *k = memory.k.as<float>(), *v = memory.v.as<float>();
  std::mt19937 random(5);
  std::vector<double> score(count);
  for (int i = 0; i < count; ++i, q += 2, k += 6, v += 6) {
    const double wanted = -std::uniform_real_distribution<double>(0, i % 2 ? 30 : 1)(random);
    const float high = static_cast<float>(wanted), low = static_cast<float>(wanted - high);
    score[i] = static_cast<double>(high) + low;  // exact
    const long double weight = std::exp(static_cast<long double>(score[i]));
    const float upper = static_cast<float>(weight);
    const int exponent = std::ilogb(weight);
    const long double middle = std::rint(std::ldexp(weight - upper, 47 - exponent));  // 23 bits
    q[0] = q[1] = 1;
    k[0] = k[1] = k[2] = k[3] = 0, k[4] = high, k[5] = low;
    v[0] = v[1] = -upper, v[4] = v[5] = 1;
    v[2] = v[3] = -static_cast<float>(std::ldexp(middle, exponent - 47));
  }
  REQUIRE(fa3_reference_forward(&memory.params, 1) == FA3_OK);
  long double largest_error = 0;
  for (int i = 0; i < count; ++i) {
    const long double weight = std::exp(static_cast<long double>(score[i]));
    const long double lower = memory.o.as<float>()[2 * i] * (2 + weight);
    const long double error = lower - memory.v.as<float>()[6 * i] - memory.v.as<float>()[6 * i + 2] - weight;
    largest_error = std::max(largest_error, std::ldexp(std::fabs(error), 52 - std::ilogb(weight)));
  }
  CHECK(largest_error < 0.8);
}

}  // namespace fa3::test
