#include "check.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "half.h"
#include "parallel.h"
#include "random.h"

namespace fa3::bench {

static std::string check_row(const Point& p, const HostTensors& t, int64_t b, int64_t i, int64_t h) {
  const int64_t d = p.head_dim, kv = h / (p.heads / p.kv_heads), n = p.visible_keys(i);
  const int64_t query = ((b * p.seqlen + i) * p.heads + h) * d;
  const auto number = [&](const void* tensor, int64_t at) { return double(tools::read_element(tensor, at, p.dtype)); };
  const auto key = [&](int64_t j) { return ((b * p.seqlen_k + j) * p.kv_heads + kv) * d; };

  std::vector<double> s(size_t(n), 0.0), expected(size_t(d), 0.0);
  double m = -INFINITY, l = 0, largest_v = 0;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t c = 0; c < d; ++c) s[size_t(j)] += number(t.q, query + c) * number(t.k, key(j) + c);
    s[size_t(j)] /= std::sqrt(double(d));
    m = std::max(m, s[size_t(j)]);
  }
  for (int64_t j = 0; j < n; ++j) {
    const double e = std::exp(s[size_t(j)] - m);
    l += e;
    for (int64_t c = 0; c < d; ++c) {
      const double v = number(t.v, key(j) + c);
      expected[size_t(c)] += e * v;
      largest_v = std::max(largest_v, std::abs(v));
    }
  }
  double largest = 0;
  for (double& x : expected) largest = std::max(largest, std::abs(x = n ? x / l : 0));

  const auto where = [&](const char* what, double is, double should) {
    return std::string(what) + " of batch " + std::to_string(b) + " row " + std::to_string(i) + " head " +
           std::to_string(h) + " is " + std::to_string(is) + ", should be " + std::to_string(should);
  };
  const double tolerance = 2 * tools::unit_roundoff(p.dtype) * largest + (p.is_fp8() ? 0x1p-9 * largest_v : 0);
  for (int64_t c = 0; c < d; ++c) {
    const double is = tools::from_half(t.o[query + c], p.o_dtype()), should = expected[size_t(c)];
    if (!(std::abs(is - should) <= tolerance)) return where("o", is, should);
  }
  const double lse = t.lse[(b * p.heads + h) * p.seqlen + i], lse_should = n ? m + std::log(l) : -INFINITY;
  const double lse_tolerance = p.is_fp8() ? 5e-3 : 2e-5 * (1 + std::abs(lse_should));
  const bool lse_right = n ? std::abs(lse - lse_should) <= lse_tolerance : lse == lse_should;
  return lse_right ? "" : where("lse", lse, lse_should);
}

template <class T>
static bool any_poison(const T* data, int64_t count) {
  T poison;
  std::memset(&poison, poison_byte, sizeof poison);
  std::atomic<bool> found = false;
  tools::parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (std::memcmp(&data[i], &poison, sizeof poison) == 0) {
        found = true;
        return;
      }
  });
  return found;
}

std::string check_rows(const Point& p, const HostTensors& t, int rows, uint64_t seed) {
  if (any_poison(t.o, p.q_elements())) return "an element of o was not written";
  if (any_poison(t.lse, p.batch * p.heads * p.seqlen)) return "an element of lse was not written";
  std::vector<std::string> answers(static_cast<size_t>(rows));
  tools::parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      tools::Random random(tools::mix(seed, uint64_t(n)));
      const int64_t b = random.between(0, p.batch - 1), h = random.between(0, p.heads - 1);
      const int64_t i = n == 0 ? 0 : n == 1 ? p.seqlen - 1 : random.between(0, p.seqlen - 1);
      answers[size_t(n)] = check_row(p, t, b, i, h);
    }
  });
  for (const std::string& answer : answers)
    if (!answer.empty()) return answer;
  return "";
}

}  // namespace fa3::bench
