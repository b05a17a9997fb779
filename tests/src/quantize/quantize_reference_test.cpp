// The CPU reference of fa3_quantize, against values made by hand or in another way.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "../call.h"
#include "../formats.h"
#include "params/v_tile.h"

namespace fa3::test {
namespace {

using Catch::Matchers::WithinAbs;
using P = fa3_quantize_params;

P params() {
  P p{};
  p.struct_size = sizeof p;
  return p;
}

float from_e4m3(uint8_t code) { return float(value_of(code, FA3_DTYPE_E4M3)); }
float from_bf16(uint16_t bits) { return float(value_of(bits, FA3_DTYPE_BF16)); }
uint16_t to_bf16(float value) { return nearest(value, FA3_DTYPE_BF16); }
constexpr uint16_t bf16_nan = 0x7fc0;

// One head of one batch entry: x of bf16, and everything that a quantization of it gives.
struct Small {
  int64_t rows, d;
  std::vector<uint16_t> x;
  std::vector<uint8_t> y;
  std::vector<float> scale, mean, cos, sin, k_mean, lse;
  P p = params();

  Small(int64_t n, int64_t head_dim, int64_t scales, bool tiles = false)
      : rows(n), d(head_dim), x(size_t(n * d)), y(size_t((n + 15) / 16 * 16 * d), poison), scale(size_t(scales), -1.f),
        mean(size_t(d), -1.f), k_mean(size_t(d)), lse(size_t(n), -1.f) {
    p.x = tensor(x.data(), FA3_DTYPE_BF16, {1, n, 1, d});
    p.y = tiles ? tensor(y.data(), FA3_DTYPE_E4M3, {1, 1, (n + 15) / 16, d, 16})
                : tensor(y.data(), FA3_DTYPE_E4M3, {1, n, 1, d});
    p.scale = tensor(scale.data(), FA3_DTYPE_FP32, {1, 1, scales});
  }
  Small(const Small&) = delete;

  void fill(unsigned seed, float shift = 0) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (uint16_t& element : x) element = to_bf16(normal(random) + shift);
  }
  void want_mean() { p.mean = tensor(mean.data(), FA3_DTYPE_FP32, {1, 1, d}); }
  void rotate(int64_t rotary_dim) {
    const int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < rows * half; ++i) {
      const double angle = double(i / half) * std::pow(100.0, -double(i % half) / double(rotary_dim));
      cos.push_back(float(std::cos(angle))), sin.push_back(float(std::sin(angle)));
    }
    p.rotary_cos = tensor(cos.data(), FA3_DTYPE_FP32, {rows, rotary_dim / 2});
    p.rotary_sin = tensor(sin.data(), FA3_DTYPE_FP32, {rows, rotary_dim / 2});
  }
  void run() {
    INFO(fa3_last_error_message());
    REQUIRE(fa3_reference_quantize(&p) == FA3_OK);
  }
  double in(int64_t row, int64_t column) const { return from_bf16(x[size_t(row * d + column)]); }
  // What y stands for.
  double out(int64_t row, int64_t column, size_t block = 0) const {
    return double{from_e4m3(y[size_t(row * d + column)])} * scale[block];
  }

  // The transformed rows before they are rounded: lse_offset shows them, a column at a time.
  std::vector<double> transformed() {
    P probe = p;
    probe.k_mean = tensor(k_mean.data(), FA3_DTYPE_FP32, {1, 1, d});
    probe.lse_offset = tensor(lse.data(), FA3_DTYPE_FP32, {1, 1, rows});
    probe.softmax_scale = 1;
    std::vector<double> all(size_t(rows * d));
    for (int64_t c = 0; c < d; ++c) {
      k_mean.assign(size_t(d), 0.f), k_mean[size_t(c)] = 1;
      REQUIRE(fa3_reference_quantize(&probe) == FA3_OK);
      for (int64_t row = 0; row < rows; ++row) all[size_t(row * d + c)] = lse[size_t(row)];
    }
    return all;
  }
};

