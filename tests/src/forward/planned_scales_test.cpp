// The CPU reference in FP8 with lengths, pages, windows and sinks: what scales, V's mean and LSE's offset mean.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "random.h"
#include "planned_run.h"

namespace fa3::test {
namespace {

// Each head of each sequence has scales of its own, which no other may be given by mistake.
PlannedProblem with_everything(uint64_t seed) {
  PlannedProblem p = random_planned(seed, {2e5, 12, 32});
  p.softcap = 0, p.has_slopes = p.slopes_each = false;
  p.dtype = FA3_DTYPE_E4M3, p.o_dtype = FA3_DTYPE_FP32, p.e4m3_keys = false;
  p.head_dim = p.head_dim_v = 16 * (1 + int64_t(seed % 2));
  p.q_scales = p.k_scales = p.v_scales = Scales::head;
  p.v_mean = p.lse_offset = p.want_lse = true;
  p.shares_keys = p.k.share_heads = p.v.share_heads = false;
  make_room(p, PlannedProblem::Lengths(p.lengths), seed);
  return p;
}

std::vector<float> read(const PlannedCase& made, const View& view, int64_t position) {
  std::vector<float> row(size_t(view.layout.dim[3]));
  for (size_t c = 0; c < row.size(); ++c) row[c] = view.read(made.images, position + int64_t(c));
  return row;
}

// Writes a row times a scale, and a vector added to it, as fp32.
void write(PlannedCase& to, const View& view, int64_t position, std::vector<float> row, float scale,
           const std::vector<float>& added) {
  for (size_t c = 0; c < row.size(); ++c) row[c] = row[c] * scale + (added.empty() ? 0 : added[c]);
  view.write_row(to.images, position, row, 1);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t n = 0; n < a.size(); ++n) {
    const double difference = a[n] == b[n] ? 0 : std::abs(double(a[n]) - double(b[n]));
    most = std::isnan(difference) ? INFINITY : std::max(most, difference);
  }
  return most;
}

}  // namespace

// Scales are factors of the elements, V's mean is a part of V, and LSE's offset is what K lacks: without rounding the
// same comes out if all of it is put into the elements, sinks or not.
TEST_CASE("FP8 with lengths and sinks is what it stands for in fp32", "[planned]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 11);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  int with_sinks = 0;
  for (uint64_t n = 0; n < 120; ++n) {
    PlannedProblem p = with_everything(tools::mix(seed, n));
    PlannedCase made(p);
    INFO(p.describe());
    p.dtype = FA3_DTYPE_FP32, p.v_mean = p.lse_offset = false;
    PlannedCase plain(p);
    with_sinks += p.has_sinks;
    tools::Random random(tools::mix(seed, n + 1000));
    for (int64_t b = 0; b < p.batch; ++b) {
      if (p.poisoned[size_t(b)]) continue;
      const PlannedSequence s = p.sequence(b);
      for (int64_t kv = 0; kv < p.heads_kv; ++kv) {
        std::vector<float> mean, lacks;  // V and K lack these
        for (int64_t c = 0; c < p.head_dim_v; ++c) mean.push_back(made.mean_of(b, kv, c));
        for (int64_t c = 0; c < p.head_dim; ++c) lacks.push_back(float(random.uniform()) - 0.5f);
        const PlannedProblem::Range near = p.keys_near(s);
        for (int64_t j = near.begin; j < near.end; ++j) {
          const int64_t k = made.key_position(made.k, s, j, kv), v = made.key_position(made.v, s, j, kv);
          write(plain, plain.k, plain.key_position(plain.k, s, j, kv), read(made, made.k, k),
                made.scale_of(made.k_scale, b, kv), lacks);
          write(plain, plain.v, plain.key_position(plain.v, s, j, kv), read(made, made.v, v),
                made.scale_of(made.v_scale, b, kv), mean);
        }
        for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h)
          for (int64_t i = 0; i < s.queries; ++i) {
            const std::vector<float> q = read(made, made.q, made.query_position(made.q, s, i, h));
            const float scale = made.scale_of(made.q_scale, b, h);
            write(plain, plain.q, plain.query_position(plain.q, s, i, h), q, scale, {});
            double offset = 0;
            for (size_t c = 0; c < q.size(); ++c) offset += double(q[c] * scale) * double(lacks[c]);
            made.lse_offset.write(made.images, made.query_position(made.lse_offset, s, i, h),
                                  float(offset * p.scale()));
          }
      }
    }
    run(made), run(plain);
    const std::vector<PlannedRow> rows = expect(made).rows;
    const Output ours = gather(made, rows), right = gather(plain, rows);
    CHECK(largest_difference(ours.o, right.o) < 2e-5);
    CHECK(largest_difference(ours.lse, right.lse) < 2e-5);
  }
  CHECK(with_sinks > 10);
}

