// The CPU reference with softcap and ALiBi: against a plain loop, and what follows from the definitions alone. Random
// problems, which have both, are in planned_reference_test.cpp.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <vector>

#include "ptx/params/score_transforms.h"
#include "random.h"
#include "planned_run.h"

namespace fa3::test {
namespace {

// Two sequences of these queries and keys, batched, without anything else.
PlannedProblem plain(int64_t queries, int64_t keys, int32_t mask) {
  PlannedProblem p;
  p.seed = tools::mix(tools::seed_of_run(), uint64_t(queries * 1000 + keys));
  p.mask = mask, p.o_dtype = FA3_DTYPE_FP32, p.heads = 4, p.heads_kv = 2, p.head_dim = p.head_dim_v = 16;
  p.batch = p.entries_k = 2, p.rows_q = queries, p.rows_k = keys, p.poisoned.assign(2, false);
  return p;
}

// Each row as the header's formulas have it, in the order of a loop over its keys.
void check(PlannedCase& made) {
  const PlannedProblem& p = made.problem;
  run(made);
  INFO(p.describe());
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < p.rows_q; ++i) {
        const PlannedSequence s = p.sequence(b);
        const int64_t q = made.query_position(made.q, s, i, h), diagonal = p.rows_k - p.rows_q;
        const int64_t last = p.mask == FA3_MASK_NONE ? p.rows_k - 1 : std::min(i + diagonal, p.rows_k - 1);
        double sum = 0;
        std::vector<double> o(size_t(p.head_dim_v));
        for (int64_t j = 0; j <= last; ++j) {
          double score = 0;
          for (int64_t c = 0; c < p.head_dim; ++c)
            score += double(made.q.read(made.images, q + c)) *
                     double(made.k.read(made.images, made.key_position(made.k, s, j, h / 2) + c));
          score *= p.scale();
          if (p.softcap > 0) score = double(p.softcap) * std::tanh(score / double(p.softcap));
          if (p.has_slopes)
            score += -double(p.slopes[size_t((p.slopes_each ? b * p.heads : 0) + h)]) *
                     double(std::abs(i + p.rows_k - p.rows_q - j));
          const double weight = std::exp(score);
          sum += weight;
          for (int64_t c = 0; c < p.head_dim_v; ++c)
            o[size_t(c)] += weight * double(made.v.read(made.images, made.key_position(made.v, s, j, h / 2) + c));
        }
        const double lse = double(made.lse.read(made.images, made.query_position(made.lse, s, i, h)));
        INFO("batch entry " << b << " head " << h << " query " << i);
        if (last < 0) CHECK(lse == -INFINITY);
        else CHECK(std::abs(lse - std::log(sum)) < 1e-6 * (1 + std::abs(lse)));
        for (int64_t c = 0; c < p.head_dim_v && last >= 0; ++c) {
          const double ours = double(made.o.read(made.images, made.query_position(made.o, s, i, h) + c));
          REQUIRE(std::abs(ours - o[size_t(c)] / sum) < 1e-6);
        }
      }
}

}  // namespace

TEST_CASE("softcap and ALiBi against a plain loop", "[planned]") {
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const auto& [queries, keys] : {std::pair{1, 130}, {70, 70}, {30, 150}, {90, 40}}) {
      PlannedProblem p = plain(queries, keys, mask);
      for (const float softcap : {0.004f, 0.7f, 3.0f, 50.0f, 1e6f}) {
        p.softcap = softcap;
        PlannedCase made(p);
        check(made);
      }
      p.softcap = 0, p.has_slopes = true;
      for (const bool each : {false, true}) {
        p.slopes_each = each;
        p.slopes = {0.5f, 0, 0.03f, 2};
        if (each) p.slopes.insert(p.slopes.end(), {0.001f, 1, 0.25f, 0.125f});
        for (const float softcap : {0.f, 1.5f}) {
          p.softcap = softcap;
          PlannedCase made(p);
          check(made);
        }
      }
    }
}