double dot(const std::vector<double>& a, const std::vector<double>& b, int64_t i, int64_t j, int64_t d) {
  double sum = 0;
  for (int64_t c = 0; c < d; ++c) sum += a[size_t(i * d + c)] * b[size_t(j * d + c)];
  return sum;
}

}  // namespace

TEST_CASE("quantize: every number of e4m3, and the middles between them", "[quantize]") {
  // Scaled by 1, as the largest is 448; a block of its own, as the middles become even.
  Small exact(64, 16, 1);
  for (size_t i = 0; i < 256; ++i) exact.x[i] = to_bf16(i % 128 == 127 ? 0.f : from_e4m3(uint8_t(i)));
  exact.run();
  CHECK(exact.scale[0] == 1);
  for (size_t i = 0; i < 256; ++i) CHECK(exact.y[i] == (i % 128 == 127 ? 0 : i));
  Small middle(64, 16, 1);
  for (uint8_t code = 0; code < 126; ++code) middle.x[code] = to_bf16((from_e4m3(code) + from_e4m3(code + 1)) / 2);
  middle.x[126] = to_bf16(448);
  middle.run();
  for (uint8_t code = 0; code < 126; ++code) CHECK(middle.y[code] == code + code % 2);
  // The same times 7 / 2^n and 3 / 2^n: scales of which one is a number of bf16, and the other is rounded.
  for (const float factor : {7.f, 3.f, 0x1p-40f}) {
    Small scaled(64, 16, 1);
    std::set<size_t> kept;
    for (size_t i = 0; i < 127; ++i) {
      const float value = factor * from_bf16(middle.x[i]);
      scaled.x[i] = to_bf16(value);
      if (from_bf16(scaled.x[i]) == value) kept.insert(i);
    }
    scaled.run();
    CHECK(kept.size() > 100);
    for (size_t i : kept) CHECK(scaled.y[i] == middle.y[i]);
  }
}

TEST_CASE("quantize: scales of blocks, heads and the tensor", "[quantize]") {
  Small blocks(130, 16, 3);
  blocks.x[3] = to_bf16(-7), blocks.x[64 * 16] = to_bf16(1.75), blocks.x[1] = to_bf16(0.875);
  blocks.run();
  CHECK((blocks.scale[0] == 1 / 64.f && blocks.scale[1] == 1 / 256.f && blocks.scale[2] == 1));
  CHECK((from_e4m3(blocks.y[3]) == -448 && from_e4m3(blocks.y[1]) == 56 && from_e4m3(blocks.y[64 * 16]) == 448));
  Small head(130, 16, 1);
  head.x = blocks.x;
  head.p.x.data = head.x.data();
  head.run();
  CHECK(head.scale[0] == 1 / 64.f);
  CHECK((from_e4m3(head.y[3]) == -448 && from_e4m3(head.y[64 * 16]) == 112));

  // Two batch entries with two heads each.
  std::vector<uint16_t> x(2 * 3 * 2 * 16);
  std::vector<uint8_t> y(x.size());
  for (size_t i = 0; i < x.size(); i += 16) x[i] = to_bf16(float(1 + i / 16));
  float scale[4];
  P p = params();
  p.x = tensor(x.data(), FA3_DTYPE_BF16, {2, 3, 2, 16}), p.y = tensor(y.data(), FA3_DTYPE_E4M3, {2, 3, 2, 16});
  p.scale = tensor(scale, FA3_DTYPE_FP32, {2, 2, 1});
  p.scale.stride[0] = 1, p.scale.stride[1] = 2;
  REQUIRE(fa3_reference_quantize(&p) == FA3_OK);
  CHECK((scale[0] == 5 / 448.f && scale[1] == 11 / 448.f && scale[2] == 6 / 448.f && scale[3] == 12 / 448.f));
  p.scale = tensor(scale, FA3_DTYPE_FP32, {1, 1, 1});
  REQUIRE(fa3_reference_quantize(&p) == FA3_OK);
  CHECK((scale[0] == 12 / 448.f && from_e4m3(y[11 * 16]) == 448));
}

