// fa3_combine: arguments, and the CPU reference against the formula in another way and against fa3_reference_forward.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "../call.h"
#include "../formats.h"
#include "../refused.h"

namespace fa3::test {
namespace {

using Catch::Matchers::WithinAbs;
using P = fa3_combine_params;

P params() {
  P p{};
  p.struct_size = sizeof p;
  return p;
}

// Parameters whose pointers are far apart and lead nowhere.
P imaginary_combination() {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  P p = params();
  p.o_parts = tensor(at(1), FA3_DTYPE_BF16, {3, 2, 100, 4, 64});
  p.lse_parts = tensor(at(2), FA3_DTYPE_FP32, {3, 2, 4, 100});
  p.o = tensor(at(3), FA3_DTYPE_FP16, {2, 100, 4, 64});
  p.lse = tensor(at(4), FA3_DTYPE_FP32, {2, 4, 100});
  return p;
}

using Change = ChangeOf<P>;

const Change bad[] = {
    {"flags is 0x1, has bits", invalid, [](P& p) { p.flags = 1; }},
    {"o_parts.dtype is 0, must be a fa3_dtype", invalid, [](P& p) { p.o_parts.dtype = FA3_DTYPE_NONE; }},
    {"o_parts.dtype is e4m3; parts are merged in bf16, fp16 and fp32", unsupported,
     [](P& p) { p.o_parts.dtype = FA3_DTYPE_E4M3; }},
    {"o_parts.dtype is e5m2", unsupported, [](P& p) { p.o_parts.dtype = FA3_DTYPE_E5M2; }},
    {"lse_parts.dtype is bf16, must be fp32", invalid, [](P& p) { p.lse_parts.dtype = FA3_DTYPE_BF16; }},
    {"o.dtype is e4m3; parts are merged in", unsupported, [](P& p) { p.o.dtype = FA3_DTYPE_E4M3; }},
    {"lse.dtype is fp16, must be fp32", invalid, [](P& p) { p.lse.dtype = FA3_DTYPE_FP16; }},
    {"o_parts.rank is 4, must be 5", invalid, [](P& p) { p.o_parts.rank = 4; }},
    {"o_parts.dim[0] is -1", invalid, [](P& p) { p.o_parts.dim[0] = -1; }},
    {"lse_parts.rank is 3, must be 4", invalid, [](P& p) { p.lse_parts.rank = 3; }},
    {"o.rank is 5, must be 4", invalid, [](P& p) { p.o.rank = 5; }},
    {"lse.rank is 2, must be 3", invalid, [](P& p) { p.lse.rank = 2; }},
    {"lse_parts.dim[0] is 2, must equal o_parts.dim[0], which is 3", invalid, [](P& p) { p.lse_parts.dim[0] = 2; }},
    {"lse_parts.dim[1] is 1, must equal o_parts.dim[1], which is 2", invalid, [](P& p) { p.lse_parts.dim[1] = 1; }},
    {"lse_parts.dim[2] is 5, must equal o_parts.dim[3], which is 4", invalid, [](P& p) { p.lse_parts.dim[2] = 5; }},
    {"lse_parts.dim[3] is 99, must equal o_parts.dim[2], which is 100", invalid,
     [](P& p) { p.lse_parts.dim[3] = 99; }},
    {"o.dim[0] is 1, must equal o_parts.dim[1], which is 2", invalid, [](P& p) { p.o.dim[0] = 1; }},
    {"o.dim[1] is 99, must equal o_parts.dim[2], which is 100", invalid, [](P& p) { p.o.dim[1] = 99; }},
    {"o.dim[2] is 3, must equal o_parts.dim[3], which is 4", invalid, [](P& p) { p.o.dim[2] = 3; }},
    {"o.dim[3] is 32, must equal o_parts.dim[4], which is 64", invalid, [](P& p) { p.o.dim[3] = 32; }},
    {"lse.dim[0] is 1, must equal o_parts.dim[1]", invalid, [](P& p) { p.lse.dim[0] = 1; }},
    {"lse.dim[1] is 100, must equal o_parts.dim[3], which is 4", invalid, [](P& p) { p.lse.dim[1] = 100; }},
    {"lse.dim[2] is 4, must equal o_parts.dim[2], which is 100", invalid, [](P& p) { p.lse.dim[2] = 4; }},
    {"o_parts.dim[4] (head_dim) is 60, must be a multiple of 8", invalid,
     [](P& p) { p.o_parts.dim[4] = p.o.dim[3] = 60; }},
    {"o_parts.dim[4] (head_dim) is 0, must be", invalid, [](P& p) { p.o_parts.dim[4] = p.o.dim[3] = 0; }},
    {"o_parts.dim[4] (head_dim) is 520; the largest supported is 512", unsupported,
     [](P& p) { p.o_parts.dim[4] = p.o.dim[3] = 520; }},
    {"o_parts.dim[4] (head_dim) is 520; the largest supported is 512", unsupported,  // not that o's must be as large
     [](P& p) { p.o_parts.dim[4] = 520; }},
    {"o_parts.dim[0] (parts) is 65537; the largest supported is 65536", unsupported,
     [](P& p) { p.o_parts.dim[0] = p.lse_parts.dim[0] = 65537; }},
    {"o_parts.dim[2] (seqlen) is 2147418112; the largest supported is 2147418111", unsupported,
     [](P& p) { p.o_parts.dim[2] = p.lse_parts.dim[3] = p.o.dim[1] = p.lse.dim[2] = INT32_MAX - 65535; }},
    {"o_parts.dim[1] * o_parts.dim[3] (batch * heads) is 8589934588; the largest", unsupported,
     [](P& p) { p.o_parts.dim[1] = p.lse_parts.dim[1] = p.o.dim[0] = p.lse.dim[0] = INT32_MAX; }},
    {"o_parts.stride[4] is 2, must be 1", invalid, [](P& p) { p.o_parts.stride[4] = 2; }},
    {"o_parts.stride[4] is 0, must be 1", invalid, [](P& p) { p.o_parts.stride[4] = 0; }},
    {"o_parts.stride[0] is 51204, must be a multiple of 8", invalid, [](P& p) { p.o_parts.stride[0] += 4; }},
    {"o_parts.stride[1] is 25604, must be a multiple of 8", invalid, [](P& p) { p.o_parts.stride[1] += 4; }},
    {"o_parts.stride[2] is 260, must be a multiple of 8", invalid, [](P& p) { p.o_parts.stride[2] += 4; }},
    {"o_parts.stride[3] is 68, must be a multiple of 8", invalid, [](P& p) { p.o_parts.stride[3] += 4; }},
    {"o_parts.stride[0] is -8, must be >= 0", invalid, [](P& p) { p.o_parts.stride[0] = -8; }},
    {"o_parts.stride[3] is -64, must be >= 0", invalid, [](P& p) { p.o_parts.stride[3] = -64; }},
    {"o_parts.dim[0] * o_parts.stride[0] is 3 * 549755813888 elements", invalid,
     [](P& p) { p.o_parts.stride[0] = int64_t{1} << 39; }},
    {"lse_parts.stride[0] is -1, must be >= 0", invalid, [](P& p) { p.lse_parts.stride[0] = -1; }},
    {"o.stride[3] is 2, must be 1", invalid, [](P& p) { p.o.stride[3] = 2; }},
    {"o.stride[1] is 260, must be a multiple of 8", invalid, [](P& p) { p.o.stride[1] += 4; }},
    {"o.stride[0] is 0, must be > 0", invalid, [](P& p) { p.o.stride[0] = 0; }},
    {"o.stride[2] is 56: elements of an output may overlap", invalid, [](P& p) { p.o.stride[2] = 56; }},
    {"lse.stride[2] is 0, must be > 0", invalid, [](P& p) { p.lse.stride[2] = 0; }},
    {"lse.stride[1] is 99: elements of an output may overlap", invalid, [](P& p) { p.lse.stride[1] = 99; }},
    {"o_parts.data is NULL", invalid, [](P& p) { p.o_parts.data = nullptr; }},
    {"o_parts.data is 0x40000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.o_parts, 8); }},
    {"o_parts reaches beyond the address space", invalid,
     [](P& p) { p.o_parts.data = reinterpret_cast<void*>(~uintptr_t{0} << 16); }},
    {"o_parts reaches beyond the address space", invalid,  // with its last part
     [](P& p) { p.o_parts.data = reinterpret_cast<void*>(-uintptr_t{3 * 51200 * 2}); }},
    {"lse_parts.data is NULL", invalid, [](P& p) { p.lse_parts.data = nullptr; }},
    {"lse_parts.data is 0x80000000002, must be aligned to 4 bytes", invalid, [](P& p) { move(p.lse_parts, 2); }},
    {"o.data is NULL", invalid, [](P& p) { p.o.data = nullptr; }},
    {"o.data is 0xc0000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.o, 8); }},
    {"lse.data is NULL", invalid, [](P& p) { p.lse.data = nullptr; }},
    {"lse.data is 0x100000000002, must be aligned to 4 bytes", invalid, [](P& p) { move(p.lse, 2); }},
    {"o may overlap lse:", invalid, [](P& p) { p.lse.data = p.o.data; }},
    {"o may overlap lse_parts", invalid, [](P& p) { p.o.data = p.lse_parts.data; }},
    {"lse may overlap lse_parts", invalid, [](P& p) { p.lse.data = p.lse_parts.data; }},
    {"o may overlap o_parts", invalid, [](P& p) { p.o.data = p.o_parts.data; }},
    {"o may overlap o_parts", invalid,  // the last row of the last part alone
     [](P& p) { p.o.data = p.o_parts.data, move(p.o, 2 * (3 * 51200 - 8)); }},
    {"o may overlap o_parts", invalid,  // the first row of the first part alone
     [](P& p) { p.o.data = p.o_parts.data, move(p.o, -2 * (51200 - 8)); }},
    {"lse may overlap o_parts", invalid, [](P& p) { p.lse.data = p.o_parts.data, move(p.lse, 2 * 2 * 51200); }},
};

void check_refused(const P& p, const Change& change) {
  INFO(change.name);
  expect(fa3_combine_check(&p), change);
  CHECK(fa3_reference_combine(&p) == change.status);  // follows no pointer either
  CHECK(fa3_combine(&p, nullptr) == change.status);   // asks for no GPU
}

// Parts of `rows` rows of one head in float32, and what becomes of them.
struct Small {
  int64_t parts, rows, d;
  std::vector<float> o_parts, lse_parts, o, lse;
  P p = params();

  Small(int64_t n, int64_t seqlen, int64_t head_dim)
      : parts(n), rows(seqlen), d(head_dim), o_parts(size_t(n * seqlen * d) + 4), lse_parts(size_t(n * seqlen)),
        o(size_t(seqlen * d) + 4, -77.f), lse(size_t(seqlen), -77.f) {
    p.o_parts = tensor(aligned(o_parts), FA3_DTYPE_FP32, {n, 1, seqlen, 1, d});
    p.lse_parts = tensor(lse_parts.data(), FA3_DTYPE_FP32, {n, 1, 1, seqlen});
    p.o = tensor(aligned(o), FA3_DTYPE_FP32, {1, seqlen, 1, d});
    p.lse = tensor(lse.data(), FA3_DTYPE_FP32, {1, 1, seqlen});
  }
  Small(const Small&) = delete;

  static void* aligned(std::vector<float>& v) {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(v.data()) + 15) / 16 * 16);
  }
  float& part(int64_t n, int64_t row, int64_t c) {
    return static_cast<float*>(p.o_parts.data)[(n * rows + row) * d + c];
  }
  float& lse_of(int64_t n, int64_t row) { return lse_parts[size_t(n * rows + row)]; }
  float out(int64_t row, int64_t c) const { return static_cast<const float*>(p.o.data)[row * d + c]; }
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : o_parts) x = normal(random);
    for (float& x : lse_parts) x = 3 * normal(random);
  }
  void run() {
    INFO(fa3_last_error_message());
    REQUIRE(fa3_reference_combine(&p) == FA3_OK);
  }
};

}  // namespace

