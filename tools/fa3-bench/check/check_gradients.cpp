#include "check/check_gradients.h"

#include <algorithm>
#include <cmath>

#include "check/samples.h"
#include "check/scores.h"
#include "half.h"
#include "points/rows.h"

namespace fa3::bench {

namespace {

// A number as it is, as it is where P and dS are rounded, and the size of all that was summed up for it.
struct Number {
  double exact, rounded, magnitude;
};

// A row of a gradient: a sum of rows of other tensors.
struct Gradient {
  std::vector<Number> sums;

  explicit Gradient(int64_t columns) : sums(size_t(columns)) {}
  void add(const Number& factor, const Vector& row) {
    for (size_t c = 0; c < row.size(); ++c) {
      sums[c].exact += factor.exact * row[c];
      sums[c].rounded += factor.rounded * row[c];
      sums[c].magnitude += factor.magnitude * std::abs(row[c]);
    }
  }
};

struct Query {
  Place place;
  Vector q, dout;
  double lse, delta, delta_magnitude;  // D = rowsum(dO * O)
};

struct Pair {
  Number p, ds;  // ds times the scale of the scores
};

double magnitude_of_dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += std::abs(a[c] * b[c]);
  return sum;
}

// What is read of a point, and where it lies.
struct Tensors {
  const Point& p;
  const Rows rows;
  const HostTensors& t;
  const HostGradients& g;

  int64_t query(const Place& place) const { return rows.query(place.batch, place.row) * p.heads + place.head; }
  int64_t key(const Place& place) const { return rows.key(place.batch, place.row) * p.kv_heads + place.head; }
  Vector k(int64_t key) const { return read_row(t.k, key * p.head_dim, p.head_dim, p.dtype, t.period); }
  Vector v(int64_t key) const { return read_row(t.v, key * p.v_dim(), p.v_dim(), p.dtype, t.period); }
};

Query read_query(const Tensors& tensors, const Place& place) {
  const Point& p = tensors.p;
  const int64_t query = tensors.query(place), d = p.v_dim();
  const Vector o = read_row(tensors.t.o, query * d, d, p.dtype);
  const Vector dout = read_row(tensors.g.dout, query * d, d, p.dtype, tensors.t.period);
  const double lse = tensors.t.lse[tensors.rows.lse(place.batch, place.row, place.head)];
  const Vector q = read_row(tensors.t.q, query * p.head_dim, p.head_dim, p.dtype, tensors.t.period);
  return {place, q, dout, lse, dot(dout, o), magnitude_of_dot(dout, o)};
}

Pair pair_of(const Point& p, const Query& query, int64_t key, const Vector& k, const Vector& v) {
  const auto rounded = [&](double x, fa3_dtype dtype) { return double(tools::round_to(float(x), dtype)); };
  const double scale = 1 / std::sqrt(double(p.head_dim));
  const Score score = score_of(p, query.place, key, dot(query.q, k));
  const double weight = std::exp(score.value - query.lse), rounded_weight = rounded(weight, p.dtype);
  const double difference = dot(query.dout, v) - query.delta;
  const double magnitude = magnitude_of_dot(query.dout, v) + query.delta_magnitude;
  const double rounded_slope = rounded(score.slope, FA3_DTYPE_FP16);
  return {{weight, rounded_weight, weight},
          {scale * score.slope * weight * difference,
           scale * rounded(rounded_slope * rounded_weight * difference, p.dtype), scale * weight * magnitude}};
}

// `is`: the row as the kernel computed it.
std::string compare(const char* what, const Point& p, const Place& place, const uint16_t* is,
                    const Gradient& gradient) {
  double largest = 0, largest_error = 0, largest_magnitude = 0;
  for (const Number& sum : gradient.sums) {
    const double rounded = tools::round_to(float(sum.rounded), p.dtype);
    largest = std::max(largest, std::abs(sum.exact));
    largest_error = std::max(largest_error, std::abs(rounded - sum.exact));
    largest_magnitude = std::max(largest_magnitude, sum.magnitude);
  }
  const double tolerance =
      2.5 * largest_error + tools::unit_roundoff(p.dtype) * largest + 0x1p-19 * largest_magnitude;
  for (size_t c = 0; c < gradient.sums.size(); ++c) {
    const double number = tools::from_half(is[c], p.dtype), should = gradient.sums[c].exact;
    if (!(std::abs(number - should) <= tolerance)) return wrong(what, place, number, should);
  }
  return "";
}

std::string check_query(const Tensors& tensors, const Place& place) {
  const Point& p = tensors.p;
  const Query query = read_query(tensors, place);
  const Point::Range seen = p.seen(place.batch, place.row);
  Gradient dq(p.head_dim);
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    const int64_t key = tensors.key({place.batch, j, place.head / (p.heads / p.kv_heads)});
    const Vector k = tensors.k(key);
    dq.add(pair_of(p, query, j, k, tensors.v(key)).ds, k);
  }
  return compare("dq", p, place, tensors.g.dq + tensors.query(place) * p.head_dim, dq);
}

