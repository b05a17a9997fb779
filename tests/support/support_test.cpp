// The judges judged, on the CPU: a blocked online softmax in float32 stands in for the kernels and must pass, and every
// kind of damage to its result must be found. Launches are those of the simulated driver.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <set>

#include "device_case.h"
#include "half.h"
#include "oracle.h"
#include "parallel.h"
#include "params.h"
#include "random.h"
#include "simulated/simulated_cuda.h"

namespace fa3::test {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;

namespace {

// Rows as the table may have them for e4m3, one of each kind.
constexpr Row row_of_e4m3(const char* name, int d, Mask mask, Trait traits) {
  return {name, "fwd8", Kind::forward, Dtype::e4m3, d, d, mask, 128, 128, 2, 3, traits, 0, 0, 0};
}
constexpr Row e4m3_rows[] = {
    row_of_e4m3("tiles", 128, Mask::full, Trait::plain),
    row_of_e4m3("causal tiles", 64, Mask::causal, Trait::plain),
    row_of_e4m3("v as rows", 256, Mask::causal, Trait::transposes_v),
    row_of_e4m3("block scales", 128, Mask::full, Trait::transposes_v | Trait::block_scales),
    row_of_e4m3("two levels", 128, Mask::full, Trait::two_level),
    row_of_e4m3("all", 64, Mask::causal, Trait::two_level | Trait::block_scales),
};

// Up to 32 products as the FP8 tensor cores add them to a sum (plain.h).
float add_truncated(float sum, const float* products, int64_t count) {
  float largest = std::fabs(sum);
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(products[i]));
  if (largest == 0) return sum;
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 13);
  double result = std::trunc(sum / unit);
  for (int64_t i = 0; i < count; ++i) result += std::trunc(products[i] / unit);
  return float(result * unit);
}

// Algorithm 2's arithmetic for one row: blocks of Bc keys, running maximum, P rounded against it, O rescaled in
// float32. For e4m3 with the tensor cores' sums, and with a reference of P that lags behind the maximum; two levels
// begin a new sum with each block.
void online_row(const Case& made, int64_t Bc, int64_t b, int64_t h, int64_t i, float* o, float& lse) {
  const Problem& p = made.problem;
  const int64_t d = p.head_dim, kv = h / (p.heads / p.heads_kv), visible = p.visible_keys(i);
  const bool e4m3 = p.is_e4m3();
  const float scale = float(p.scale() * 1.4426950408889634), threshold = e4m3 ? 3.5f : 0, factor = e4m3 ? 32 : 1;
  std::vector<float> q(static_cast<size_t>(d)), k(q), products(static_cast<size_t>(std::max(d, Bc)));
  std::vector<float> v(size_t(Bc * d)), rounded(static_cast<size_t>(Bc)), part(q);
  made.read_row(0, b, i, h, q.data());
  float m = -INFINITY, l = 0;
  std::fill(o, o + d, 0.0f);
  for (int64_t first = (visible + Bc - 1) / Bc * Bc - Bc; first >= 0; first -= Bc) {
    const int64_t n = std::min(Bc, visible - first);
    std::vector<float> s(size_t(n), 0.0f);
    float block_max = m;
    for (int64_t j = 0; j < n; ++j) {
      made.read_row(1, b, first + j, kv, k.data());
      made.read_row(2, b, first + j, kv, &v[size_t(j * d)]);
      const float v_scale = made.scale_of(2, b, first + j, kv);
      for (int64_t c = 0; c < d; ++c) v[size_t(j * d + c)] *= v_scale;
      float& sum = s[size_t(j)];
      for (int64_t c = 0; c < d; ++c) products[size_t(c)] = q[size_t(c)] * k[size_t(c)];
      for (int64_t c = 0; c < d; c += 32)
        if (e4m3) sum = add_truncated(sum, &products[size_t(c)], std::min<int64_t>(32, d - c));
      for (int64_t c = 0; c < d; ++c)
        if (!e4m3) sum += products[size_t(c)];
      sum *= made.scale_of(0, b, i, h) * made.scale_of(1, b, first + j, kv);
      block_max = std::max(block_max, sum);
    }
    if (!(block_max * scale <= m * scale + threshold)) {
      const float rescale = std::exp2((m - block_max) * scale);
      m = block_max;
      l *= rescale;
      for (int64_t c = 0; c < d; ++c) o[c] *= rescale;
    }
    for (int64_t j = 0; j < n; ++j) {
      const float e = factor * std::exp2(std::fma(s[size_t(j)], scale, -m * scale));
      l += e;
      rounded[size_t(j)] = tools::round_to(e, p.dtype);
    }
    for (int64_t c = 0; c < d; ++c) {
      float sum = p.two_level ? 0 : o[c];
      for (int64_t j = 0; j < n; ++j) products[size_t(j)] = rounded[size_t(j)] * v[size_t(j * d + c)];
      for (int64_t j = 0; j < n; j += 32)
        if (e4m3) sum = add_truncated(sum, &products[size_t(j)], std::min<int64_t>(32, n - j));
      for (int64_t j = 0; j < n; ++j)
        if (!e4m3) sum += products[size_t(j)];
      o[c] = p.two_level ? o[c] + sum : sum;
    }
  }
  for (int64_t c = 0; c < d; ++c) o[c] = visible ? o[c] / l + made.number(made.v_mean, b, kv, c) : 0;
  lse = visible ? (m * scale + std::log2(l / factor)) * 0.6931471805599453f + made.number(made.lse_offset, b, h, i)
                : -INFINITY;
}