TEST_CASE("combine: good arguments are accepted", "[combine]") {
  P p = imaginary_combination();
  const auto good = [](const P& q) {
    const bool accepted = fa3_combine_check(&q) == FA3_OK;
    INFO(fa3_last_error_message());
    CHECK(accepted);
  };
  good(p);
  for (const fa3_dtype parts : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32})
    for (const fa3_dtype o : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}) {
      p.o_parts.dtype = parts, p.o.dtype = o;
      good(p);
    }
  p.o_parts.stride[0] += 4, p.o_parts.stride[3] += 4;  // float32: 16 bytes
  p.o_parts.stride[2] = 4 * p.o_parts.stride[3], p.o_parts.stride[1] = 100 * p.o_parts.stride[2];
  good(p);
  p = imaginary_combination();
  p.lse = {};
  good(p);
  for (int i = 0; i < 4; ++i) p.o_parts.stride[i] = p.lse_parts.stride[i] = 0;  // broadcasts
  good(p);
  p = imaginary_combination();
  p.o_parts.dim[0] = p.lse_parts.dim[0] = 0;  // no parts need no memory
  p.o_parts.data = p.lse_parts.data = nullptr;
  good(p);
  p = imaginary_combination();
  p.o_parts.dim[0] = p.lse_parts.dim[0] = 1, p.o_parts.stride[0] = -3;  // a stride that is not used
  good(p);
  p = imaginary_combination();
  p.o_parts.data = reinterpret_cast<void*>(-uintptr_t{3 * 51200 * 2 + 16});  // up to the last bytes there are
  good(p);
  p = imaginary_combination();
  p.o_parts.dim[0] = p.lse_parts.dim[0] = 65536;  // the most
  p.o_parts.stride[0] = p.lse_parts.stride[0] = 0;
  good(p);
  // Outputs between the parts: each part is followed by room for as much again.
  p = imaginary_combination();
  p.o_parts.stride[0] *= 2;
  p.o.data = p.o_parts.data, move(p.o, 2 * 51200);
  good(p);
  p.lse.data = p.o.data, move(p.lse, 2 * 51200 * 2);
  good(p);
  move(p.lse, 2 * 51200);
  CHECK(fa3_combine_check(&p) == invalid);  // in the third part
}

