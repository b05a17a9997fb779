// The CPU reference against cases worked out by hand and against a second implementation: long double, two passes, one
// element at a time, with its own reading and rounding of the formats.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "call.h"

namespace fa3::test {
namespace {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

int element_size(int32_t dtype) { return dtype == FA3_DTYPE_FP32 ? 4 : dtype == FA3_DTYPE_E4M3 ? 1 : 2; }
int fraction_bits(int32_t dtype) { return dtype == FA3_DTYPE_BF16 ? 7 : dtype == FA3_DTYPE_FP16 ? 10 : 3; }
uint16_t sign_bit(int32_t dtype) { return dtype == FA3_DTYPE_E4M3 ? 0x80 : 0x8000; }
// The first pattern that is no finite number: infinity, or the NaN of e4m3.
uint16_t end_of_numbers(int32_t dtype) {
  return dtype == FA3_DTYPE_BF16 ? 0x7f80 : dtype == FA3_DTYPE_FP16 ? 0x7c00 : 0x7f;
}

// The value of a 16-bit or 8-bit pattern, by the definition of the formats.
long double value_of(uint16_t bits, int32_t dtype) {
  const uint16_t magnitude = bits & (sign_bit(dtype) - 1), end = end_of_numbers(dtype);
  const int bias = dtype == FA3_DTYPE_BF16 ? 127 : dtype == FA3_DTYPE_FP16 ? 15 : 7;
  const int exponent = magnitude >> fraction_bits(dtype), fraction = magnitude & ((1 << fraction_bits(dtype)) - 1);
  const long double sign = bits & sign_bit(dtype) ? -1 : 1;
  const long double part = std::ldexp(static_cast<long double>(fraction), -fraction_bits(dtype));
  if (magnitude >= end) return magnitude > end || dtype == FA3_DTYPE_E4M3 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1 + part, exponent - bias));
}

// Rounding by search: the nearest of all finite values, the even one of two, and infinity from half a step beyond the
// last; in e4m3 the last.
uint16_t nearest(long double x, int32_t dtype) {
  const uint16_t sign = std::signbit(x) ? sign_bit(dtype) : 0, end = end_of_numbers(dtype);
  x = std::fabs(x);
  uint16_t low = 0, high = end;  // patterns of positive values are ordered as the values
  while (high - low > 1) {
    const uint16_t middle = (low + high) / 2;
    (value_of(middle, dtype) <= x ? low : high) = middle;
  }
  if (dtype == FA3_DTYPE_E4M3 && high == end) return sign | low;
  const long double below = value_of(low, dtype);
  const long double above = high == end ? 2 * below - value_of(low - 1, dtype) : value_of(high, dtype);
  const bool up = x - below > above - x || (x - below == above - x && low % 2 == 1);
  return sign | (up ? high : low);
}

long double at(const fa3_tensor& t, int64_t index) {
  const char* element = static_cast<const char*>(t.data) + index * element_size(t.dtype);
  if (t.dtype == FA3_DTYPE_FP32) return *reinterpret_cast<const float*>(element);
  if (t.dtype == FA3_DTYPE_E4M3) {
    static const auto values = [] {
      std::array<long double, 256> made;
      for (int i = 0; i < 256; ++i) made[i] = value_of(static_cast<uint16_t>(i), FA3_DTYPE_E4M3);
      return made;
    }();
    return values[*reinterpret_cast<const uint8_t*>(element)];
  }
  return value_of(*reinterpret_cast<const uint16_t*>(element), t.dtype);
}

long double read(const fa3_tensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return at(t, a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3]);
}

// The scale of a row of one head; 1 if there are none.
long double scale_of(const fa3_tensor& scale, int64_t batch, int64_t row, int64_t head) {
  if (scale.rank == 0) return 1;
  const int64_t index[3] = {batch, head, row / 64};
  int64_t place = 0;
  for (int i = 0; i < 3; ++i) place += scale.dim[i] > 1 ? index[i] * scale.stride[i] : 0;
  return at(scale, place);
}

// Where a tile holds key n of 16 and column x, in the header's words.
int64_t place_in_tile(int64_t n, int64_t x) {
  static const auto places = [] {
    std::array<std::array<int, 16>, 16> made{};
    for (int q = 0; q < 4; ++q)
      for (int b = 0; b < 2; ++b)
        for (int e = 0; e < 2; ++e)
          for (int r = 0; r < 8; ++r)
            for (int c = 0; c < 2; ++c) made[8 * b + 2 * q + e][2 * r + c] = (8 * c + r) * 16 + 4 * q + 2 * b + e;
    return made;
  }();
  return x / 16 * 256 + places[n][x % 16];
}