void online_forward(Case& made, int64_t Bc) {
  const Problem& p = made.problem;
  const float o_scale = made.output_scale();
  tools::parallel_for(p.batch * p.heads * p.seqlen_q, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> o(size_t(p.head_dim));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t i = n % p.seqlen_q, h = n / p.seqlen_q % p.heads, b = n / p.seqlen_q / p.heads;
      float lse = 0;
      online_row(made, Bc, b, h, i, o.data(), lse);
      const int64_t o_index[4] = {b, i, h, 0}, lse_index[3] = {b, h, i};
      for (int64_t c = 0; c < p.head_dim; ++c)
        made.o.write(made.images, made.o.layout.position(o_index) + c, o[size_t(c)] / o_scale);
      if (p.want_lse) made.lse.data<float>(made.images)[made.lse.layout.position(lse_index)] = lse;
    }
  });
}

}  // namespace

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

TEST_CASE("random problems are accepted, run on their row and cover the axes") {
  std::set<int64_t> head_dims;
  std::set<Pattern> patterns;
  int empty_rows = 0, gqa = 0, packed = 0;
  for (const Row& row : forward_rows())
    for (uint64_t i = 0; i < 100; ++i) {
      const uint64_t number = 1000 * uint64_t(&row - rows) + i;  // other problems for every row
      const Problem p = random_problem(row, tools::mix(tools::seed_of_run(), number), 2e6);
      Case made(p);
      INFO(p.describe());
      const fa3_forward_params params = made.host_params();
      const fa3_status status = fa3_forward_check(&params);
      INFO(fa3_last_error_message());
      REQUIRE(status == FA3_OK);
      fa3_kernel_info info = tools::kernel_info();
      REQUIRE(fa3_forward_kernel_info(&params, 132, 0, &info) == FA3_OK);
      REQUIRE(std::string(info.name) == row.name);
      head_dims.insert(p.head_dim);
      patterns.insert(p.pattern);
      empty_rows += p.visible_keys(0) == 0;
      gqa += p.heads != p.heads_kv;
      packed += p.packed_qkv;
    }
  CHECK(head_dims.size() > 25);
  CHECK(patterns.size() == pattern_count);
  CHECK(empty_rows > 5);
  CHECK(gqa > 100);
  CHECK(packed > 5);
}

