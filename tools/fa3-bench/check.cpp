#include "check.h"

#include <cmath>

#include "half.h"
#include "samples.h"

namespace fa3::bench {

static std::string check_row(const Point& p, const HostTensors& t, const Place& place) {
  const int64_t n = p.visible_keys(place.row), output = output_at(p, place);
  const auto key = [&](int64_t j) { return Place{place.batch, j, place.head / (p.heads / p.kv_heads)}; };
  const Vector q = read_row(p, t.q, query_at(p, place), p.head_dim);

  Vector s(size_t(n), 0.0), expected(size_t(p.v_dim()), 0.0);
  double m = -INFINITY, l = 0, largest_v = 0;
  for (int64_t j = 0; j < n; ++j) {
    s[size_t(j)] = dot(q, read_row(p, t.k, key_at(p, key(j)), p.head_dim)) / std::sqrt(double(p.head_dim));
    m = std::max(m, s[size_t(j)]);
  }
  for (int64_t j = 0; j < n; ++j) {
    const double e = std::exp(s[size_t(j)] - m);
    const Vector v = p.v_in_k() ? read_row(p, t.k, key_at(p, key(j)), p.v_dim())
                                : read_row(p, t.v, value_at(p, key(j)), p.v_dim());
    l += e;
    for (size_t c = 0; c < v.size(); ++c) {
      expected[c] += e * v[c];
      largest_v = std::max(largest_v, std::abs(v[c]));
    }
  }
  double largest = 0;
  for (double& x : expected) largest = std::max(largest, std::abs(x = n ? x / l : 0));

  const double tolerance = 2 * tools::unit_roundoff(p.dtype) * largest + (p.is_fp8() ? 0x1p-9 * largest_v : 0);
  for (size_t c = 0; c < expected.size(); ++c) {
    const double is = tools::from_half(t.o[size_t(output) + c], p.o_dtype()), should = expected[c];
    if (!(std::abs(is - should) <= tolerance)) return wrong("o", place, is, should);
  }
  const double lse = t.lse[lse_at(p, place)], lse_should = n ? m + std::log(l) : -INFINITY;
  const double lse_tolerance = p.is_fp8() ? 5e-3 : 2e-5 * (1 + std::abs(lse_should));
  const bool lse_right = n ? std::abs(lse - lse_should) <= lse_tolerance : lse == lse_should;
  return lse_right ? "" : wrong("lse", place, lse, lse_should);
}

std::string check_rows(const Point& p, const HostTensors& t, int rows, uint64_t seed) {
  std::string problem = unwritten("o", t.o, p.o_elements());
  if (problem.empty()) problem = unwritten("lse", t.lse, p.lse_elements());
  if (!problem.empty()) return problem;
  return first_problem(
      rows, [&](int64_t n) { return check_row(p, t, sample(seed, n, p.batch, p.seqlen, p.heads)); });
}

}  // namespace fa3::bench