TEST_CASE("combine: a bad argument is named", "[combine]") {
  for (const Change& change : bad) {
    P p = imaginary_combination();
    change.apply(p);
    check_refused(p, change);
  }
  expect(fa3_combine_check(nullptr), invalid, "params is NULL");
}

TEST_CASE("combine: nothing to compute needs no GPU", "[combine]") {
  for (const int dim : {0, 1, 2}) {  // batch, seqlen, heads
    P p = imaginary_combination();
    const int lse_dims[] = {0, 2, 1};
    p.o_parts.dim[1 + dim] = p.o.dim[dim] = 0;
    p.lse_parts.dim[1 + lse_dims[dim]] = p.lse.dim[lse_dims[dim]] = 0;
    CHECK(fa3_combine(&p, nullptr) == FA3_OK);
    CHECK(fa3_reference_combine(&p) == FA3_OK);
  }
  // Nor time, however many heads without rows, or rows of no heads, there are.
  P p = imaginary_combination();
  p.o_parts.dim[1] = p.lse_parts.dim[1] = p.o.dim[0] = p.lse.dim[0] = 1;
  p.o_parts.dim[2] = p.lse_parts.dim[3] = p.o.dim[1] = p.lse.dim[2] = 0;
  p.o_parts.dim[3] = p.lse_parts.dim[2] = p.o.dim[2] = p.lse.dim[1] = INT32_MAX - 65536;
  CHECK(fa3_combine_check(&p) == FA3_OK);
  p.o_parts.dim[1] = p.lse_parts.dim[1] = p.o.dim[0] = p.lse.dim[0] = INT32_MAX;
  p.o_parts.dim[2] = p.lse_parts.dim[3] = p.o.dim[1] = p.lse.dim[2] = INT32_MAX - 65536;
  p.o_parts.dim[3] = p.lse_parts.dim[2] = p.o.dim[2] = p.lse.dim[1] = 0;
  CHECK(fa3_combine_check(&p) == FA3_OK);
  CHECK(fa3_reference_combine(&p) == FA3_OK);
}

