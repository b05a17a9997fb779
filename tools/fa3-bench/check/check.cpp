#include "check/check.h"

#include <cmath>

#include "check/samples.h"
#include "check/scores.h"
#include "half.h"
#include "points/rows.h"

namespace fa3::bench {

static std::string check_row(const Point& p, const Rows& rows, const HostTensors& t, const Place& place) {
  const Point::Range seen = p.seen(place.batch, place.row);
  const int64_t query = rows.query(place.batch, place.row) * p.heads + place.head;
  const Vector q = read_row(t.q, query * p.head_dim, p.head_dim, p.dtype, t.period);
  const auto key = [&](int64_t j) {
    return rows.key(place.batch, j) * p.kv_heads + place.head / (p.heads / p.kv_heads);
  };

  Vector s(size_t(seen.count()), 0.0), expected(size_t(p.v_dim()), 0.0);
  const double sink = double(p.sink(place.head));
  double m = sink, l = 0, largest_v = 0;
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const Vector k = read_row(t.k, key(j) * p.head_dim, p.head_dim, p.key_dtype(), t.period);
    double& score = s[size_t(j - seen.begin)] = score_of(p, place, j, dot(q, k)).value;
    m = std::max(m, score);
  }
  if (p.planned.sinks) l = std::exp(sink - m);
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const double e = std::exp(s[size_t(j - seen.begin)] - m);
    const Vector v = p.v_in_k() ? read_row(t.k, key(j) * p.head_dim, p.v_dim(), p.key_dtype(), t.period)
                                : read_row(t.v, key(j) * p.v_dim(), p.v_dim(), p.key_dtype(), t.period);
    l += e;
    for (size_t c = 0; c < v.size(); ++c) {
      expected[c] += e * v[c];
      largest_v = std::max(largest_v, std::abs(v[c]));
    }
  }
  const bool sees_any = seen.count() > 0;
  double largest = 0;
  for (double& x : expected) largest = std::max(largest, std::abs(x = sees_any ? x / l : 0));

  const double tolerance = 2 * tools::unit_roundoff(p.dtype) * largest + (p.is_fp8() ? 0x1p-9 * largest_v : 0);
  for (size_t c = 0; c < expected.size(); ++c) {
    const double is = tools::from_half(t.o[size_t(query * p.v_dim()) + c], p.o_dtype()), should = expected[c];
    if (!(std::abs(is - should) <= tolerance)) return wrong("o", place, is, should);
  }
  const double lse = t.lse[rows.lse(place.batch, place.row, place.head)];
  const double lse_should = sees_any ? m + std::log(l) : sink;
  const double lse_tolerance = p.is_fp8() ? 5e-3 : 2e-5 * (1 + std::abs(lse_should));
  const bool lse_right =
      std::isfinite(lse_should) ? std::abs(lse - lse_should) <= lse_tolerance : lse == lse_should;
  return lse_right ? "" : wrong("lse", place, lse, lse_should);
}

std::string check_rows(const Point& p, const HostTensors& t, int rows, uint64_t seed) {
  std::string problem = unwritten("o", t.o, p.o_elements());
  if (problem.empty()) problem = unwritten("lse", t.lse, p.lse_elements());
  if (!problem.empty() || p.query_rows() == 0) return problem;
  const Rows where(p);
  const std::vector<int64_t> queries = queries_of(p);
  return first_problem(rows, [&](int64_t n) { return check_row(p, where, t, sample(seed, n, queries, p.heads)); });
}

}  // namespace fa3::bench
