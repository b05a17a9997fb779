// The CPU reference against a second implementation: long double, two passes, one element at a time, with its own
// reading of the formats.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "packed_memory.h"

namespace fa3::test {
namespace {

using Catch::Matchers::WithinAbs;

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
  const int64_t d = p.q.dim[3], d_v = p.o.dim[3], keys = p.k.dim[1], shared = h / (p.q.dim[2] / p.k.dim[2]);
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
  Row row{std::vector<long double>(d_v, 0), -INFINITY};
  if (seen.empty()) return row;
  const long double m = *std::max_element(score.begin(), score.end());
  long double l = 0;
  for (size_t n = 0; n < seen.size(); ++n) {
    const long double weight = std::exp(score[n] - m);
    l += weight;
    for (int64_t x = 0; x < d_v; ++x) row.o[x] += weight * read_v(p, b, seen[n], shared, x);
  }
  for (int64_t x = 0; x < d_v; ++x) {
    row.o[x] /= l;
    if (p.v_mean.rank) row.o[x] += at(p.v_mean, b * p.v_mean.stride[0] + shared * p.v_mean.stride[1] + x);
    if (p.o_scale.rank) row.o[x] /= at(p.o_scale, 0);
  }
  row.lse = m + std::log(l);
  const fa3_tensor& offset = p.lse_offset;
  if (offset.rank) row.lse += at(offset, b * offset.stride[0] + h * offset.stride[1] + i * offset.stride[2]);
  return row;
}

// Runs the reference and compares every row. Strides must be explicit.
void check_against_straightforward(const fa3_forward_params& p, int threads) {
  REQUIRE(fa3_reference_forward(&p, threads) == FA3_OK);
  for (int64_t b = 0; b < p.q.dim[0]; ++b)
    for (int64_t h = 0; h < p.q.dim[2]; ++h)
      for (int64_t i = 0; i < p.q.dim[1]; ++i) {
        const Row row = straightforward(p, b, h, i);
        long double largest_error = 0;
        for (int64_t x = 0; x < p.o.dim[3]; ++x) {
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

}  // namespace

TEST_CASE("shapes, masks and dtypes against the straightforward way", "[reference]") {
  const Shape shapes[] = {
      {.batch = 1, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 8},
      {.batch = 2, .seqlen_q = 70, .seqlen_k = 130, .heads = 4, .heads_kv = 2, .head_dim = 16},
      {.batch = 1, .seqlen_q = 131, .seqlen_k = 67, .heads = 2, .heads_kv = 1, .head_dim = 24},
      {.batch = 1, .seqlen_q = 64, .seqlen_k = 64, .heads = 3, .heads_kv = 3, .head_dim = 64},
      {.batch = 3, .seqlen_q = 1, .seqlen_k = 200, .heads = 6, .heads_kv = 2, .head_dim = 40},
      {.batch = 1, .seqlen_q = 33, .seqlen_k = 129, .heads = 1, .heads_kv = 1, .head_dim = 256},
      {.batch = 2, .seqlen_q = 70, .seqlen_k = 65, .heads = 2, .heads_kv = 1, .head_dim = 192, .head_dim_v = 128},
      {.batch = 1, .seqlen_q = 40, .seqlen_k = 130, .heads = 2, .heads_kv = 2, .head_dim = 8, .head_dim_v = 256},
      {.batch = 2, .seqlen_q = 9, .seqlen_k = 70, .heads = 2, .heads_kv = 1, .head_dim = 256, .head_dim_v = 8},
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
      {.batch = 2, .seqlen_q = 5, .seqlen_k = 70, .heads = 4, .heads_kv = 2, .head_dim = 16, .head_dim_v = 64},
      {.batch = 1, .seqlen_q = 66, .seqlen_k = 70, .heads = 2, .heads_kv = 1, .head_dim = 48, .head_dim_v = 16},
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
        if (n % 2) p.v_mean = numbers({s.batch, s.heads_kv, s.v_dim()});
        if (n % 3) p.lse_offset = numbers({s.batch, s.heads, s.seqlen_q});
        if (n % 5 == 0) p.flags = FA3_FLAG_TWO_LEVEL;
        Buffer tiles(s.batch * s.heads_kv * ((s.seqlen_k + 15) / 16) * s.v_dim() * 16);
        if (kind % 2) {
          fill(tiles, FA3_DTYPE_E4M3, n);
          p.v = tensor(tiles.as(), FA3_DTYPE_E4M3, {s.batch, s.heads_kv, (s.seqlen_k + 15) / 16, s.v_dim(), 16});
        }
        INFO("problem " << n);
        check_against_straightforward(p, n % 3);
      }
}

TEST_CASE("odd head dims are for fp32", "[reference]") {
  for (int64_t head_dim : {1, 3, 13, 255})
    for (int64_t head_dim_v : {1, 3, 13, 255}) {
      Memory memory({.batch = 1, .seqlen_q = 5, .seqlen_k = 7, .heads = 2, .heads_kv = 1, .head_dim = head_dim,
                     .head_dim_v = head_dim_v}, FA3_DTYPE_FP32, FA3_DTYPE_FP32);
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

}  // namespace fa3::test