TEST_CASE("every scale of e4m3 is the smallest that holds its block") {
  Problem p = plain_problem(e4m3_rows[0], 2, 130, 200, 4, 2, 50);
  p.head_dim = 32, p.v_mean = p.lse_offset = true;
  const auto largest = [&](const Case& made, int tensor, int64_t b, int64_t h, int64_t first, int64_t rows) {
    std::vector<float> row(size_t(p.head_dim));
    float found = 0;
    for (int64_t i = first; i < first + rows; ++i) {
      made.read_row(tensor, b, i, h, row.data());
      for (const float x : row) found = std::max(found, std::fabs(x));
    }
    return found;
  };
  for (const bool tiles : {false, true})
    for (const Scales kind : {Scales::tensor, Scales::head, Scales::block}) {
      p.q_scales = p.k_scales = p.v_scales = kind, p.v_tiles = tiles;
      const Case made(p);
      const View* const scales[] = {&made.q_scale, &made.k_scale, &made.v_scale};
      for (int t = 0; t < 3; ++t) {
        const int64_t heads = t == 0 ? 4 : 2, rows = t == 0 ? 130 : 200, blocks = (rows + 63) / 64;
        const std::vector<int64_t> dim = kind == Scales::tensor ? std::vector<int64_t>{1, 1, 1}
                                         : kind == Scales::head ? std::vector<int64_t>{2, heads, 1}
                                                                : std::vector<int64_t>{2, heads, blocks};
        CHECK(scales[t]->layout.dim == dim);
        float of_tensor = 0;
        std::set<float> different;
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t n = 0; n < blocks && kind == Scales::block; ++n)
              CHECK(largest(made, t, b, h, 64 * n, std::min<int64_t>(64, rows - 64 * n)) == 448);
            const float of_head = largest(made, t, b, h, 0, rows);
            if (kind == Scales::head) CHECK(of_head == 448);
            of_tensor = std::max(of_tensor, of_head);
            different.insert(made.scale_of(t, b, rows - 1, h));
          }
        CHECK(of_tensor == 448);
        CHECK(different.size() == (kind == Scales::tensor ? 1 : size_t(2 * heads)));
      }
    }
}

TEST_CASE("tiles hold what rows hold, zeros beyond the last key, and nothing else is a number") {
  Problem p = plain_problem(e4m3_rows[0], 2, 5, 37, 2, 2, 51);
  p.head_dim = 48, p.v = Storage{Storage::sbhd, 1, 1, 2, 1, 3, false, false};
  p.v_tiles = true;
  const Case tiles(p);
  p.v_tiles = false;
  const Case rows(p);
  CHECK(tiles.v.layout.dim == std::vector<int64_t>{2, 2, 3, 48, 16});
  std::vector<float> a(48), b(48);
  for (int64_t batch = 0; batch < 2; ++batch)
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t key = 0; key < 37; ++key) {
        tiles.read_row(2, batch, key, head, a.data()), rows.read_row(2, batch, key, head, b.data());
        CHECK(a == b);
      }
  // Both are read as the header says: the library's reference agrees.
  Case same_tiles(tiles), same_rows(rows);
  CHECK(reference_forward(same_tiles).o == reference_forward(same_rows).o);

  const Image& image = tiles.images[size_t(tiles.v.image)];
  size_t zeros = 0, poisoned = 0;
  for (const std::byte byte : image) zeros += byte == std::byte{0}, poisoned += byte == std::byte{poison8};
  size_t zeros_of_keys = 0;
  for (int64_t n = 0; n < 2 * 2 * 37; ++n) {
    tiles.read_row(2, n / 74, n % 37, n / 37 % 2, a.data());
    zeros_of_keys += size_t(std::count(a.begin(), a.end(), 0.0f));
  }
  // Some zeros among the keys are negative.
  CHECK((zeros >= 2 * 2 * 11 * 48 && zeros <= 2 * 2 * 11 * 48 + zeros_of_keys));
  CHECK(poisoned == image.size() - 2 * 2 * 48 * 48);
}

namespace {

// The worst errors over the plain code's are printed.
void check_online_softmax(const char* what, std::span<const Row> of, uint64_t problems) {
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  double worst[4] = {};
  for (const Row& row : of)
    for (uint64_t i = 0; i < problems; ++i) {
      Case made(random_problem(row, tools::mix(tools::seed_of_run(), 1000 + i), 4e6));
      INFO(made.problem.describe());
      const Expected expected = expect(made);
      online_forward(made, row.Bc);
      CHECK(verify(made, expected) == "");
      const Ratios r = ratios(made, expected);
      const double values[] = {r.o_rms, r.o_max, r.lse_rms, r.lse_max};
      for (int n = 0; n < 4; ++n) worst[n] = std::max(worst[n], values[n]);
    }
  std::printf("worst errors over the plain code's, %s: O rms %.2f max %.2f, LSE rms %.2f max %.2f\n", what, worst[0],
              worst[1], worst[2], worst[3]);
}

}  // namespace

TEST_CASE("an online softmax passes on random problems of every row") {
  check_online_softmax("rows of the table", forward_rows(), 12);
}

TEST_CASE("an online softmax passes on random problems in e4m3") {
  check_online_softmax("e4m3", e4m3_rows, 15);
}