// The formula as it stands in the header, in long double and without a reference for the exponentials.
TEST_CASE("combine: the reference is the formula", "[combine]") {
  for (const int64_t parts : {1, 2, 3, 8, 64}) {
    Small small(parts, 20, 40);
    small.fill(unsigned(parts));
    small.run();
    for (int64_t row = 0; row < small.rows; ++row) {
      long double sum = 0;
      for (int64_t n = 0; n < parts; ++n) sum += std::exp((long double)small.lse_of(n, row));
      CHECK_THAT(small.lse[size_t(row)], WithinAbs(double(std::log(sum)), 1e-6));
      for (int64_t c = 0; c < small.d; ++c) {
        long double o = 0;
        for (int64_t n = 0; n < parts; ++n)
          o += std::exp(small.lse_of(n, row) - std::log(sum)) * (long double)small.part(n, row, c);
        CHECK(std::fabs(small.out(row, c) - o) <= 1e-7 * std::fabs(o) + 1e-12);
      }
    }
  }
}

TEST_CASE("combine: parts that have seen no key", "[combine]") {
  constexpr float inf = INFINITY, nan = NAN;
  Small small(4, 8, 8);
  small.fill(5);
  const float lse[8][4] = {{-inf, -inf, -inf, -inf}, {-inf, 2.5f, -inf, -inf}, {1, -inf, -inf, 1},
                           {-inf, -inf, -inf, -800}, {1, nan, -inf, 2},        {inf, 0, 0, 0},
                           {-inf, nan, -inf, -inf},  {-1000, 1000, 0, -inf}};
  for (int64_t row = 0; row < 8; ++row)
    for (int64_t n = 0; n < 4; ++n) {
      small.lse_of(n, row) = lse[row][n];
      for (int64_t c = 0; c < 8; ++c)
        if (lse[row][n] == -inf) small.part(n, row, c) = c % 2 ? nan : inf;
    }
  small.run();
  for (int64_t c = 0; c < 8; ++c) {
    CHECK((small.out(0, c) == 0 && !std::signbit(small.out(0, c))));
    CHECK(small.out(1, c) == small.part(1, 1, c));
    CHECK_THAT(small.out(2, c), WithinAbs((double{small.part(0, 2, c)} + small.part(3, 2, c)) / 2, 1e-7));
    CHECK(small.out(3, c) == small.part(3, 3, c));
    for (const int64_t row : {4, 5, 6}) CHECK(std::isnan(small.out(row, c)));
    CHECK(small.out(7, c) == small.part(1, 7, c));  // the others weigh nothing
  }
  CHECK(small.lse[0] == -inf);
  CHECK((small.lse[1] == 2.5f && small.lse[3] == -800 && small.lse[7] == 1000));
  CHECK_THAT(small.lse[2], WithinAbs(1 + std::log(2.0), 1e-7));
  for (const size_t row : {4, 5, 6}) CHECK(std::isnan(small.lse[row]));
}