TEST_CASE("quantize: what is not finite, too small, or zero", "[quantize]") {
  Small small(64, 16, 1);
  small.x[0] = bf16_nan, small.x[1] = 0x7f80, small.x[2] = 0xff80, small.x[3] = to_bf16(-3.5);
  small.run();
  CHECK(small.scale[0] == 3.5f / 448);
  CHECK((small.y[0] == 0x7f && small.y[1] == 0x7e && small.y[2] == 0xfe && small.y[3] == 0xfe && small.y[4] == 0));
  Small tiny(64, 16, 1);
  tiny.x[0] = 0x0001;  // 2^-133
  tiny.run();
  CHECK((tiny.scale[0] == 0x1p-126f && from_e4m3(tiny.y[0]) == 0x1p-7f));
  Small zero(64, 16, 1);
  zero.run();
  CHECK((zero.scale[0] == 1 && zero.y[5] == 0));
}

TEST_CASE("quantize: the mean is taken off", "[quantize]") {
  Small small(100, 32, 2);
  small.fill(1, 5);
  small.want_mean();
  small.run();
  std::vector<double> largest(2);
  for (int64_t c = 0; c < 32; ++c) {
    double sum = 0;
    for (int64_t row = 0; row < 100; ++row) sum += small.in(row, c);
    CHECK_THAT(small.mean[size_t(c)], WithinAbs(sum / 100, 1e-6));
    for (int64_t row = 0; row < 100; ++row)
      largest[row / 64] = std::max(largest[row / 64], std::fabs(small.in(row, c) - sum / 100));
  }
  for (size_t block = 0; block < 2; ++block) CHECK_THAT(small.scale[block], WithinAbs(largest[block] / 448, 1e-8));
  for (int64_t row = 0; row < 100; ++row)
    for (int64_t c = 0; c < 32; ++c) {
      const double must = small.in(row, c) - small.mean[size_t(c)];
      const size_t block = size_t(row / 64);
      CHECK_THAT(small.out(row, c, block), WithinAbs(must, std::fabs(must) / 16 + small.scale[block] * 0x1p-10));
    }
}

TEST_CASE("quantize: rotary embedding", "[quantize]") {
  for (const int64_t rotary_dim : {16, 32, 48})
    for (const bool interleaved : {false, true}) {
      Small small(5, 48, 1);
      small.fill(2);
      small.rotate(rotary_dim);
      small.p.flags = interleaved ? FA3_QUANTIZE_ROTARY_INTERLEAVED : 0;
      const std::vector<double> turned = small.transformed();
      const int64_t half = rotary_dim / 2;
      for (int64_t row = 0; row < 5; ++row)
        for (int64_t c = 0; c < 48; ++c) {
          double must = small.in(row, c);
          if (c < rotary_dim) {
            const int64_t i = interleaved ? c / 2 : c % half;
            const bool second = interleaved ? c % 2 : c >= half;
            const double other = small.in(row, interleaved ? c ^ 1 : second ? c - half : c + half);
            const double cos = small.cos[size_t(row * half + i)], sin = small.sin[size_t(row * half + i)];
            must = must * cos + (second ? other * sin : -other * sin);
          }
          CHECK_THAT(turned[size_t(row * 48 + c)], WithinAbs(must, 1e-6));
        }
    }
}