// Far above all scores a cap changes nothing; of scores far beyond it, it leaves the sign.
TEST_CASE("caps above and below all scores", "[planned]") {
  PlannedProblem p = plain(20, 60, FA3_MASK_NONE);
  PlannedCase without(p);
  p.softcap = 1e30f;
  PlannedCase above(p);
  p.softcap = 1.5f, p.softmax_scale = 1e30f;
  PlannedCase beyond(p);
  run(without), run(above), run(beyond);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < 20; ++i)
      for (int64_t h = 0; h < 4; ++h) {
        const PlannedSequence s = p.sequence(b);
        const auto lse_of = [&](const PlannedCase& made) {
          return double(made.lse.read(made.images, made.query_position(made.lse, s, i, h)));
        };
        CHECK(std::abs(lse_of(above) - lse_of(without)) < 1e-6);
        double sum = 0;
        for (int64_t j = 0; j < 60; ++j) {
          double score = 0;
          for (int64_t c = 0; c < p.head_dim; ++c)
            score += double(beyond.q.read(beyond.images, beyond.query_position(beyond.q, s, i, h) + c)) *
                     double(beyond.k.read(beyond.images, beyond.key_position(beyond.k, s, j, h / 2) + c));
          sum += std::exp(score > 0 ? 1.5 : score < 0 ? -1.5 : 0);
        }
        CHECK(std::abs(lse_of(beyond) - std::log(sum)) < 1e-6);
      }
}

// With queries that make all scores equal, weights fall by the slope from the query's position on, to both sides.
TEST_CASE("slopes of equal scores, in closed form", "[planned]") {
  constexpr int64_t queries = 40, keys = 100;
  for (const double slope : {0.0, 0.01, 0.5, 3.0}) {
    PlannedProblem p = plain(queries, keys, FA3_MASK_NONE);
    p.softmax_scale = 1e-30f, p.has_slopes = true, p.slopes.assign(4, float(slope));
    PlannedCase made(p);
    run(made);
    const PlannedSequence s = p.sequence(1);
    for (int64_t i = 0; i < queries; ++i) {
      const double ratio = std::exp(-double(float(slope)));
      const double before = double(i + keys - queries), behind = double(queries - 1 - i);
      const auto series = [&](double count) { return slope == 0 ? count : (1 - std::pow(ratio, count)) / (1 - ratio); };
      const double right = std::log(series(before + 1) + series(behind + 1) - 1);
      const double lse = double(made.lse.read(made.images, made.query_position(made.lse, s, i, 2)));
      CHECK(std::abs(lse - right) < 1e-6 * (1 + std::abs(right)));
    }
  }
}

// A row as the kernels' main loop has it: P of a block is relative to the m so far, which stays up to a limit.
TEST_CASE("sums of capped scores stay right where m stays", "[planned]") {
  const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? 0 : x; };  // as ex2.approx.ftz does
  for (uint64_t row = 0; row < 2000; ++row) {
    std::vector<float> scores(1024);
    tools::normal(7, row * scores.size(), scores.data(), scores.size());
    for (float& s : scores) s *= 100;  // exponents of 2
    constexpr size_t block = 64;
    float m = *std::max_element(scores.begin(), scores.begin() + block), l = 0;
    double most = m, right = 0;
    for (const float s : scores) most = std::max(most, double(s));
    for (const float s : scores) right += std::exp2(s - most);
    for (size_t first = 0; first < scores.size(); first += block) {
      const auto sum_of = [&] {
        float sum = 0;
        for (size_t i = first; i < first + block; ++i) sum += flushed(std::exp2(scores[i] - m));
        return sum;
      };
      const float largest = *std::max_element(&scores[first], &scores[first] + block);
      if (sum_of() > (row % 2 ? 0x1p64f : 0x1p15f)) l *= flushed(std::exp2(m - largest)), m = largest;
      l += sum_of();
    }
    INFO(row);
    CHECK(std::fabs(m + std::log2(double(l)) - (most + std::log2(right))) < 1e-3);
  }
}

// The polynomials that the kernels take for small scores, in float32.
TEST_CASE("tanh as the kernels have it up to their limits", "[planned]") {
  const auto worst = [](const auto& coefficients, double limit) {
    double error = 0;
    for (double x = limit / 4096; x <= limit; x += limit / 4096) {
      const float of = float(x), square = of * of;
      float sum = 0;
      for (size_t i = std::size(coefficients); i-- > 0;) sum = std::fma(sum, square, float(coefficients[i]));
      error = std::max(error, std::fabs(double(std::fma(of, square * sum, of)) / std::tanh(double(of)) - 1));
    }
    return error;
  };
  CHECK(worst(narrow_tanh, narrow_limit) < 7.5e-7);
  CHECK(worst(wide_tanh, wide_limit) < 7.5e-7);
}

}  // namespace fa3::test