TEST_CASE("scales go by the sequence, also where its keys are in another entry of the cache", "[planned]") {
  PlannedProblem p;
  p.dtype = FA3_DTYPE_E4M3, p.o_dtype = FA3_DTYPE_FP32;
  p.q_scales = p.k_scales = p.v_scales = Scales::head, p.v_mean = true;
  p.heads = 2, p.batch = 2, p.entries_k = 3, p.rows_q = 1, p.rows_k = 1, p.indexes_cache = true;
  p.cache_batch_idx = {2, 0}, p.poisoned.assign(2, false);
  PlannedCase made(p);
  run(made);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h) {
      const PlannedSequence s = p.sequence(b);
      const float v = made.v.read(made.images, made.key_position(made.v, s, 0, h));
      const float o = made.o.read(made.images, made.query_position(made.o, s, 0, h));
      CHECK(std::abs(o - (v * made.scale_of(made.v_scale, b, h) + made.mean_of(b, h, 0))) < 1e-6);
    }
}

// All scores are equal, so n keys weigh as much as each other, and the sink exp(sink) times as much as one.
TEST_CASE("beside a sink V's mean has the keys' share", "[planned]") {
  for (const float sink : {-3.0f, 0.0f, 2.5f}) {
    PlannedProblem p;
    p.dtype = FA3_DTYPE_E4M3, p.o_dtype = FA3_DTYPE_FP32, p.softmax_scale = 1e-30f;
    p.v_mean = p.has_sinks = true, p.heads = p.heads_kv = 1, p.batch = 1, p.entries_k = 1;
    p.rows_q = 2, p.rows_k = 5, p.mask = FA3_MASK_CAUSAL_TOP_LEFT, p.sinks = {sink}, p.poisoned = {false};
    PlannedCase made(p);
    run(made);
    const PlannedSequence s = p.sequence(0);
    for (int64_t i = 0; i < 2; ++i) {
      double sum = 0;
      const double keys = double(i + 1), all = keys + std::exp(double(sink));
      for (int64_t j = 0; j <= i; ++j) sum += made.v.read(made.images, made.key_position(made.v, s, j, 0));
      const double right = (sum * made.scale_of(made.v_scale, 0, 0) + keys * made.mean_of(0, 0, 0)) / all;
      CHECK(std::abs(made.o.read(made.images, made.query_position(made.o, s, i, 0)) - right) < 1e-6);
      CHECK(std::abs(made.lse.read(made.images, made.query_position(made.lse, s, i, 0)) - std::log(all)) < 1e-6);
    }
  }
}

TEST_CASE("in FP8, too, rows without keys have O = 0 and the sink for LSE", "[planned]") {
  for (const bool has_sinks : {false, true}) {
    PlannedProblem p;
    p.dtype = FA3_DTYPE_E4M3, p.o_dtype = FA3_DTYPE_FP32;
    p.v_mean = p.lse_offset = true, p.has_sinks = has_sinks, p.sinks = {1.5f, -INFINITY, 0.25f, -2};
    p.batch = 1, p.entries_k = 1, p.rows_q = 3, p.rows_k = 2, p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    p.poisoned = {false};
    PlannedCase made(p);
    run(made);
    const PlannedSequence s = p.sequence(0);
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t c = 0; c < p.head_dim_v; ++c)
        CHECK(made.o.read(made.images, made.query_position(made.o, s, 0, h) + c) == 0);
      const float lse = made.lse.read(made.images, made.query_position(made.lse, s, 0, h));
      CHECK(lse == (has_sinks ? p.sinks[size_t(h)] : -INFINITY));
    }
  }
}

}  // namespace fa3::test
