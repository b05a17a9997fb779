#include "check_gradients.h"

#include <algorithm>
#include <cmath>

#include "half.h"
#include "samples.h"

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

Query read_query(const Point& p, const HostTensors& t, const HostGradients& g, const Place& place) {
  const int64_t at = output_at(p, place);
  const Vector o = read_row(p, t.o, at, p.v_dim()), dout = read_row(p, g.dout, at, p.v_dim());
  return {read_row(p, t.q, query_at(p, place), p.head_dim), dout, t.lse[lse_at(p, place)], dot(dout, o),
          magnitude_of_dot(dout, o)};
}

Pair pair_of(const Point& p, const Query& query, const Vector& k, const Vector& v) {
  const auto rounded = [&](double x) { return double(tools::round_to(float(x), p.dtype)); };
  const double scale = 1 / std::sqrt(double(p.head_dim));
  const double weight = std::exp(dot(query.q, k) * scale - query.lse), rounded_weight = rounded(weight);
  const double difference = dot(query.dout, v) - query.delta;
  const double magnitude = magnitude_of_dot(query.dout, v) + query.delta_magnitude;
  return {{weight, rounded_weight, weight},
          {scale * weight * difference, scale * rounded(rounded_weight * difference), scale * weight * magnitude}};
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

std::string check_query(const Point& p, const HostTensors& t, const HostGradients& g, const Place& place) {
  const Query query = read_query(p, t, g, place);
  Gradient dq(p.head_dim);
  for (int64_t j = 0; j < p.visible_keys(place.row); ++j) {
    const Place key{place.batch, j, place.head / (p.heads / p.kv_heads)};
    const Vector k = read_row(p, t.k, key_at(p, key), p.head_dim);
    dq.add(pair_of(p, query, k, read_row(p, t.v, value_at(p, key), p.v_dim())).ds, k);
  }
  return compare("dq", p, place, g.dq + query_at(p, place), dq);
}

std::string check_key(const Point& p, const HostTensors& t, const HostGradients& g, const Place& place) {
  const int64_t key = key_at(p, place), value = value_at(p, place), group = p.heads / p.kv_heads;
  const Vector k = read_row(p, t.k, key, p.head_dim), v = read_row(p, t.v, value, p.v_dim());
  Gradient dk(p.head_dim), dv(p.v_dim());
  for (int64_t h = place.head * group; h < (place.head + 1) * group; ++h)
    for (int64_t i = 0; i < p.seqlen; ++i) {
      if (p.visible_keys(i) <= place.row) continue;
      const Query query = read_query(p, t, g, {place.batch, i, h});
      const Pair pair = pair_of(p, query, k, v);
      dk.add(pair.ds, query.q);
      dv.add(pair.p, query.dout);
    }
  const std::string problem = compare("dk", p, place, g.dk + key, dk);
  return problem.empty() ? compare("dv", p, place, g.dv + value, dv) : problem;
}

}  // namespace

std::string check_gradients(const Point& p, const HostTensors& t, const HostGradients& g, int rows, uint64_t seed) {
  for (const std::string& problem : {unwritten("dq", g.dq, p.q_elements()), unwritten("dk", g.dk, p.k_elements()),
                                     unwritten("dv", g.dv, p.v_elements())})
    if (!problem.empty()) return problem;
  const std::string problem = first_problem(
      rows, [&](int64_t n) { return check_query(p, t, g, sample(seed, n, p.batch, p.seqlen, p.heads)); });
  if (!problem.empty()) return problem;
  return first_problem(
      rows, [&](int64_t n) { return check_key(p, t, g, sample(seed, n, p.batch, p.seqlen_k, p.kv_heads)); });
}

}  // namespace fa3::bench