TEST_CASE("combine: no parts are like empty ones", "[combine]") {
  Small small(0, 5, 16);
  small.run();
  for (int64_t row = 0; row < 5; ++row) {
    CHECK(small.lse[size_t(row)] == -INFINITY);
    for (int64_t c = 0; c < 16; ++c) CHECK(small.out(row, c) == 0);
  }
}

// Each dtype is read and rounded as itself, through strides of every kind: the parts innermost but for the columns.
TEST_CASE("combine: dtypes and strides", "[combine]") {
  constexpr int64_t parts = 3, batch = 2, rows = 5, heads = 3, d = 16;
  for (const fa3_dtype from : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32})
    for (const fa3_dtype to : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}) {
      const int64_t slot = d + 8, all = parts * batch * rows * heads;
      Buffer o_parts(size_t(all * slot * 4)), lse_parts(size_t(all * 2 * 4)), o(size_t(all * slot * 4)),
          lse(size_t(all * 4));
      P p = params();
      p.o_parts = tensor(o_parts.as(), from, {parts, batch, rows, heads, d});
      set_strides(p.o_parts, {slot, heads * rows * parts * slot, parts * slot, rows * parts * slot, 1});
      p.lse_parts = tensor(lse_parts.as(), FA3_DTYPE_FP32, {parts, batch, heads, rows});
      set_strides(p.lse_parts, {2, 2 * parts, 2 * parts * batch * rows, 2 * parts * batch});
      p.o = tensor(o.as(), to, {batch, rows, heads, d});
      set_strides(p.o, {slot, batch * heads * slot, batch * slot, 1});
      p.lse = tensor(lse.as(), FA3_DTYPE_FP32, {batch, heads, rows});
      set_strides(p.lse, {1, batch * rows, batch});
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      const auto value = [&](int64_t at) -> double {
        return from == FA3_DTYPE_FP32 ? double{o_parts.as<float>()[at]}
                                      : double(value_of(o_parts.as<uint16_t>()[at], from));
      };
      for (int64_t i = 0; i < all * slot; ++i) {
        if (from == FA3_DTYPE_FP32) o_parts.as<float>()[i] = normal(random);
        else o_parts.as<uint16_t>()[i] = nearest(normal(random), from);
      }
      for (int64_t i = 0; i < all * 2; ++i) lse_parts.as<float>()[i] = normal(random);
      INFO("from " << from << " to " << to);
      REQUIRE(fa3_reference_combine(&p) == FA3_OK);
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t h = 0; h < heads; ++h) {
            double weight[parts], sum = 0;
            for (int64_t n = 0; n < parts; ++n) {
              const int64_t at = 2 * (n + parts * (b + batch * (i + rows * h)));
              sum += weight[n] = std::exp(double{lse_parts.as<float>()[at]});
            }
            CHECK_THAT(lse.as<float>()[b + batch * (i + rows * h)], WithinAbs(std::log(sum), 1e-6));
            for (int64_t c = 0; c < d; ++c) {
              double x = 0;
              for (int64_t n = 0; n < parts; ++n)
                x += weight[n] / sum * value(slot * (n + parts * (i + rows * (h + heads * b))) + c);
              const int64_t at = slot * (b + batch * (h + heads * i)) + c;
              if (to == FA3_DTYPE_FP32) CHECK_THAT(o.as<float>()[at], WithinAbs(x, 1e-7 * std::fabs(x) + 1e-12));
              else CHECK(o.as<uint16_t>()[at] == nearest(x, to));
            }
            for (int64_t c = d; c < slot; ++c) {  // between the rows nothing is written
              const int64_t at = slot * (b + batch * (h + heads * i)) + c;
              if (to == FA3_DTYPE_FP32) CHECK(o.as<uint32_t>()[at] == 0xa5a5a5a5);
              else CHECK(o.as<uint16_t>()[at] == 0xa5a5);
            }
          }
    }
}

