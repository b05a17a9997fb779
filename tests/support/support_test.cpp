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

// Algorithm 2's arithmetic for one row: blocks of Bc keys, running maximum, P rounded against it, O rescaled in
// float32.
void online_row(const Case& made, int64_t Bc, int64_t b, int64_t h, int64_t i, float* o, float& lse) {
  const Problem& p = made.problem;
  const int64_t d = p.head_dim, kv = h / (p.heads / p.heads_kv), visible = p.visible_keys(i);
  const float scale = float(p.scale() * 1.4426950408889634);
  const auto at = [&](const View& view, int64_t row, int64_t head, int64_t c) {
    const int64_t index[4] = {b, row, head, c};
    return tools::from_half(view.data<uint16_t>(made.images)[view.layout.position(index)], p.dtype);
  };
  float m = -INFINITY, l = 0;
  std::fill(o, o + d, 0.0f);
  for (int64_t first = 0; first < visible; first += Bc) {
    const int64_t n = std::min(Bc, visible - first);
    std::vector<float> s(size_t(n), 0.0f);
    float block_max = m;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < d; ++c) s[size_t(j)] += at(made.q, i, h, c) * at(made.k, first + j, kv, c);
      block_max = std::max(block_max, s[size_t(j)]);
    }
    const float rescale = std::exp2((m - block_max) * scale);
    m = block_max;
    l *= rescale;
    for (int64_t c = 0; c < d; ++c) o[c] *= rescale;
    for (int64_t j = 0; j < n; ++j) {
      const float e = std::exp2(std::fma(s[size_t(j)], scale, -m * scale));
      l += e;
      const float rounded = tools::from_half(tools::to_half(e, p.dtype), p.dtype);
      for (int64_t c = 0; c < d; ++c) o[c] += rounded * at(made.v, first + j, kv, c);
    }
  }
  for (int64_t c = 0; c < d; ++c) o[c] = visible ? o[c] / l : 0;
  lse = visible ? (m * scale + std::log2(l)) * 0.6931471805599453f : -INFINITY;
}

void online_forward(Case& made, int64_t Bc) {
  const Problem& p = made.problem;
  uint16_t* o_data = made.o.data<uint16_t>(made.images);
  tools::parallel_for(p.batch * p.heads * p.seqlen_q, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> o(size_t(p.head_dim));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t i = n % p.seqlen_q, h = n / p.seqlen_q % p.heads, b = n / p.seqlen_q / p.heads;
      float lse = 0;
      online_row(made, Bc, b, h, i, o.data(), lse);
      const int64_t o_index[4] = {b, i, h, 0}, lse_index[3] = {b, h, i};
      for (int64_t c = 0; c < p.head_dim; ++c)
        o_data[made.o.layout.position(o_index) + c] = tools::to_half(o[size_t(c)], p.dtype);
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

TEST_CASE("an online softmax passes on random problems of every row") {
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  double worst[4] = {};
  for (const Row& row : forward_rows())
    for (uint64_t i = 0; i < 12; ++i) {
      Case made(random_problem(row, tools::mix(tools::seed_of_run(), 1000 + i), 4e6));
      INFO(made.problem.describe());
      const Expected expected = expect(made);
      online_forward(made, row.Bc);
      CHECK(verify(made, expected) == "");
      const Ratios r = ratios(made, expected);
      const double values[] = {r.o_rms, r.o_max, r.lse_rms, r.lse_max};
      for (int n = 0; n < 4; ++n) worst[n] = std::max(worst[n], values[n]);
    }
  std::printf("worst errors over the plain code's: O rms %.2f max %.2f, LSE rms %.2f max %.2f\n", worst[0], worst[1],
              worst[2], worst[3]);
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
  for (const auto& [dtype, head_dim, u] : {std::tuple{FA3_DTYPE_BF16, 64, 0x1p-8}, {FA3_DTYPE_FP16, 256, 0x1p-11}}) {
    Problem p;
    p.dtype = dtype, p.seqlen_q = 50, p.seqlen_k = 10, p.heads = p.heads_kv = 2, p.head_dim = head_dim;
    Case made(p);
    // Nothing is computed: every fourth element is 1, the others are 1/4, and what they are compared with is made up.
    uint16_t* o = made.o.data<uint16_t>(made.images);
    float* lse = made.lse.data<float>(made.images);
    int64_t n = 0;
    made.o.layout.for_each([&](int64_t at) { o[at] = tools::to_half(n++ % 4 ? 0.25f : 1, dtype); });
    int64_t rows = 0;
    made.lse.layout.for_each([&](int64_t at) { lse[at] = rows++ % 4 ? 0.25f : 1; });
    const Output ours = gather(made);
    REQUIRE((int64_t(ours.o.size()) == n && int64_t(ours.lse.size()) == rows));
    const double rms = std::sqrt((1 + 3 / 16.0) / 4), t = std::max(8.0, head_dim / 16.0) * 0x1p-23;
    const double o_rms = u * rms * (0.025 + 1 / std::sqrt(double(n))), o_max = 2 * u;
    const double lse_rms = t * (1 + rms), lse_max = 2 * t * 2;

    // The verdict on an error of `ours` in all elements, or in the first only, where the plain code's is `plain` in all.
    const auto verdict = [&](std::vector<float> Output::*what, bool all, double error, double plain) {
      Expected expected{ours, ours};
      std::vector<float>& reference = expected.reference.*what;
      for (size_t i = 0; i < (all ? reference.size() : 1); ++i) reference[i] += float(error);
      expected.plain.*what = reference;
      for (float& x : expected.plain.*what) x += float(plain);
      return verify(made, expected);
    };
    const auto check_limit = [&](std::vector<float> Output::*what, bool all, double floor, double plain, const char* name) {
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
