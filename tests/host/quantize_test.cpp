// fa3_quantize: arguments, and the CPU reference against values made by hand or in another way.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "call.h"
#include "quantize_work.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;
using P = fa3_quantize_params;
constexpr fa3_status invalid = FA3_ERROR_INVALID_ARGUMENT, unsupported = FA3_ERROR_UNSUPPORTED;

P params() {
  P p{};
  p.struct_size = sizeof p;
  return p;
}

// Parameters with every tensor, whose pointers are far apart and lead nowhere.
P imaginary_quantization(bool tiles = false) {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  P p = params();
  p.x = tensor(at(1), FA3_DTYPE_BF16, {2, 100, 4, 64});
  p.y = tiles ? tensor(at(2), FA3_DTYPE_E4M3, {2, 4, 7, 64, 16}) : tensor(at(2), FA3_DTYPE_E4M3, {2, 100, 4, 64});
  p.scale = tensor(at(3), FA3_DTYPE_FP32, {2, 4, 2});
  p.mean = tensor(at(4), FA3_DTYPE_FP32, {2, 4, 64});
  p.rotary_cos = tensor(at(5), FA3_DTYPE_FP32, {100, 16});
  p.rotary_sin = tensor(at(6), FA3_DTYPE_FP32, {100, 16});
  p.k_mean = tensor(at(7), FA3_DTYPE_FP32, {2, 2, 64});
  p.lse_offset = tensor(at(8), FA3_DTYPE_FP32, {2, 4, 100});
  return p;
}

void move(fa3_tensor& t, intptr_t bytes) { t.data = static_cast<char*>(t.data) + bytes; }

struct Change {
  const char* name;  // what the message must contain
  fa3_status status;
  void (*apply)(P&);
};

