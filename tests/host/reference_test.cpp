// The CPU reference against cases worked out by hand and against a second implementation: long double, two passes, one
// element at a time, with its own reading and rounding of the formats.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "call.h"

namespace fa3::test {
namespace {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

int element_size(int32_t dtype) { return dtype == FA3_DTYPE_FP32 ? 4 : 2; }

// The value of a 16-bit pattern, by the definition of the formats.
long double value_of(uint16_t bits, int32_t dtype) {
  const int fraction_bits = dtype == FA3_DTYPE_BF16 ? 7 : 10, exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  const long double sign = bits >> 15 ? -1 : 1, part = std::ldexp(static_cast<long double>(fraction), -fraction_bits);
  if (exponent == (1 << exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1 + part, exponent - bias));
}

// Rounding by search: the nearest of all finite values, the even one of two, and infinity from half a step beyond the
// last.
uint16_t nearest(long double x, int32_t dtype) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0, infinity = dtype == FA3_DTYPE_BF16 ? 0x7f80 : 0x7c00;
  x = std::fabs(x);
  uint16_t low = 0, high = infinity;  // patterns of positive values are ordered as the values
  while (high - low > 1) {
    const uint16_t middle = (low + high) / 2;
    (value_of(middle, dtype) <= x ? low : high) = middle;
  }
  const long double below = value_of(low, dtype);
  const long double above = high == infinity ? 2 * below - value_of(low - 1, dtype) : value_of(high, dtype);
  const bool up = x - below > above - x || (x - below == above - x && low % 2 == 1);
  return sign | (up ? high : low);
}

long double read(const fa3_tensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t index = a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
  const char* at = static_cast<const char*>(t.data) + index * element_size(t.dtype);
  if (t.dtype == FA3_DTYPE_FP32) return *reinterpret_cast<const float*>(at);
  return value_of(*reinterpret_cast<const uint16_t*>(at), t.dtype);
}

struct Row {
  std::vector<long double> o;
  long double lse;
};

// One row, from tensors with explicit strides.
Row straightforward(const fa3_forward_params& p, int64_t b, int64_t h, int64_t i) {
  const int64_t d = p.q.dim[3], keys = p.k.dim[1], shared = h / (p.q.dim[2] / p.k.dim[2]);
  const long double scale = p.softmax_scale ? p.softmax_scale : 1 / std::sqrt(static_cast<long double>(d));
  std::vector<long double> score;
  std::vector<int64_t> seen;
  for (int64_t j = 0; j < keys; ++j) {
    if (p.mask == FA3_MASK_CAUSAL_TOP_LEFT && j > i) continue;
    if (p.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT && j > i + keys - p.q.dim[1]) continue;
    long double sum = 0;
    for (int64_t x = 0; x < d; ++x) sum += read(p.q, b, i, h, x) * read(p.k, b, j, shared, x);
    score.push_back(sum * scale);
    seen.push_back(j);
  }
  Row row{std::vector<long double>(d, 0), -INFINITY};
  if (seen.empty()) return row;
  const long double m = *std::max_element(score.begin(), score.end());
  long double l = 0;
  for (size_t n = 0; n < seen.size(); ++n) {
    const long double weight = std::exp(score[n] - m);
    l += weight;
    for (int64_t x = 0; x < d; ++x) row.o[x] += weight * read(p.v, b, seen[n], shared, x);
  }
  for (long double& x : row.o) x /= l;
  row.lse = m + std::log(l);
  return row;
}

void set_packed_strides(fa3_tensor& t) {
  int64_t next = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = next;
    next *= t.dim[i];
  }
}

void fill(Buffer& buffer, int32_t dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < buffer.bytes() / element_size(dtype); ++i) {
    if (dtype == FA3_DTYPE_FP32) buffer.as<float>()[i] = normal(random);
    else buffer.as<uint16_t>()[i] = nearest(normal(random), dtype);
  }
}