TEST_CASE("every kind of damage is found") {
  Problem p = plain_problem(rows[0], 2, 70, 60, 4, 2, 42);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;  // the first ten rows see no key
  p.o = Storage{Storage::bshd, 1, 1, 2, 1, 3, false, false};
  p.lse = Storage{Storage::bhsd, 0, 1, 2, 1, 1, false, false};
  Case good(p);
  const Expected expected = expect(good);
  online_forward(good, 64);
  REQUIRE(verify(good, expected) == "");

  Case bad = good;
  uint16_t* o = bad.o.data<uint16_t>(bad.images);
  float* lse = bad.lse.data<float>(bad.images);
  const int64_t element[4] = {1, 40, 2, 5}, row[3] = {1, 2, 40}, empty[4] = {1, 3, 1, 0}, empty_row[3] = {1, 1, 3};
  const int64_t at = bad.o.layout.position(element), lse_at = bad.lse.layout.position(row);
  SECTION("an element was not written") {
    o[at] = poison16;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("not written"));
  }
  SECTION("an LSE was not written") {
    lse[lse_at] = std::bit_cast<float>(poison32);
    CHECK_THAT(verify(bad, expected), ContainsSubstring("lse: element") && ContainsSubstring("was not written"));
  }
  SECTION("memory that is not the tensor's was overwritten") {
    // One element beyond each dimension's end, in the first and the last of the others; and the ends of the memory.
    const auto found = [&](auto* data, int64_t element, const std::string& tensor) {
      INFO(tensor << " " << element);
      const auto before = data[element];
      data[element] = 0;
      CHECK_THAT(verify(bad, expected), ContainsSubstring(tensor + ": element " + std::to_string(element)) &&
                                            ContainsSubstring("overwritten"));
      data[element] = before;
    };
    const auto beyond = [&](auto* data, const tools::Layout& layout, const char* tensor) {
      for (int dim = 0; dim < layout.rank(); ++dim)
        for (const bool last : {false, true}) {
          std::vector<int64_t> index(layout.dim.size(), 0);
          if (last)
            for (size_t i = 0; i < index.size(); ++i) index[i] = layout.dim[i] - 1;
          index[size_t(dim)] = layout.dim[size_t(dim)];
          found(data, layout.position(index.data()), tensor);
        }
    };
    beyond(o, bad.o.layout, "o");
    beyond(lse, bad.lse.layout, "lse");
    const int64_t o_memory = int64_t(bad.images[size_t(bad.o.image)].size()) / 2, o_first = bad.o.first / 2;
    const int64_t lse_memory = int64_t(bad.images[size_t(bad.lse.image)].size()) / 4, lse_first = bad.lse.first / 4;
    for (const int64_t element : {int64_t{-1}, -o_first, o_memory - o_first - 1}) found(o, element, "o");
    for (const int64_t element : {int64_t{-1}, -lse_first, lse_memory - lse_first - 1}) found(lse, element, "lse");
  }
  SECTION("a row without keys is not zero") {
    for (const int64_t c : {int64_t{0}, p.head_dim - 1}) {
      bad = good;
      bad.o.data<uint16_t>(bad.images)[bad.o.layout.position(empty) + c] = tools::to_bf16(0x1p-120f);
      CHECK_THAT(verify(bad, expected), ContainsSubstring("an element of o of batch 1 row 3 head 1"));
    }
  }
  SECTION("a row without keys has a finite LSE") {
    lse[bad.lse.layout.position(empty_row)] = 0;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("lse of batch 1 row 3 head 1"));
  }
  SECTION("a row with keys has an LSE of -inf") {
    lse[lse_at] = -INFINITY;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("lse of batch 1 row 40 head 2"));
  }
  SECTION("NaN") {
    o[at] = 0x7fc0;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("nan"));
  }
  SECTION("one element is wrong by a few ulps of the largest") {
    o[at] = tools::to_bf16(tools::from_bf16(o[at]) + 0.1f);
    CHECK_THAT(verify(bad, expected), ContainsSubstring("O's"));
  }
  SECTION("one LSE is wrong in the fifth digit") {
    lse[lse_at] += 1e-4f;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("LSE's"));
  }
  SECTION("all of O carries one more rounding's worth of noise") {
    uint64_t n = 0;
    bad.o.layout.for_each([&](int64_t i) {
      if (!std::isnan(tools::from_bf16(o[i])) && o[i] != 0 && tools::mix(n++) % 2) o[i] = uint16_t(o[i] + 1);
    });
    CHECK_THAT(verify(bad, expected), ContainsSubstring("O's"));
  }
}