const Change bad_shapes[] = {
    {"flags is 0x4, has bits", invalid, [](P& p) { p.flags = 4; }},
    {"softmax_scale is -1", invalid, [](P& p) { p.softmax_scale = -1; }},
    {"softmax_scale is nan", invalid, [](P& p) { p.softmax_scale = NAN; }},
    {"softmax_scale is inf", invalid, [](P& p) { p.softmax_scale = INFINITY; }},
    {"softmax_scale is 3e+38, must be > 0 and finite (times log2(e), too)", invalid,
     [](P& p) { p.softmax_scale = 3e38f; }},
    {"reserved is 1, must be 0", invalid, [](P& p) { p.reserved = 1; }},
    {"reserved is -1, must be 0", invalid, [](P& p) { p.reserved = -1; }},
    {"x.dtype is fp32; the kernels quantize bf16 and fp16", unsupported, [](P& p) { p.x.dtype = FA3_DTYPE_FP32; }},
    {"x.dtype is 9, must be a fa3_dtype", invalid, [](P& p) { p.x.dtype = 9; }},
    {"x.rank is 3, must be 4", invalid, [](P& p) { p.x.rank = 3; }},
    {"x.dim[0] is -1", invalid, [](P& p) { p.x.dim[0] = -1; }},
    {"x.dim[3] (head_dim) is 72, must be a multiple of 16 from 16 to 256", invalid, [](P& p) { p.x.dim[3] = 72; }},
    {"x.dim[3] (head_dim) is 272; the largest supported is 256", unsupported, [](P& p) { p.x.dim[3] = 272; }},
    {"x.dim[3] (head_dim) is 0", invalid, [](P& p) { p.x.dim[3] = 0; }},
    {"x.stride[3] is 2, must be 1", invalid, [](P& p) { p.x.stride[3] = 2; }},
    {"x.stride[1] is 260, must be a multiple of 8", invalid, [](P& p) { p.x.stride[1] = 260; }},
    {"x.stride[0] is -8", invalid, [](P& p) { p.x.stride[0] = -8; }},
    {"y.dtype is bf16, must be e4m3", invalid, [](P& p) { p.y.dtype = FA3_DTYPE_BF16; }},
    {"y.dtype is e5m2, which no function takes", unsupported, [](P& p) { p.y.dtype = FA3_DTYPE_E5M2; }},
    {"y.rank is 3, must be 4, or 5", invalid, [](P& p) { p.y.rank = 3; }},
    {"y.dim[0] is 3, must equal x.dim[0], which is 2", invalid, [](P& p) { p.y.dim[0] = 3; }},
    {"y.dim[1] is 3, must equal x.dim[1], which is 100", invalid, [](P& p) { p.y.dim[1] = 3; }},
    {"y.dim[2] is 3, must equal x.dim[2], which is 4", invalid, [](P& p) { p.y.dim[2] = 3; }},
    {"y.dim[3] is 32, must equal x.dim[3], which is 64", invalid, [](P& p) { p.y.dim[3] = 32; }},
    {"y.stride[1] is 264, must be a multiple of 16", invalid, [](P& p) { p.y.stride[1] = 264; }},
    {"y.stride[2] is 0, must be > 0", invalid, [](P& p) { p.y.stride[2] = 0; }},
    {"y.stride[3] is 2, must be 1", invalid, [](P& p) { p.y.stride[3] = 2; }},
    {"y.stride[2] is 48: elements of an output may overlap", invalid, [](P& p) { p.y.stride[2] = 48; }},
    {"scale.dtype is bf16, must be fp32", invalid, [](P& p) { p.scale.dtype = FA3_DTYPE_BF16; }},
    {"scale.rank is 2, must be 3", invalid, [](P& p) { p.scale.rank = 2; }},
    {"scale.dim is 2, 1, 2, must be 1, 1, 1, or", invalid, [](P& p) { p.scale.dim[1] = 1; }},
    {"which are 2, 4, 2", invalid, [](P& p) { p.scale.dim[2] = 3; }},
    {"scale.stride[0] is 3: elements of an output may overlap", invalid, [](P& p) { p.scale.stride[0] = 3; }},
    {"mean.dtype is bf16, must be fp32", invalid, [](P& p) { p.mean.dtype = FA3_DTYPE_BF16; }},
    {"mean.rank is 4, must be 3", invalid, [](P& p) { p.mean.rank = 4; }},
    {"mean.dim[0] is 1, must equal x.dim[0]", invalid, [](P& p) { p.mean.dim[0] = 1; }},
    {"mean.dim[1] is 1, must equal x.dim[2]", invalid, [](P& p) { p.mean.dim[1] = 1; }},
    {"mean.dim[2] is 1, must equal x.dim[3]", invalid, [](P& p) { p.mean.dim[2] = 1; }},
    {"mean.stride[2] is 2, must be 1", invalid, [](P& p) { p.mean.stride[2] = 2; }},
    {"rotary_sin is absent, must be given where rotary_cos is", invalid, [](P& p) { p.rotary_sin = {}; }},
    {"rotary_cos is absent, must be given where rotary_sin is", invalid, [](P& p) { p.rotary_cos = {}; }},
    {"rotary_cos.dtype is fp16, must be fp32", invalid, [](P& p) { p.rotary_cos.dtype = FA3_DTYPE_FP16; }},
    {"rotary_sin.rank is 3, must be 2", invalid, [](P& p) { p.rotary_sin.rank = 3; }},
    {"rotary_cos.dim[0] is 99, must equal x.dim[1], which is 100", invalid, [](P& p) { p.rotary_cos.dim[0] = 99; }},
    {"rotary_cos.dim[1] (rotary_dim / 2) is 12, must be a multiple", invalid, [](P& p) { p.rotary_cos.dim[1] = 12; }},
    {"rotary_cos.dim[1] (rotary_dim / 2) is 40, must be", invalid, [](P& p) { p.rotary_cos.dim[1] = 40; }},
    {"rotary_sin.dim[1] is 8, must equal rotary_cos.dim[1]", invalid, [](P& p) { p.rotary_sin.dim[1] = 8; }},
    {"rotary_sin.stride[0] is 18, must be a multiple of 4", invalid, [](P& p) { p.rotary_sin.stride[0] = 18; }},
    {"rotary_cos.stride[1] is 2, must be 1", invalid, [](P& p) { p.rotary_cos.stride[1] = 2; }},
    {"k_mean is absent, must be given where lse_offset is", invalid, [](P& p) { p.k_mean = {}; }},
    {"lse_offset is absent, must be given where k_mean is", invalid, [](P& p) { p.lse_offset = {}; }},
    {"k_mean.dtype is bf16, must be fp32", invalid, [](P& p) { p.k_mean.dtype = FA3_DTYPE_BF16; }},
    {"k_mean.dim[0] is 1, must equal x.dim[0]", invalid, [](P& p) { p.k_mean.dim[0] = 1; }},
    {"k_mean.dim[1] is 3, must divide the heads, x.dim[2], which is 4", invalid, [](P& p) { p.k_mean.dim[1] = 3; }},
    {"k_mean.dim[1] is 0, must divide", invalid, [](P& p) { p.k_mean.dim[1] = 0; }},
    {"k_mean.dim[2] is 32, must equal x.dim[3]", invalid, [](P& p) { p.k_mean.dim[2] = 32; }},
    {"k_mean.stride[2] is 2, must be 1", invalid, [](P& p) { p.k_mean.stride[2] = 2; }},
    {"lse_offset.dtype is bf16, must be fp32", invalid, [](P& p) { p.lse_offset.dtype = FA3_DTYPE_BF16; }},
    {"lse_offset.dim[0] is 1, must equal x.dim[0]", invalid, [](P& p) { p.lse_offset.dim[0] = 1; }},
    {"lse_offset.dim[1] is 1, must equal x.dim[2]", invalid, [](P& p) { p.lse_offset.dim[1] = 1; }},
    {"lse_offset.dim[2] is 1, must equal x.dim[1]", invalid, [](P& p) { p.lse_offset.dim[2] = 1; }},
    {"lse_offset.stride[2] is 0, must be > 0", invalid, [](P& p) { p.lse_offset.stride[2] = 0; }},
};