// Runs the reference and compares every row. Strides must be explicit.
void check_against_straightforward(const fa3_forward_params& p, int threads) {
  REQUIRE(fa3_reference_forward(&p, threads) == FA3_OK);
  for (int64_t b = 0; b < p.q.dim[0]; ++b)
    for (int64_t h = 0; h < p.q.dim[2]; ++h)
      for (int64_t i = 0; i < p.q.dim[1]; ++i) {
        const Row row = straightforward(p, b, h, i);
        long double largest_error = 0;
        for (int64_t x = 0; x < p.q.dim[3]; ++x) {
          const long double ours = read(p.o, b, i, h, x), error = std::fabs(ours - row.o[x]);
          // Half a unit in the last place, and a little for a sum that came out on the other side of the middle.
          const long double unit = std::max(std::fabs(row.o[x]), 1e-4L) * (p.o.dtype == FA3_DTYPE_FP32   ? 0x1p-24L
                                                                           : p.o.dtype == FA3_DTYPE_BF16 ? 0x1p-8L
                                                                                                         : 0x1p-11L);
          largest_error = std::max(largest_error, error / unit);
        }
        CHECK(largest_error < 1.001);
        if (!p.lse.data) continue;
        const float lse =
            static_cast<float*>(p.lse.data)[b * p.lse.stride[0] + h * p.lse.stride[1] + i * p.lse.stride[2]];
        if (std::isinf(row.lse)) CHECK((std::isinf(lse) && lse < 0));
        else
          CHECK_THAT(lse,
                     WithinAbs(static_cast<double>(row.lse), 1e-6 + 1e-7 * std::fabs(static_cast<double>(row.lse))));
      }
}

// Packed buffers of a shape.
struct Memory {
  Buffer q, k, v, o, lse;
  fa3_forward_params params;

  Memory(const Shape& s, int32_t dtype, int32_t o_dtype, unsigned seed = 1)
      : q(s.batch * s.seqlen_q * s.heads * s.head_dim * 4),
        k(s.batch * s.seqlen_k * s.heads_kv * s.head_dim * 4),
        v(k.bytes()),
        o(q.bytes()),
        lse(s.batch * s.seqlen_q * s.heads * 4) {
    fill(q, dtype, seed), fill(k, dtype, seed + 1), fill(v, dtype, seed + 2);
    params = describe(s, dtype, q.as(), k.as(), v.as(), o.as(), lse.as());
    params.o.dtype = o_dtype;
    for (fa3_tensor* t : {&params.q, &params.k, &params.v, &params.o, &params.lse}) set_packed_strides(*t);
  }
};

}  // namespace

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

TEST_CASE("shapes, masks and dtypes against the straightforward way", "[reference]") {
  const Shape shapes[] = {
      {.batch = 1, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 8},
      {.batch = 2, .seqlen_q = 70, .seqlen_k = 130, .heads = 4, .heads_kv = 2, .head_dim = 16},
      {.batch = 1, .seqlen_q = 131, .seqlen_k = 67, .heads = 2, .heads_kv = 1, .head_dim = 24},
      {.batch = 1, .seqlen_q = 64, .seqlen_k = 64, .heads = 3, .heads_kv = 3, .head_dim = 64},
      {.batch = 3, .seqlen_q = 1, .seqlen_k = 200, .heads = 6, .heads_kv = 2, .head_dim = 40},
      {.batch = 1, .seqlen_q = 33, .seqlen_k = 129, .heads = 1, .heads_kv = 1, .head_dim = 256},
  };
  const int32_t dtypes[][2] = {{FA3_DTYPE_BF16, FA3_DTYPE_BF16}, {FA3_DTYPE_BF16, FA3_DTYPE_FP32},
                               {FA3_DTYPE_FP16, FA3_DTYPE_FP16}, {FA3_DTYPE_FP16, FA3_DTYPE_FP32},
                               {FA3_DTYPE_FP32, FA3_DTYPE_FP32}, {FA3_DTYPE_FP32, FA3_DTYPE_BF16}};
  unsigned n = 0;
  for (const Shape& shape : shapes)
    for (int mask = FA3_MASK_NONE; mask <= FA3_MASK_CAUSAL_BOTTOM_RIGHT; ++mask) {
      const auto& dtype = dtypes[n % 6];
      Memory memory(shape, dtype[0], dtype[1], ++n);
      memory.params.mask = mask;
      if (n % 4 == 0) memory.params.softmax_scale = 0.7f;
      INFO("shape " << (n - 1) / 3 << " mask " << mask << " dtypes " << dtype[0] << ' ' << dtype[1]);
      check_against_straightforward(memory.params, n % 3);
    }
}