long double read_v(const fa3_forward_params& p, int64_t b, int64_t j, int64_t h, int64_t x) {
  const fa3_tensor& v = p.v;
  const long double scale = scale_of(p.v_scale, b, j, h);
  if (v.rank == 4) return read(v, b, j, h, x) * scale;
  return at(v, b * v.stride[0] + h * v.stride[1] + j / 16 * v.stride[2] + place_in_tile(j % 16, x)) * scale;
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
    score.push_back(sum * scale * scale_of(p.q_scale, b, i, h) * scale_of(p.k_scale, b, j, shared));
    seen.push_back(j);
  }
  Row row{std::vector<long double>(d, 0), -INFINITY};
  if (seen.empty()) return row;
  const long double m = *std::max_element(score.begin(), score.end());
  long double l = 0;
  for (size_t n = 0; n < seen.size(); ++n) {
    const long double weight = std::exp(score[n] - m);
    l += weight;
    for (int64_t x = 0; x < d; ++x) row.o[x] += weight * read_v(p, b, seen[n], shared, x);
  }
  for (int64_t x = 0; x < d; ++x) {
    row.o[x] /= l;
    if (p.v_mean.rank) row.o[x] += at(p.v_mean, b * p.v_mean.stride[0] + shared * p.v_mean.stride[1] + x);
    if (p.o_scale.rank) row.o[x] /= at(p.o_scale, 0);
  }
  row.lse = m + std::log(l);
  const fa3_tensor& offset = p.lse_offset;
  if (offset.rank) row.lse += at(offset, b * offset.stride[0] + h * offset.stride[1] + i * offset.stride[2]);
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
    else if (dtype == FA3_DTYPE_E4M3) buffer.as<uint8_t>()[i] = static_cast<uint8_t>(nearest(normal(random), dtype));
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
          const long double roundoff =
              p.o.dtype == FA3_DTYPE_FP32 ? 0x1p-24L : std::ldexp(1.0L, -1 - fraction_bits(p.o.dtype));
          const long double smallest = p.o.dtype == FA3_DTYPE_E4M3 ? 0x1p-6L : 1e-4L;
          const long double unit = std::max(std::fabs(row.o[x]), smallest) * roundoff;
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

TEST_CASE("FP8 against the straightforward way", "[reference]") {
  const Shape shapes[] = {
      {.batch = 1, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 16},
      {.batch = 2, .seqlen_q = 33, .seqlen_k = 130, .heads = 4, .heads_kv = 2, .head_dim = 16},
      {.batch = 2, .seqlen_q = 131, .seqlen_k = 67, .heads = 2, .heads_kv = 1, .head_dim = 16},
      {.batch = 1, .seqlen_q = 5, .seqlen_k = 129, .heads = 3, .heads_kv = 3, .head_dim = 256},
  };
  const int32_t o_dtypes[] = {FA3_DTYPE_E4M3, FA3_DTYPE_BF16, FA3_DTYPE_FP32, FA3_DTYPE_FP16};
  std::mt19937 random(11);
  std::vector<std::vector<float>> memory;
  // Numbers around 1, for a tensor of these dims.
  const auto numbers = [&](std::initializer_list<int64_t> dim) {
    fa3_tensor t = tensor(nullptr, FA3_DTYPE_FP32, dim);
    int64_t count = 1;
    for (int64_t n : dim) count *= n;
    for (auto& x : memory.emplace_back(count)) x = std::uniform_real_distribution<float>(0.25f, 2)(random);
    t.data = memory.back().data();
    return t;
  };
  unsigned n = 0;
  for (const Shape& s : shapes)
    for (int mask = FA3_MASK_NONE; mask <= FA3_MASK_CAUSAL_BOTTOM_RIGHT; ++mask)
      for (int kind = 0; kind < 4; ++kind, ++n) {
        Memory made(s, FA3_DTYPE_E4M3, o_dtypes[n % 4], n);
        fa3_forward_params& p = made.params;
        p.mask = mask;
        const int64_t q_blocks = (s.seqlen_q + 63) / 64, k_blocks = (s.seqlen_k + 63) / 64;
        const auto scales = [&](int64_t heads, int64_t blocks, int which) {
          return which == 0   ? numbers({1, 1, 1})
                 : which == 1 ? numbers({s.batch, heads, 1})
                 : which == 2 ? numbers({s.batch, heads, blocks})
                              : numbers({1, heads, blocks});
        };
        p.q_scale = scales(s.heads, q_blocks, kind);
        p.k_scale = scales(s.heads_kv, k_blocks, (kind + n) % 4);
        p.v_scale = scales(s.heads_kv, k_blocks, (kind + 3) % 4);
        if (p.o.dtype == FA3_DTYPE_E4M3) p.o_scale = numbers({1});
        if (n % 2) p.v_mean = numbers({s.batch, s.heads_kv, s.head_dim});
        if (n % 3) p.lse_offset = numbers({s.batch, s.heads, s.seqlen_q});
        if (n % 5 == 0) p.flags = FA3_FLAG_TWO_LEVEL;
        Buffer tiles(s.batch * s.heads_kv * ((s.seqlen_k + 15) / 16) * s.head_dim * 16);
        if (kind % 2) {
          fill(tiles, FA3_DTYPE_E4M3, n);
          p.v = tensor(tiles.as(), FA3_DTYPE_E4M3, {s.batch, s.heads_kv, (s.seqlen_k + 15) / 16, s.head_dim, 16});
        }
        INFO("problem " << n);
        check_against_straightforward(p, n % 3);
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