const Change bad_pointers[] = {
    {"x.data is NULL", invalid, [](P& p) { p.x.data = nullptr; }},
    {"x.data is 0x40000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.x, 8); }},
    {"y.data is 0x80000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.y, 8); }},
    {"scale.data is NULL", invalid, [](P& p) { p.scale.data = nullptr; }},
    {"scale.data is 0xc0000000002, must be aligned to 4 bytes", invalid, [](P& p) { move(p.scale, 2); }},
    {"mean.data is NULL", invalid, [](P& p) { p.mean.data = nullptr; }},
    {"rotary_cos.data is 0x140000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.rotary_cos, 8); }},
    {"k_mean.data is NULL", invalid, [](P& p) { p.k_mean.data = nullptr; }},
    {"y may overlap x", invalid, [](P& p) { p.y.data = p.x.data; }},
    {"y may overlap scale", invalid, [](P& p) { p.scale.data = p.y.data; }},
    {"scale may overlap lse_offset", invalid, [](P& p) { p.scale.data = p.lse_offset.data; }},
    {"mean may overlap k_mean", invalid, [](P& p) { p.mean.data = p.k_mean.data; }},
    {"lse_offset may overlap rotary_sin", invalid, [](P& p) { p.lse_offset.data = p.rotary_sin.data; }},
};

void expect(const P& p, fa3_status status, const char* text) {
  INFO(text);
  CHECK(fa3_quantize_check(&p) == status);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring(text));
  CHECK(fa3_reference_quantize(&p) == status);  // follows no pointer either
}

float from_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7f) == 0x7f) return NAN;
  const float magnitude =
      exponent == 0 ? std::ldexp(float(fraction), -9) : std::ldexp(float(8 + fraction), exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::isnan(value) ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

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

TEST_CASE("quantize: good arguments are accepted", "[quantize]") {
  for (const bool tiles : {false, true}) {
    P p = imaginary_quantization(tiles);
    INFO(fa3_last_error_message());
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {2, 4, 1});
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.mean = p.rotary_cos = p.rotary_sin = p.k_mean = p.lse_offset = {};
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.x.stride[0] = p.x.stride[2] = 0;  // broadcasts
    p.flags = FA3_QUANTIZE_INCOHERENT | FA3_QUANTIZE_ROTARY_INTERLEAVED;
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.x.dim[0] = p.y.dim[0] = 1, p.y.stride[0] = 3;  // not used
    CHECK(fa3_quantize_check(&p) == FA3_OK);
  }
}