TEST_CASE("odd head dims are for fp32", "[reference]") {
  for (int64_t head_dim : {1, 3, 13, 255}) {
    Memory memory({.batch = 1, .seqlen_q = 5, .seqlen_k = 7, .heads = 2, .heads_kv = 1, .head_dim = head_dim},
                  FA3_DTYPE_FP32, FA3_DTYPE_FP32);
    check_against_straightforward(memory.params, 1);
  }
}

TEST_CASE("strides of any sign and order, and nothing written between elements", "[reference]") {
  const Shape s{.batch = 2, .seqlen_q = 5, .seqlen_k = 6, .heads = 4, .heads_kv = 2, .head_dim = 8};
  Memory memory(s, FA3_DTYPE_FP16, FA3_DTYPE_FP16);
  Buffer large(1 << 16);
  fa3_forward_params& p = memory.params;
  // q backwards in rows; k with keys innermost; v shared by the batch; o and lse padded, o with heads before rows.
  p.q.stride[1] = -p.q.stride[1];
  p.q.data = memory.q.as<uint16_t>() + 4 * 4 * 8;
  const int64_t k_stride[] = {96, 1, 48, 6}, v_stride[] = {0, 16, 8, 1}, o_stride[] = {2000, 50, 300, 3};
  std::copy_n(k_stride, 4, p.k.stride);
  std::copy_n(v_stride, 4, p.v.stride);
  std::copy_n(o_stride, 4, p.o.stride);
  p.o.data = large.as<uint16_t>() + 100;
  const int64_t lse_stride[] = {-5, 20, 1};
  std::copy_n(lse_stride, 3, p.lse.stride);
  p.lse.data = large.as<float>() + 8000;
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  check_against_straightforward(p, 2);

  std::vector<bool> may(1 << 16, false);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 5; ++i) {
        for (int byte = 0; byte < 4; ++byte) may[(8000 - 5 * b + 20 * h + i) * 4 + byte] = true;
        for (int64_t x = 0; x < 8; ++x)
          for (int byte = 0; byte < 2; ++byte) may[(100 + 2000 * b + 300 * h + 50 * i + 3 * x) * 2 + byte] = true;
      }
  size_t strays = 0;
  for (size_t i = 0; i < may.size(); ++i) strays += !may[i] && large.as<unsigned char>()[i] != poison;
  CHECK(strays == 0);
}

TEST_CASE("without lse, and with sizes of zero", "[reference]") {
  Memory memory({}, FA3_DTYPE_BF16, FA3_DTYPE_BF16);
  memory.params.lse = {};
  check_against_straightforward(memory.params, 1);
  CHECK(memory.lse.untouched());
  for (const Shape& shape :
       {Shape{.batch = 0}, Shape{.seqlen_q = 0}, Shape{.heads = 0}, Shape{.heads = 0, .heads_kv = 0}}) {
    Buffer k(4096), v(4096);
    const fa3_forward_params p = describe(shape, FA3_DTYPE_BF16, nullptr, k.as(), v.as(), nullptr, nullptr);
    CHECK(fa3_reference_forward(&p, 0) == FA3_OK);
  }
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

}  // namespace fa3::test
