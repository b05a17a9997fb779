// The verdict of the GPU's tests of gradients under softcap: it accepts what rounds as the kernels do, also where rows
// are few, and nothing that is less exact.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "half.h"
#include "random.h"
#include "planned_backward.h"

namespace fa3::test {
namespace {

enum class Slope { as_fp16, as_bf16, left_out };

// The gradients as kernels compute them, but for the order of sums, in the case's images.
class Emulated {
 public:
  Emulated(PlannedGradients& g, Slope slope) : g_(g), p_(g.forward.problem), slope_(slope) {
    g.poison_outputs();
    const fa3_backward_params call = g.host_params();  // zeros, and what is left as it was
    REQUIRE(fa3_reference_backward(&call, 0) == FA3_OK);
    for (int64_t b = 0; b < p_.batch; ++b)
      if (!p_.poisoned[size_t(b)])
        for (int64_t head = 0; head < p_.heads_kv; ++head) run(p_.sequence(b), head);
  }

 private:
  float rounded(double x) const {
    const auto value = float(x);
    return p_.dtype == FA3_DTYPE_BF16 ? tools::from_bf16(tools::to_bf16(value))
                                      : tools::from_fp16(tools::to_fp16(value));
  }
  double slope_of(double score) const {
    const auto exact = float(p_.slope_of_cap(score));
    return slope_ == Slope::left_out   ? 1
           : slope_ == Slope::as_bf16 ? tools::from_bf16(tools::to_bf16(exact))
                                      : tools::from_fp16(tools::to_fp16(exact));
  }
  double dot(const View& a, int64_t at_a, const View& b, int64_t at_b, int64_t count) const {
    float sum = 0;
    for (int64_t c = count; c-- > 0;) sum += a.read(images(), at_a + c) * b.read(images(), at_b + c);
    return sum;
  }
  const std::vector<Image>& images() const { return g_.forward.images; }
  void write(const View& view, int64_t at, const std::vector<double>& row, double scale) {
    for (size_t c = 0; c < row.size(); ++c) view.write(g_.forward.images, at + int64_t(c), float(row[c] * scale));
  }

  void run(const PlannedSequence& s, int64_t head_kv) {
    const PlannedCase& made = g_.forward;
    const auto d = size_t(p_.head_dim), dv = size_t(p_.head_dim_v);
    std::vector dk(size_t(s.keys), std::vector<double>(d)), dvs(size_t(s.keys), std::vector<double>(dv));
    std::vector<char> is_seen(size_t(s.keys), false);
    for (int64_t h = head_kv * p_.group(); h < (head_kv + 1) * p_.group(); ++h)
      for (int64_t i = s.queries; i-- > 0;) {
        const int64_t q = made.query_position(made.q, s, i, h), dout = made.query_position(g_.dout, s, i, h);
        std::vector<double> dq(d);
        bool sees = false;
        for (int64_t j = s.keys; j-- > 0;) {
          if (!p_.sees(s, i, j)) continue;
          sees = true, is_seen[size_t(j)] = true;
          const int64_t k = made.key_position(made.k, s, j, head_kv), v = made.key_position(made.v, s, j, head_kv);
          double delta = dot(g_.dout, dout, made.o, made.query_position(made.o, s, i, h), p_.head_dim_v);
          if (g_.dlse.image >= 0) delta -= g_.dlse.read(images(), made.query_position(g_.dlse, s, i, h));
          const double score = dot(made.q, q, made.k, k, p_.head_dim) * p_.scale();
          const double lse = made.lse.read(images(), made.query_position(made.lse, s, i, h));
          const double weight = rounded(std::exp(p_.transformed(score, s, i, h, j) - lse));
          const double dp = dot(g_.dout, dout, made.v, v, p_.head_dim_v);
          const double ds = rounded(weight * (slope_of(score) * (dp - delta)));
          for (size_t c = 0; c < d; ++c) {
            dq[c] += ds * made.k.read(images(), k + int64_t(c));
            dk[size_t(j)][c] += ds * made.q.read(images(), q + int64_t(c));
          }
          for (size_t c = 0; c < dv; ++c) dvs[size_t(j)][c] += weight * g_.dout.read(images(), dout + int64_t(c));
        }
        if (sees) write(g_.dq, made.query_position(g_.dq, s, i, h), dq, p_.scale());
      }
    for (int64_t j = 0; j < s.keys; ++j) {
      if (!is_seen[size_t(j)]) continue;
      write(g_.dk, made.key_position(g_.dk, s, j, head_kv), dk[size_t(j)], p_.scale());
      write(g_.dv, made.key_position(g_.dv, s, j, head_kv), dvs[size_t(j)], 1);
    }
  }

  PlannedGradients& g_;
  const PlannedProblem& p_;
  const Slope slope_;
};

std::string verdict(const PlannedProblem& problem, Slope slope, bool with_dlse = false) {
  PlannedGradients g(problem, with_dlse, false);
  const ExpectedGradients expected = expect_rounded(g);
  Emulated(g, slope);
  return verify(g, expected);
}

}  // namespace

TEST_CASE("gradients under softcap that round as kernels do are accepted", "[planned][backward]") {
  for (int n = 0; n < 40; ++n) {
    const uint64_t seed = tools::mix(tools::seed_of_run(), 51000 + uint64_t(n));
    PlannedProblem problem = random_for_kernels(seed, 2e5, Trait::softcap);
    problem.has_sinks = false;
    INFO(problem.describe());
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    CHECK(verdict(problem, Slope::as_fp16, n % 2) == "");
  }
}

// Where plain code rounded P times the derivative, and not the derivative, one in ten of these was refused.
TEST_CASE("gradients under softcap of few rows that round as kernels do are accepted", "[planned][backward]") {
  for (const float cap : {1.f, 3.f, 10.f, 50.f})
    for (int n = 0; n < 50; ++n) {
      PlannedProblem p;
      p.dtype = FA3_DTYPE_FP16, p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.head_dim = p.head_dim_v = 16 + 8 * (n % 4);
      p.packed_q = p.packed_k = true, p.heads = p.heads_kv = 1, p.seed = uint64_t(n), p.guard = 64, p.softcap = cap;
      make_room(p, {{20, 20 + n % 5}}, 1);
      p.poisoned.assign(size_t(p.batch), false);
      INFO(p.describe() << " seed " << n);
      CHECK(verdict(p, Slope::as_fp16) == "");
    }
}

TEST_CASE("gradients under softcap that are less exact are not", "[planned][backward]") {
  for (const fa3_dtype dtype : {FA3_DTYPE_FP16, FA3_DTYPE_BF16})
    for (const int64_t queries : {20, 150}) {
      PlannedProblem p;
      p.dtype = dtype, p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.head_dim = p.head_dim_v = 64;
      p.packed_q = p.packed_k = true, p.heads = 2, p.heads_kv = 1, p.seed = 5, p.guard = 64, p.softcap = 2;
      make_room(p, {{queries, queries + 30}}, 1);
      p.poisoned.assign(size_t(p.batch), false);
      INFO(p.describe());
      CHECK(verdict(p, Slope::as_fp16) == "");
      CHECK(verdict(p, Slope::left_out) != "");
      CHECK((verdict(p, Slope::as_bf16) == "") == (dtype == FA3_DTYPE_BF16));
    }
}

}  // namespace fa3::test