TEST_CASE("quantize: a bad argument is named", "[quantize]") {
  size_t bytes = 0;
  for (const Change& change : bad_shapes) {
    P p = imaginary_quantization();
    change.apply(p);
    expect(p, change.status, change.name);
    CHECK(fa3_quantize_workspace_size(&p, &bytes) == change.status);
  }
  for (const Change& change : bad_pointers) {
    P p = imaginary_quantization();
    change.apply(p);
    expect(p, change.status, change.name);
    CHECK(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
  }
  const Change bad_tiles[] = {
      {"y.dim[1] is 3, must equal x.dim[2], which is 4", invalid, [](P& p) { p.y.dim[1] = 3; }},
      {"y.dim[2] is 6, must equal the number of tiles, x.dim[1] / 16 rounded up, which is 7", invalid,
       [](P& p) { p.y.dim[2] = 6; }},
      {"y.dim[3] is 48, must equal x.dim[3]", invalid, [](P& p) { p.y.dim[3] = 48; }},
      {"y.dim[4] is 8, must be 16", invalid, [](P& p) { p.y.dim[4] = 8; }},
      {"y.stride[3] is 32, must be 16", invalid, [](P& p) { p.y.stride[3] = 32; }},
      {"y.stride[4] is 2, must be 1", invalid, [](P& p) { p.y.stride[4] = 2; }},
      {"y.stride[2] is 1032, must be a multiple of 16", invalid, [](P& p) { p.y.stride[2] = 1032; }},
      {"y.stride[2] is 1008: elements of an output may overlap", invalid, [](P& p) { p.y.stride[2] = 1008; }},
  };
  for (const Change& change : bad_tiles) {
    P p = imaginary_quantization(true);
    change.apply(p);
    expect(p, change.status, change.name);
  }
  P many = imaginary_quantization();
  many.mean = many.rotary_cos = many.rotary_sin = many.k_mean = many.lse_offset = {};
  many.x.stride[0] = many.x.stride[1] = many.x.stride[2] = 0;
  many.x.dim[0] = many.y.dim[0] = 1 << 16, many.x.dim[1] = many.y.dim[1] = 1, many.x.dim[2] = many.y.dim[2] = 1 << 15;
  many.y.stride[0] = 64 << 15;
  many.scale = tensor(many.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
  CHECK(fa3_quantize_check(&many) == unsupported);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("x has 2147483648 heads of 1 rows"));
  CHECK(fa3_quantize_check(nullptr) == invalid);
  const P good = imaginary_quantization();
  CHECK(fa3_quantize_workspace_size(&good, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("bytes is NULL"));
}

TEST_CASE("quantize: rows and blocks that the kernels cannot count are refused", "[quantize]") {
  const auto check = [](int64_t rows, int64_t heads) {
    P p = imaginary_quantization();
    p.mean = p.rotary_cos = p.rotary_sin = p.k_mean = p.lse_offset = {};
    p.x.dim[0] = 1, p.x.dim[1] = rows, p.x.dim[2] = heads, p.x.dim[3] = 16;
    p.x.stride[0] = p.x.stride[1] = p.x.stride[2] = 0;
    p.y = tensor(p.y.data, FA3_DTYPE_E4M3, {1, rows, heads, 16});
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
    return fa3_quantize_check(&p);
  };
  constexpr int64_t most_rows = INT32_MAX - 1024, most_blocks = INT32_MAX - 65536;
  CHECK((check(most_rows, 1) == FA3_OK && check(1, most_blocks) == FA3_OK));
  CHECK((check(most_rows + 1, 1) == unsupported && check(1, most_blocks + 1) == unsupported));
}

TEST_CASE("quantize: the workspace", "[quantize]") {
  size_t bytes = 0;
  P p = imaginary_quantization();
  p.mean = {};
  p.x.data = p.y.data = nullptr;
  REQUIRE(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
  CHECK(bytes == FA3_FORWARD_WORKSPACE_BYTES);
  p = imaginary_quantization();
  REQUIRE(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
  CHECK(bytes > FA3_FORWARD_WORKSPACE_BYTES);
  std::vector<uint64_t> memory(bytes / 8 + 2);
  void* const workspace = memory.data();
  CHECK(fa3_quantize(&p, nullptr, bytes, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace is NULL"));
  CHECK(fa3_quantize(&p, workspace, bytes - 1, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
  CHECK(fa3_quantize(&p, p.x.data, bytes, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace may overlap x"));
  CHECK(fa3_quantize(&p, p.mean.data, bytes, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace may overlap mean"));
  p.x.dim[1] = p.y.dim[1] = p.rotary_cos.dim[0] = p.rotary_sin.dim[0] = p.lse_offset.dim[2] = p.scale.dim[2] = 0;
  CHECK(fa3_quantize(&p, workspace, sizeof(uint64_t) * memory.size(), nullptr) == FA3_OK);  // no GPU is asked for
}

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
  small.x[0] = to_bf16(NAN), small.x[1] = 0x7f80, small.x[2] = 0xff80, small.x[3] = to_bf16(-3.5);
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

TEST_CASE("quantize: the parts that are measured", "[quantize]") {
  for (const PassRow& row : pass_rows) {
    if (row.pass != Pass::measure) continue;
    for (const Measure measure : {Measure::largest, Measure::sums, Measure::extremes})
      for (const int64_t heads : {1, 2, 7, 16, 33, 128, 5000})
        for (const int64_t length : {1, 64, 257, 1000, 16384, 100000}) {
          const MeasureStep step = MeasureStep::of(row, measure);
          const QuantizeParts parts = QuantizeParts::of(row, measure, heads, length);
          const int64_t steps = divided_up(length, step.rows), resident = 132 * row.resident_blocks();
          CHECK((parts.groups == divided_up(heads, step.heads) && parts.parts >= 1 && parts.parts <= steps));
          CHECK(parts.thread_blocks == std::min<int64_t>(resident, int64_t{parts.groups} * parts.parts));
          // None has a step more than it must, and the machine is filled by half at least, if there is enough.
          const int64_t most = std::max<int64_t>(1, resident / parts.groups);
          CHECK(divided_up<int64_t>(steps, parts.parts) == divided_up(steps, most));
          CHECK((parts.parts == steps || parts.groups * parts.parts * 2 >= std::min<int64_t>(resident, parts.groups)));
        }
  }
}

}  // namespace fa3::test