TEST_CASE("quantize: incoherent processing is a Hadamard matrix with signs, and leaves Q K^T", "[quantize]") {
  for (const int64_t d : {16, 48, 64, 96}) {
    Small q(6, d, 1), k(7, d, 1);
    q.fill(3), k.fill(4);
    const std::vector<double> q_before = q.transformed(), k_before = k.transformed();
    q.p.flags = k.p.flags = FA3_QUANTIZE_INCOHERENT;
    q.p.seed = k.p.seed = 1234567890123456789;
    const std::vector<double> q_after = q.transformed(), k_after = k.transformed();
    for (int64_t i = 0; i < 6; ++i)
      for (int64_t j = 0; j < 7; ++j)
        CHECK_THAT(dot(q_after, k_after, i, j, d), WithinAbs(dot(q_before, k_before, i, j, d), 2e-5));
    const int64_t n = d & -d;
    int negative = 0;
    for (int64_t c = 0; c < d; ++c) {
      double must = 0;
      for (int64_t i = c / n * n; i < c / n * n + n; ++i) {
        uint64_t z = q.p.seed + uint64_t(i) + 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        const bool sign = (z ^ z >> 31) >> 63;
        negative += sign && c % n == 0;
        must += (sign != (std::popcount(uint64_t(i % n & c % n)) % 2 == 1) ? -1 : 1) * q.in(2, i);
      }
      CHECK_THAT(q_after[size_t(2 * d + c)], WithinAbs(must / std::sqrt(double(n)), 1e-5));
    }
    CHECK((negative > d / 5 && negative < 4 * d / 5));
  }
  // Another seed, another sign.
  Small a(1, 16, 1), b(1, 16, 1);
  a.fill(5), b.fill(5);
  a.p.flags = b.p.flags = FA3_QUANTIZE_INCOHERENT, b.p.seed = 1;
  CHECK(a.transformed() != b.transformed());
}

TEST_CASE("quantize: the tiles of V", "[quantize]") {
  Small rows(37, 32, 1), tiles(37, 32, 1, true);
  rows.fill(6), tiles.fill(6);
  rows.run(), tiles.run();
  CHECK(rows.scale == tiles.scale);
  // Byte by byte, as fa3.h says it.
  size_t at = 0;
  for (int64_t g = 0; g < 3; ++g)
    for (int64_t a = 0; a < 2; ++a)
      for (int64_t c = 0; c < 2; ++c)
        for (int64_t r = 0; r < 8; ++r)
          for (int64_t q = 0; q < 4; ++q)
            for (int64_t b = 0; b < 2; ++b)
              for (int64_t e = 0; e < 2; ++e) {
                const int64_t key = 16 * g + 8 * b + 2 * q + e, column = 16 * a + 2 * r + c;
                CHECK(tiles.y[at++] == (key < 37 ? rows.y[size_t(key * 32 + column)] : 0));
              }
  // Whatever the length, every byte is written: keys that there are not are zeros.
  for (int64_t n = 1; n <= 33; ++n) {
    Small some(n, 16, 1, true);
    std::fill(some.x.begin(), some.x.end(), to_bf16(448));
    some.run();
    INFO(n << " keys");
    for (int64_t key = 0; key < (n + 15) / 16 * 16; ++key)
      for (int c = 0; c < 16; ++c)
        CHECK(some.y[size_t(key / 16 * 256 + v_tile_row(c) * 16 + v_tile_byte(int(key % 16)))] == (key < n ? 0x7e : 0));
  }
  for (int column = 0; column < 256; ++column) {
    const int a = column / 16, r = column % 16 / 2, c = column % 2;
    CHECK(v_tile_row(column) == 16 * a + 8 * c + r);
  }
  for (int q = 0; q < 4; ++q)
    for (int b = 0; b < 2; ++b)
      for (int e = 0; e < 2; ++e) CHECK(v_tile_key(4 * q + 2 * b + e) == 8 * b + 2 * q + e);
}