TEST_CASE("errors may be as large as the header says, and no larger") {
  struct {
    fa3_dtype dtype, o_dtype;
    int64_t head_dim;
    double u, u_p_and_o;
    Pattern pattern = Pattern::normal;
  } const formats[] = {{FA3_DTYPE_BF16, FA3_DTYPE_BF16, 64, 0x1p-8, 2 * 0x1p-8},
                       {FA3_DTYPE_FP16, FA3_DTYPE_FP16, 256, 0x1p-11, 2 * 0x1p-11},
                       {FA3_DTYPE_E4M3, FA3_DTYPE_FP16, 64, 0x1p-4, 0x1p-4 + 0x1p-11},
                       {FA3_DTYPE_E4M3, FA3_DTYPE_BF16, 256, 0x1p-4, 0x1p-4 + 0x1p-8, Pattern::constant}};
  for (const auto& [dtype, o_dtype, head_dim, u, u_p_and_o, pattern] : formats) {
    const bool e4m3 = dtype == FA3_DTYPE_E4M3;
    Problem p;
    p.dtype = dtype, p.o_dtype = o_dtype, p.pattern = pattern;
    p.seqlen_q = 50, p.seqlen_k = 10, p.heads = p.heads_kv = 2, p.head_dim = head_dim;
    Case made(p);
    // Nothing is computed: every fourth element is 1, the others are 1/4, and what they are compared with is made up.
    float* lse = made.lse.data<float>(made.images);
    int64_t n = 0;
    made.o.layout.for_each([&](int64_t at) { made.o.write(made.images, at, n++ % 4 ? 0.25f : 1); });
    int64_t rows = 0;
    made.lse.layout.for_each([&](int64_t at) { lse[at] = rows++ % 4 ? 0.25f : 1; });
    const Output ours = gather(made);
    REQUIRE((int64_t(ours.o.size()) == n && int64_t(ours.lse.size()) == rows));
    const double rms = std::sqrt((1 + 3 / 16.0) / 4), t = std::max(8.0, head_dim / 16.0) * 0x1p-23;
    const double s = e4m3 ? 0x1p-12 * 64 : 0, equal_weights = pattern == Pattern::constant ? u : 0;
    const double o_rms = rms * (u * (0.025 + 1 / std::sqrt(double(e4m3 ? rows : n))) + s + equal_weights);
    const double o_max = u_p_and_o + 2 * s, lse_rms = t * (1 + rms) + s, lse_max = 2 * t * 2 + 2 * s;

    // The verdict on an error of `ours` in all elements, or in one that is not the largest,
    // where the plain code's is `plain` in all.
    const auto verdict = [&](std::vector<float> Output::*what, bool all, double error, double plain) {
      Expected expected{ours, ours};
      expected.plain.partial.assign(size_t(rows), 64.0f);
      std::vector<float>& reference = expected.reference.*what;
      if (!all) reference[1] -= float(error);
      for (size_t i = 0; all && i < reference.size(); ++i) reference[i] += float(error);
      expected.plain.*what = reference;
      for (float& x : expected.plain.*what) x += float(plain);
      return verify(made, expected);
    };
    const auto check_limit = [&](std::vector<float> Output::*what, bool all, double floor, double plain,
                                 const char* name) {
      INFO(name << ", the plain code's error " << plain << ", floor " << floor);
      const double limit = 1.25 * plain + floor;
      CHECK(verdict(what, all, 0.9 * limit, plain) == "");
      CHECK_THAT(verdict(what, all, 1.1 * limit, plain), ContainsSubstring(name));
    };
    for (const double plain : {0.0, 10.0}) check_limit(&Output::o, true, o_rms, plain * o_rms, "O's RMS");
    for (const double plain : {0.0, 10.0}) check_limit(&Output::lse, true, lse_rms, plain * lse_rms, "LSE's RMS");
    // An error of the RMS in all elements leaves room for a larger one in a single element.
    for (const double plain : {0.5, 10.0}) check_limit(&Output::o, false, o_max, plain * o_max, "O's largest");
    for (const double plain : {0.5, 10.0}) check_limit(&Output::lse, false, lse_max, plain * lse_max, "LSE's largest");
  }
}