std::string check_key(const Tensors& tensors, const Place& place) {
  const Point& p = tensors.p;
  const int64_t key = tensors.key(place), group = p.heads / p.kv_heads;
  const Vector k = tensors.k(key), v = tensors.v(key);
  Gradient dk(p.head_dim), dv(p.v_dim());
  for (int64_t h = place.head * group; h < (place.head + 1) * group; ++h)
    for (int64_t i = 0; i < p.queries(place.batch); ++i) {
      const Point::Range seen = p.seen(place.batch, i);
      if (place.row < seen.begin || place.row >= seen.end) continue;
      const Query query = read_query(tensors, {place.batch, i, h});
      const Pair pair = pair_of(p, query, place.row, k, v);
      dk.add(pair.ds, query.q);
      dv.add(pair.p, query.dout);
    }
  const std::string problem = compare("dk", p, place, tensors.g.dk + key * p.head_dim, dk);
  return problem.empty() ? compare("dv", p, place, tensors.g.dv + key * p.v_dim(), dv) : problem;
}

std::string check_sink(const Tensors& tensors, int64_t head) {
  const Point& p = tensors.p;
  const double sink = double(p.sink(head));
  double should = 0, magnitude = 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t i = 0; i < p.queries(b); ++i) {
      if (p.seen(b, i).count() == 0) continue;
      const Query query = read_query(tensors, {b, i, head});
      const double weight = std::exp(sink - query.lse);
      should -= weight * query.delta, magnitude += weight * query.delta_magnitude;
    }
  const double is = double(tensors.g.dsinks[head]);
  return std::abs(is - should) <= 0x1p-12 * magnitude ? "" : wrong("dsinks", {0, 0, head}, is, should);
}

}  // namespace

std::string check_gradients(const Point& p, const HostTensors& t, const HostGradients& g, int rows, uint64_t seed) {
  for (const std::string& problem : {unwritten("dq", g.dq, p.q_elements()), unwritten("dk", g.dk, p.k_elements()),
                                     unwritten("dv", g.dv, p.v_elements())})
    if (!problem.empty()) return problem;
  const Tensors tensors{p, Rows(p), t, g};
  const std::vector<int64_t> queries = queries_of(p), keys = keys_of(p);
  std::string problem;
  if (p.query_rows() > 0)
    problem = first_problem(rows, [&](int64_t n) { return check_query(tensors, sample(seed, n, queries, p.heads)); });
  if (problem.empty() && p.key_rows() > 0)
    problem = first_problem(rows, [&](int64_t n) { return check_key(tensors, sample(seed, n, keys, p.kv_heads)); });
  if (!problem.empty() || !p.planned.sinks) return problem;
  const int64_t heads[] = {int64_t(seed % uint64_t(p.heads)), p.heads - 1};
  return first_problem(2, [&](int64_t n) { return check_sink(tensors, heads[n]); });
}

}  // namespace fa3::bench