// What it is for: attention over ranges of the keys, merged, is attention over all of them.
TEST_CASE("combine: attention over ranges of keys", "[combine]") {
  const Shape s{2, 7, 50, 4, 2, 16};
  Buffer q(size_t(s.batch * s.seqlen_q * s.heads * s.head_dim * 4)), k(size_t(s.batch * 50 * s.heads_kv * 16 * 4)),
      v(k.bytes()), whole(q.bytes()), whole_lse(size_t(s.batch * s.heads * s.seqlen_q * 4)), o_parts(3 * q.bytes()),
      lse_parts(3 * whole_lse.bytes()), o(q.bytes()), lse(whole_lse.bytes());
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (Buffer* buffer : {&q, &k, &v})
    for (size_t i = 0; i < buffer->bytes() / 4; ++i) buffer->as<float>()[i] = normal(random);
  fa3_forward_params f = describe(s, FA3_DTYPE_FP32, q.as(), k.as(), v.as(), whole.as(), whole_lse.as());
  f.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  REQUIRE(fa3_reference_forward(&f, 1) == FA3_OK);

  P p = params();
  p.o_parts = tensor(o_parts.as(), FA3_DTYPE_FP32, {3, s.batch, s.seqlen_q, s.heads, s.head_dim});
  p.lse_parts = tensor(lse_parts.as(), FA3_DTYPE_FP32, {3, s.batch, s.heads, s.seqlen_q});
  p.o = f.o, p.o.data = o.as();
  p.lse = f.lse, p.lse.data = lse.as();
  // Keys 0 to 29 and 30 to 42 are before all queries; of the last seven, query i sees keys up to 43 + i.
  const int64_t begin[] = {0, 30, 43}, end[] = {30, 43, 50};
  for (int n = 0; n < 3; ++n) {
    fa3_forward_params part = f;
    part.mask = n == 2 ? FA3_MASK_CAUSAL_TOP_LEFT : FA3_MASK_NONE;
    for (fa3_tensor* t : {&part.k, &part.v}) t->dim[1] = end[n] - begin[n], move(*t, 4 * begin[n] * t->stride[1]);
    part.o.data = p.o_parts.data, move(part.o, 4 * n * p.o_parts.stride[0]);
    part.lse.data = p.lse_parts.data, move(part.lse, 4 * n * p.lse_parts.stride[0]);
    REQUIRE(fa3_reference_forward(&part, 1) == FA3_OK);
  }
  REQUIRE(fa3_reference_combine(&p) == FA3_OK);
  for (size_t i = 0; i < o.bytes() / 4; ++i) CHECK_THAT(o.as<float>()[i], WithinAbs(whole.as<float>()[i], 1e-6));
  for (size_t i = 0; i < lse.bytes() / 4; ++i)
    CHECK_THAT(lse.as<float>()[i], WithinAbs(whole_lse.as<float>()[i], 1e-6));
}

}  // namespace fa3::test