TEST_CASE("the plain code rounds P and O, and nothing else") {
  // A key of score 0 and 64 of score -0.689453125, whose exponential, 0.50185, bf16 rounds down to 0.5; V is 1.
  Problem p;
  p.seqlen_k = 65, p.head_dim = 8, p.softmax_scale = 1;
  Case made(p);
  const auto set = [&](const View& view, int64_t row, int64_t c, float value) {
    const int64_t index[4] = {0, row, 0, c};
    view.data<uint16_t>(made.images)[view.layout.position(index)] = tools::to_bf16(value);
  };
  for (int64_t c = 0; c < 8; ++c) {
    set(made.q, 0, c, c < 2 ? 1 : 0);
    for (int64_t key = 0; key < 65; ++key) {
      set(made.k, key, c, key == 0 ? 0 : c == 0 ? -0.6875f : c == 1 ? -0x1p-9f : 0);
      set(made.v, key, c, 1);
    }
  }
  const double e = std::exp(-0.689453125);
  const Output plain = plain_forward(made);
  CHECK(plain.o == std::vector<float>(8, tools::from_bf16(tools::to_bf16(float((1 + 64 * 0.5) / (1 + 64 * e))))));
  CHECK(plain.o[0] < 1);
  CHECK_THAT(plain.lse[0], WithinAbs(std::log(1 + 64 * e), 1e-6));
}

TEST_CASE("every kind of damage to e4m3 is found") {
  Problem p = plain_problem(e4m3_rows[1], 2, 70, 60, 4, 2, 42);  // the first ten rows see no key
  p.o_dtype = FA3_DTYPE_E4M3, p.v_mean = p.lse_offset = true;
  p.o = Storage{Storage::bshd, 1, 1, 2, 1, 3, false, false};
  Case good(p);
  const Expected expected = expect(good);
  online_forward(good, 64);
  REQUIRE(verify(good, expected) == "");
  Case bad = good;
  uint8_t* o = bad.o.data<uint8_t>(bad.images);
  const int64_t element[4] = {1, 40, 2, 5}, empty[4] = {1, 3, 1, 0};
  const int64_t at = bad.o.layout.position(element);
  SECTION("an element was not written") {
    o[at] = poison8;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("o: element " + std::to_string(at) + " was not written"));
  }
  SECTION("memory that is not the tensor's was overwritten") {
    const int64_t beyond = at - 5 + p.head_dim;
    o[beyond] = 0;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("o: element " + std::to_string(beyond) + " does not belong"));
  }
  SECTION("NaN") {
    o[at] = 0x7f;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("nan"));
  }
  SECTION("a row without keys has v_mean") {
    o[bad.o.layout.position(empty)] = 1;
    CHECK_THAT(verify(bad, expected), ContainsSubstring("an element of o of batch 1 row 3 head 1"));
  }
  SECTION("one element is wrong by a third of the largest") {
    o[at] = tools::to_e4m3(tools::from_e4m3(o[at]) + 150);
    CHECK_THAT(verify(bad, expected), ContainsSubstring("O's"));
  }
  SECTION("a forgotten o_scale, v_mean or lse_offset, and scales of the wrong block") {
    const auto with = [&](auto change) {
      Case other(p);
      change(other);
      online_forward(other, 64);
      bad.images[size_t(bad.o.image)] = other.images[size_t(other.o.image)];
      bad.images[size_t(bad.lse.image)] = other.images[size_t(other.lse.image)];
      return verify(bad, expected);
    };
    CHECK(with([](Case&) {}) == "");
    CHECK_THAT(with([](Case& c) { c.o_scale.image = -1; }), ContainsSubstring("O's"));
    CHECK_THAT(with([](Case& c) { c.v_mean.image = -1; }), ContainsSubstring("O's"));
    CHECK_THAT(with([](Case& c) { c.lse_offset.image = -1; }), ContainsSubstring("LSE's"));
    CHECK_THAT(with([](Case& c) { c.v_scale.write(c.images, 0, c.v_scale.read(c.images, 0) * 1.2f); }),
               ContainsSubstring("O's"));
    CHECK_THAT(with([](Case& c) { c.q_scale.write(c.images, 0, c.q_scale.read(c.images, 0) * 1.2f); }),
               ContainsSubstring("LSE's"));
  }
}

