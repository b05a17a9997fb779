// The judges judged, on the CPU: an online softmax stands in for the kernels and must pass, and every kind of damage to
// its result must be found. Launches are those of the simulated driver.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "../device_case.h"
#include "../problems/e4m3_rows.h"
#include "../simulated/simulated_cuda.h"
#include "half.h"
#include "online_softmax.h"
#include "oracle.h"
#include "random.h"

namespace fa3::test {

using Catch::Matchers::ContainsSubstring, Catch::Matchers::WithinAbs, Catch::Matchers::WithinRel;

namespace {

// The worst errors over the plain code's are printed.
void check_online_softmax(const char* what, std::span<const ForwardRow> of, uint64_t problems) {
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  double worst[4] = {};
  for (const ForwardRow& row : of) {
    if (row.has(Trait::planned)) continue;  // takes other problems
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
  }
  std::printf("worst errors over the plain code's, %s: O rms %.2f max %.2f, LSE rms %.2f max %.2f\n", what, worst[0],
              worst[1], worst[2], worst[3]);
}

}  // namespace

TEST_CASE("an online softmax passes on random problems of every row") {
  check_online_softmax("rows of the table", forward_rows, 4);
}

// Scores much wider than those of N(0,1), where a key has most of its row's weight, and m is not its score.
TEST_CASE("an online softmax passes where one key has most of the weight") {
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (const char* name : {"fa3_fwd_bf16_d64_full_256x64", "fa3_fwd_bf16_d64_causal_256x64",
                           "fa3_fwd_fp16_d64_full_128x128", "fa3_fwd_fp16_d64_causal_256x64"})
    for (const float wider : {3.0f, 8.0f, 30.0f}) {
      const ForwardRow& row = forward_row(row_named(name));
      Problem p = plain_problem(row, 1, 500, 700, 3, 1, tools::mix(tools::seed_of_run(), uint64_t(wider)));
      p.softmax_scale = wider / std::sqrt(float(p.head_dim));
      Case made(p);
      INFO(p.describe());
      const Expected expected = expect(made);
      online_forward(made, row.Bc);
      CHECK(verify(made, expected) == "");
    }
}

TEST_CASE("an online softmax passes on long sums of equal weights") {
  // One in which weights, added one by one, are rounded in the same direction often enough to exceed the limit of LSE.
  const int row = row_named("fa3_fwd_fp16_d112_full_192x64");
  REQUIRE(row >= 0);
  Problem p = plain_problem(forward_row(row), 1, 7, 3968, 1, 1, 1671039866986363942);
  p.pattern = Pattern::sink;
  Case made(p);
  const Expected expected = expect(made);
  online_forward(made, 64);
  CHECK(verify(made, expected) == "");
}

TEST_CASE("an online softmax passes on random problems in e4m3") {
  check_online_softmax("e4m3", e4m3_rows, 5);
}

TEST_CASE("errors may be as large as the header says, and no larger") {
  struct {
    fa3_dtype dtype, o_dtype;
    int64_t head_dim;
    double u, u_p_and_o;
    double weights;  // of one size, that a row's keys share
    Pattern pattern = Pattern::normal;
  } const formats[] = {{FA3_DTYPE_BF16, FA3_DTYPE_BF16, 64, 0x1p-8, 2 * 0x1p-8, 1},
                       {FA3_DTYPE_BF16, FA3_DTYPE_BF16, 64, 0x1p-8, 2 * 0x1p-8, 3},
                       {FA3_DTYPE_FP16, FA3_DTYPE_FP16, 256, 0x1p-11, 2 * 0x1p-11, 1000},
                       {FA3_DTYPE_E4M3, FA3_DTYPE_FP16, 64, 0x1p-4, 0x1p-4 + 0x1p-11, 1000},
                       {FA3_DTYPE_E4M3, FA3_DTYPE_BF16, 256, 0x1p-4, 0x1p-4 + 0x1p-8, 1000, Pattern::constant}};
  for (const auto& [dtype, o_dtype, head_dim, u, u_p_and_o, weights, pattern] : formats) {
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
    const double numbers = e4m3 ? double(rows) : std::min(double(n) / 4, double(rows) * weights);
    const double o_rms = rms * (u * (0.025 + 1 / std::sqrt(numbers)) + s + equal_weights);
    const double o_max = u_p_and_o + 2 * s, lse_rms = t * (1 + rms) + s, lse_max = 2 * t * 2 + 2 * s;

    // The verdict on an error of `ours` in all elements, or in one that is not the largest,
    // where the plain code's is `plain` in all.
    const auto verdict = [&](std::vector<float> Output::*what, bool all, double error, double plain) {
      Expected expected{ours, ours};
      expected.plain.partial.assign(size_t(rows), 64.0f);
      expected.plain.squares.assign(size_t(rows), float(1 / weights));
      expected.plain.fourths.assign(size_t(rows), float(1 / (weights * weights * weights)));
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

TEST_CASE("of capped scores, what they were summed up from counts") {
  // One row of one key: LSE is its score, capped, and small beside the largest partial sum.
  const Output right{{1.0f}, {0.5f}, {100.0f}, {1.0f}, {1.0f}};
  const auto accepts = [&](float error, bool transformed) {
    Output ours = right;
    ours.lse[0] += error;
    return judge(ours, {right, right}, {FA3_DTYPE_FP16, FA3_DTYPE_FP16, 576, false, transformed}).empty();
  };
  const float truncated = 36 * 0x1p-23f;  // 576 / 16 sums, an ulp each
  CHECK((accepts(truncated, false) && !accepts(4 * truncated, false)));
  CHECK((accepts(50 * truncated, true) && !accepts(250 * truncated, true)));
}

TEST_CASE("the plain code tells how a row's weight is spread") {
  Problem p;  // more K/V heads than are made ready at a time, two heads for each
  p.dtype = FA3_DTYPE_FP16, p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  p.batch = 23, p.heads = 6, p.heads_kv = 3, p.seqlen_q = 9, p.seqlen_k = 7, p.head_dim = 16;
  const Case made(p);
  const Output plain = plain_forward(made);
  REQUIRE((plain.squares.size() == plain.lse.size() && plain.fourths.size() == plain.lse.size()));
  std::vector<float> q(size_t(p.head_dim)), k(size_t(p.head_dim));
  for (size_t row = 0; row < plain.lse.size(); ++row) {
    const int64_t i = int64_t(row) % p.seqlen_q, h = int64_t(row) / p.seqlen_q % p.heads;
    const int64_t b = int64_t(row) / p.seqlen_q / p.heads;
    made.read_row(0, b, i, h, q.data());
    double sum = 0, squares = 0, fourths = 0;
    for (int64_t j = 0; j < p.visible_keys(i); ++j) {
      made.read_row(1, b, j, h / 2, k.data());
      const double e = std::exp(p.scale() * std::inner_product(q.begin(), q.end(), k.begin(), 0.0));
      sum += e, squares += e * e, fourths += e * e * e * e;
    }
    CHECK_THAT(plain.squares[row], WithinRel(sum > 0 ? squares / (sum * sum) : 0, 1e-4));
    CHECK_THAT(plain.fourths[row], WithinRel(sum > 0 ? fourths / std::pow(sum, 4) : 0, 1e-4));
    if (sum > 0) CHECK_THAT(plain.lse[row], WithinAbs(std::log(sum), 1e-4));
    else CHECK(plain.lse[row] == -INFINITY);
  }
}

TEST_CASE("every kind of damage is found") {
  Problem p = plain_problem(forward_row(0), 2, 70, 60, 4, 2, 42);
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

TEST_CASE("a diagonal off by one is found") {
  Problem p = plain_problem(forward_row(0), 1, 40, 40, 1, 1, 43);
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

TEST_CASE("damage that only a launch can do is found") {
  Problem p = plain_problem(forward_row(0), 1, 40, 60, 2, 2, 44);
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

}  // namespace fa3::test