TEST_CASE("quantize: the offset of the LSE", "[quantize]") {
  // Four heads of Q on two of K.
  const int64_t d = 32, rows = 3;
  std::vector<uint16_t> x(size_t(rows * 4 * d));
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (uint16_t& element : x) element = to_bf16(normal(random));
  std::vector<uint8_t> y(x.size());
  std::vector<float> k_mean(size_t(2 * d)), lse(size_t(4 * rows));
  for (float& value : k_mean) value = normal(random);
  float scale;
  for (const float softmax_scale : {0.f, 0.3f}) {
    P p = params();
    p.x = tensor(x.data(), FA3_DTYPE_BF16, {1, rows, 4, d}), p.y = tensor(y.data(), FA3_DTYPE_E4M3, {1, rows, 4, d});
    p.scale = tensor(&scale, FA3_DTYPE_FP32, {1, 1, 1});
    p.k_mean = tensor(k_mean.data(), FA3_DTYPE_FP32, {1, 2, d});
    p.lse_offset = tensor(lse.data(), FA3_DTYPE_FP32, {1, 4, rows});
    p.softmax_scale = softmax_scale;
    REQUIRE(fa3_reference_quantize(&p) == FA3_OK);
    for (int64_t head = 0; head < 4; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        double sum = 0;
        for (int64_t c = 0; c < d; ++c)
          sum += double{from_bf16(x[size_t((row * 4 + head) * d + c)])} * k_mean[size_t(head / 2 * d + c)];
        CHECK_THAT(lse[size_t(head * rows + row)],
                   WithinAbs(sum * (softmax_scale == 0 ? 1 / std::sqrt(double(d)) : double{softmax_scale}), 1e-6));
      }
  }
}

// What the attention makes of quantized Q, K and V needs no undoing but the offsets that the header names.
TEST_CASE("quantize: attention on what y stands for", "[quantize]") {
  const int64_t n = 150, d = 64;
  Small q(n, d, 3), k(n, d, 3), v(n, d, 1);
  q.fill(8), k.fill(9, 2), v.fill(10, 3);
  for (size_t i = 0; i < k.x.size(); i += size_t(d)) k.x[i + 5] = to_bf16(from_bf16(k.x[i + 5]) * 20);  // outliers
  const auto attention = [&](const auto& element, std::vector<float>& o, std::vector<float>& lse) {
    std::vector<float> operands[3];
    Small* const from[3] = {&q, &k, &v};
    for (int t = 0; t < 3; ++t)
      for (int64_t i = 0; i < n * d; ++i) operands[t].push_back(float(element(*from[t], i / d, i % d)));
    o.resize(size_t(n * d)), lse.resize(size_t(n));
    const fa3_forward_params p = describe({1, n, n, 1, 1, d}, FA3_DTYPE_FP32, operands[0].data(), operands[1].data(),
                                          operands[2].data(), o.data(), lse.data());
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
  };
  std::vector<float> o, lse, o8, lse8;
  attention([](Small& from, int64_t row, int64_t c) { return from.in(row, c); }, o, lse);

  k.want_mean(), v.want_mean();
  q.p.flags = k.p.flags = FA3_QUANTIZE_INCOHERENT;
  q.p.seed = k.p.seed = 42;
  k.run(), v.run();
  q.p.k_mean = tensor(k.mean.data(), FA3_DTYPE_FP32, {1, 1, d});
  q.p.lse_offset = tensor(q.lse.data(), FA3_DTYPE_FP32, {1, 1, n});
  q.run();
  const auto stands_for = [](Small& from, int64_t row, int64_t c) {
    return from.out(row, c, from.scale.size() > 1 ? size_t(row / 64) : 0);
  };
  attention(stands_for, o8, lse8);
  double error = 0, lse_error = 0, offset = 0;
  for (int64_t i = 0; i < n; ++i) {
    lse_error = std::max(lse_error, std::fabs(double{lse8[size_t(i)]} + q.lse[size_t(i)] - lse[size_t(i)]));
    offset = std::max(offset, std::fabs(double{q.lse[size_t(i)]}));
    for (int64_t c = 0; c < d; ++c)
      error += std::pow(double{o8[size_t(i * d + c)]} + v.mean[size_t(c)] - o[size_t(i * d + c)], 2);
  }
  CHECK(std::sqrt(error / double(n * d)) < 0.05);
  CHECK(lse_error < 0.5);
  CHECK(offset > 5);  // it did matter
}

}  // namespace fa3::test