TEST_CASE("the plain code rounds P of e4m3 even if there is one key only") {
  Problem p = plain_problem(e4m3_rows[2], 1, 300, 1, 1, 1, 53);
  p.mask = FA3_MASK_NONE, p.head_dim = 16, p.o_dtype = FA3_DTYPE_FP16, p.v_mean = p.lse_offset = false;
  Case made(p);
  const Expected expected = expect(made);
  double least = 1, most = 1, sum = 0;
  for (size_t i = 0; i < expected.plain.o.size(); i += 16) {
    const double ratio = expected.plain.o[i] / expected.reference.o[i];
    least = std::min(least, ratio), most = std::max(most, ratio), sum += ratio;
  }
  CHECK((least > 1 - 0x1.1p-4 && least < 1 - 0.04 && most > 1 + 0.04 && most < 1 + 0x1.1p-4));
  CHECK_THAT(sum / 300, WithinAbs(1, 0.01));
}

TEST_CASE("the plain code's sums of e4m3 shrink as the tensor cores' do where V has a mean") {
  Problem p = plain_problem(e4m3_rows[0], 1, 4, 4096, 1, 1, 52);
  p.head_dim = 64, p.o_dtype = FA3_DTYPE_BF16, p.v_mean = p.lse_offset = false, p.pattern = Pattern::normal;
  p.q_scales = p.k_scales = p.v_scales = Scales::tensor;
  const auto shrinkage = [&](bool two_level) {
    p.two_level = true;
    Case made(p);  // V has a mean
    made.problem.two_level = two_level;
    const Expected expected = expect(made);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < expected.plain.o.size(); ++i) {
      sum += double(expected.plain.o[i]) * expected.reference.o[i];
      squares += double(expected.reference.o[i]) * expected.reference.o[i];
    }
    return sum / squares;
  };
  CHECK_THAT(shrinkage(false), WithinAbs(0.95, 0.02));
  CHECK_THAT(shrinkage(true), WithinAbs(0.99, 0.01));
}

TEST_CASE("damage that only a launch can do is found") {
  Problem p = plain_problem(rows[0], 1, 40, 60, 2, 2, 44);
  const tools::Context context;
  const tools::Stream stream;
  const auto verdict = [&](Fault fault, int after_launches) {
    simulate(fault, after_launches);
    return run_and_verify(p, stream);
  };
  CHECK(verdict(Fault::none, 0) == "");
  for (int launch = 0; launch < 3; ++launch) {
    CHECK_THAT(verdict(Fault::before_workspace, launch), ContainsSubstring("byte 271 was overwritten"));
    CHECK_THAT(verdict(Fault::behind_workspace, launch), ContainsSubstring("byte 336 was overwritten"));
    if (launch == 0) {
      CHECK_THAT(verdict(Fault::nothing_done, launch), ContainsSubstring("was not written"));
      continue;
    }
    const auto other_bits = ContainsSubstring("run " + std::to_string(launch + 1) + " gave other bits than run 1");
    for (const Fault found : {Fault::nothing_done, Fault::last_bit_of_o, Fault::last_bit_of_lse})
      CHECK_THAT(verdict(found, launch), other_bits);
  }
  simulate(Fault::none, 0);
}

TEST_CASE("a diagonal off by one is found") {
  Problem p = plain_problem(rows[0], 1, 40, 40, 1, 1, 43);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  Case made(p), shifted(p);
  const Expected expected = expect(made);
  shifted.problem.seqlen_q = 39;  // row i of 39 bottom-right rows sees one key more than row i of 40
  online_forward(shifted, 64);
  Case whole(p);
  online_forward(whole, 64);
  const int64_t last[4] = {0, 39, 0, 0}, last_lse[3] = {0, 0, 39};
  uint16_t* to = shifted.o.data<uint16_t>(shifted.images) + shifted.o.layout.position(last);
  std::copy_n(whole.o.data<uint16_t>(whole.images) + whole.o.layout.position(last), p.head_dim, to);
  shifted.lse.data<float>(shifted.images)[shifted.lse.layout.position(last_lse)] =
      whole.lse.data<float>(whole.images)[whole.lse.layout.position(last_lse)];
  shifted.problem.seqlen_q = 40;
  CHECK_THAT(verify(shifted, expected), ContainsSubstring("O's"));
}

}  // namespace fa3::test
