// fa3_reference_backward of e4m3: the same gradients as of the numbers that elements stand for, and those of finite
// differences of the forward reference.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "e4m3_gradients.h"
#include "half.h"

namespace fa3::test {
namespace {

float* floats(const fa3_tensor& t) { return static_cast<float*>(t.data); }

void run_reference(const fa3_backward_params& p) {
  const fa3_status status = fa3_reference_backward(&p, 1);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
}

// Scale block, or sequence, of a row.
int64_t sequence_of(const E4m3Form& form, bool keys, int64_t entry, int64_t row, int64_t* row_in_sequence) {
  *row_in_sequence = row;
  if (form.lengths.empty()) return entry;
  for (size_t b = 0;; ++b) {
    const int32_t rows = keys ? form.lengths[b].second : form.lengths[b].first;
    if (*row_in_sequence < rows) return int64_t(b);
    *row_in_sequence -= rows;
  }
}

// The tensor as fp32: elements times scales, plus the mean if there is one. v as tiles becomes rows.
fa3_tensor exact(E4m3Call& call, const fa3_tensor& t, const fa3_tensor& like, const fa3_tensor& scale,
                 const fa3_tensor& mean, bool keys) {
  const int first = like.rank - 3;
  std::vector<int64_t> dims(like.dim, like.dim + like.rank);
  const fa3_tensor made = call.make(FA3_DTYPE_FP32, dims);
  float* to = floats(made);
  const int64_t entries = first ? like.dim[0] : 1;
  for (int64_t entry = 0; entry < entries; ++entry)
    for (int64_t row = 0; row < like.dim[first]; ++row)
      for (int64_t head = 0; head < like.dim[first + 1]; ++head)
        for (int64_t column = 0; column < like.dim[first + 2]; ++column) {
          int64_t own;
          const int64_t sequence = sequence_of(call.form, keys, entry, row, &own);
          int64_t at;
          if (t.rank == 5) {
            const int64_t key = row % 16, tile_row = 16 * (column / 16) + 8 * (column % 2) + column % 16 / 2;
            at = entry * t.stride[0] + head * t.stride[1] + row / 16 * t.stride[2] + 16 * tile_row +
                 4 * (key % 8 / 2) + 2 * (key / 8) + key % 2;
          } else {
            at = (first ? entry * t.stride[0] : 0) + row * t.stride[first] + head * t.stride[first + 1] + column;
          }
          const int64_t dim[3] = {sequence, head, own / FA3_SCALE_ROWS};
          int64_t scale_at = 0;
          for (int i = 0; i < 3; ++i) scale_at += scale.dim[i] == 1 ? 0 : dim[i] * scale.stride[i];
          float x = tools::read_element(t.data, at, FA3_DTYPE_E4M3) * floats(scale)[scale_at];
          if (mean.rank) x += floats(mean)[sequence * mean.stride[0] + head * mean.stride[1] + column];
          *to++ = x;
        }
  return made;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

TEST_CASE("gradients of e4m3 are those of the numbers that elements stand for", "[e4m3][backward]") {
  for (const E4m3Form& form : e4m3_forms()) {
    INFO(form.name);
    E4m3Call call(form);
    fa3_backward_params p = call.p;
    for (fa3_tensor* t : {&p.dq, &p.dk, &p.dv}) {
      const std::vector<int64_t> dims(t->dim, t->dim + t->rank);
      *t = call.make(FA3_DTYPE_FP32, dims);
    }
    run_reference(p);
    fa3_backward_params same = p;
    same.q = exact(call, p.q, p.dq, p.q_scale, {}, false);
    same.k = exact(call, p.k, p.dk, p.k_scale, {}, true);
    same.v = exact(call, p.v, p.dv, p.v_scale, p.v_mean, true);
    same.q_scale = same.k_scale = same.v_scale = same.v_mean = same.lse_offset = {};
    same.lse = call.make(FA3_DTYPE_FP32, {p.lse.dim, p.lse.dim + p.lse.rank});
    const std::vector<double> lse = call.numbers(p.lse);
    const std::vector<double> offset = p.lse_offset.rank ? call.numbers(p.lse_offset) : std::vector<double>(lse.size());
    for (size_t i = 0; i < lse.size(); ++i) floats(same.lse)[i] = float(lse[i] - offset[i]);
    if (same.dsinks.rank) same.dsinks = call.make(FA3_DTYPE_FP32, {p.dsinks.dim[0]});
    for (fa3_tensor* t : {&same.dq, &same.dk, &same.dv}) *t = call.make(FA3_DTYPE_FP32, {t->dim, t->dim + t->rank});
    run_reference(same);
    CHECK(relative_error(call.numbers(p.dq), call.numbers(same.dq)) < 1e-5);
    CHECK(relative_error(call.numbers(p.dk), call.numbers(same.dk)) < 1e-5);
    CHECK(relative_error(call.numbers(p.dv), call.numbers(same.dv)) < 1e-5);
    if (p.dsinks.rank) CHECK(relative_error(call.numbers(p.dsinks), call.numbers(same.dsinks)) < 1e-5);
  }
}

TEST_CASE("gradients of e4m3 by finite differences", "[e4m3][backward]") {
  for (E4m3Form form : e4m3_forms()) {
    INFO(form.name);
    form.dtype = FA3_DTYPE_FP32;  // o, dout and gradients, so that differences are seen
    E4m3Call call(form);
    run_reference(call.p);
    const std::vector<double> dout = call.numbers(call.p.dout);
    const auto loss = [&] {
      REQUIRE(fa3_reference_forward(&call.f, 1) == FA3_OK);
      double sum = dot(dout, call.numbers(call.f.o));
      if (!form.dlse) return sum;
      const std::vector<double> lse = call.numbers(call.f.lse), dlse = call.numbers(call.p.dlse);
      for (size_t i = 0; i < lse.size(); ++i)
        if (std::isfinite(lse[i])) sum += dlse[i] * lse[i];
      return sum;
    };
    // d loss / d log(scale) is the sum of elements times gradients.
    const auto slope = [&](const fa3_tensor& numbers) {
      constexpr double step = 1e-3;
      double values[2];
      std::vector<float> kept(floats(numbers), floats(numbers) + call.numbers(numbers).size());
      for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < kept.size(); ++i) floats(numbers)[i] = kept[i] * float(side ? 1 + step : 1 - step);
        values[side] = loss();
      }
      std::copy(kept.begin(), kept.end(), floats(numbers));
      return (values[1] - values[0]) / (2 * step);
    };
    const auto expect = [&](const char* what, const fa3_tensor& numbers, double right, double size) {
      INFO(what);
      const double found = slope(numbers);
      INFO(found << ", should be " << right);
      CHECK(std::abs(found - right) <= 2e-3 * size);
    };
    const auto& p = call.p;
    const auto q = call.numbers(exact(call, p.q, p.dq, p.q_scale, {}, false)), dq = call.numbers(p.dq);
    const auto k = call.numbers(exact(call, p.k, p.dk, p.k_scale, {}, true)), dk = call.numbers(p.dk);
    const auto v = call.numbers(exact(call, p.v, p.dv, p.v_scale, {}, true)), dv = call.numbers(p.dv);
    const auto size = [](const auto& a, const auto& b) { return std::sqrt(dot(a, a) * dot(b, b)); };
    expect("q_scale", p.q_scale, dot(q, dq), size(q, dq));
    expect("k_scale", p.k_scale, dot(k, dk), size(k, dk));
    expect("v_scale", p.v_scale, dot(v, dv), size(v, dv));
    if (p.sinks.rank && p.dsinks.rank) {
      const auto sinks = call.numbers(p.sinks), dsinks = call.numbers(p.dsinks);
      expect("sinks", p.sinks, dot(sinks, dsinks), size(sinks, dsinks));
    }
    if (!p.v_mean.rank) continue;
    const auto with_mean = call.numbers(exact(call, p.v, p.dv, p.v_scale, p.v_mean, true));
    expect("v_mean", p.v_mean, dot(with_mean, dv) - dot(v, dv), size(with_mean, dv));
  }
}

}  // namespace fa3::test
