// fa3_reference_backward for sequences with lengths of their own: against the formulas of fa3.h, finite differences,
// and the sequences one by one.
#include "planned_gradients.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "../forward/fenced.h"
#include "half.h"
#include "random.h"

namespace fa3::test {
namespace {

void run(PlannedGradients& made, int threads = 1) {
  const fa3_backward_params params = made.host_params();
  const fa3_status status = fa3_reference_backward(&params, threads);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
}

// Any mix, from the seed; gradients in the problem's dtype or float32.
PlannedGradients random_gradients(uint64_t seed, fa3_dtype gradients, double budget = 2e5,
                                  Trait transform = Trait::plain) {
  tools::Random random(tools::mix(seed, 9));
  const PlannedProblem p = random_planned_backward(seed, {budget, 12, 32}, transform);
  return PlannedGradients(p, random.chance(0.5) && !p.centered_k, p.has_sinks && random.chance(0.8), gradients);
}

// Have both the same bits in so many elements?
bool same_bits(const PlannedGradients& a, const PlannedGradients& b, const View& view, int64_t position,
               int64_t count) {
  const auto width = size_t(tools::element_bytes(view.dtype)), first = width * size_t(position);
  const auto* in_a = view.data<unsigned char>(a.forward.images) + first;
  return std::equal(in_a, in_a + width * size_t(count), view.data<unsigned char>(b.forward.images) + first);
}

// The call of one sequence alone, in the same memory: a batched one of one entry, without lengths, and without sinks,
// which LSE includes.
fa3_backward_params alone(PlannedGradients& made, const PlannedSequence& s) {
  const PlannedCase& m = made.forward;
  fa3_backward_params call = made.host_params();
  const auto place = [&](fa3_tensor& t, const View& view, int64_t position, int64_t rows) {
    t = view.layout.tensor(view.data<unsigned char>(made.forward.images) + position * tools::element_bytes(view.dtype),
                           view.dtype);
    t.dim[0] = 1, t.dim[t.rank == 3 ? 2 : 1] = rows;
  };
  const auto place_q = [&](fa3_tensor& t, const View& view) {
    place(t, view, m.query_position(view, s, 0, 0), s.queries);
  };
  const auto place_k = [&](fa3_tensor& t, const View& view) { place(t, view, m.key_position(view, s, 0, 0), s.keys); };
  place_q(call.q, m.q), place_q(call.o, m.o), place_q(call.lse, m.lse), place_q(call.dout, made.dout);
  place_q(call.dq, made.dq);
  if (made.dlse.image >= 0) place_q(call.dlse, made.dlse);
  place_k(call.k, m.k), place_k(call.v, m.v), place_k(call.dk, made.dk), place_k(call.dv, made.dv);
  call.cu_seqlens_q = call.cu_seqlens_k = call.seqused_q = call.seqused_k = call.sinks = call.dsinks = {};
  call.max_seqlen_q = call.max_seqlen_k = 0;
  return call;
}

using Real = long double;

// sum(dout * O) + sum(dlse * LSE) over all rows, in long double, where one number of one tensor is larger by `by`.
Real loss(const PlannedGradients& made, const View* changed, int64_t place, Real by) {
  const PlannedCase& m = made.forward;
  const PlannedProblem& p = m.problem;
  const auto at = [&](const View& view, int64_t position) {
    return Real(view.read(m.images, position)) + (&view == changed && position == place ? by : 0);
  };
  Real sum = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const PlannedSequence s = p.sequence(b);
    for (int64_t i = 0; i < s.queries; ++i)
      for (int64_t h = 0; h < p.heads; ++h) {
        std::vector<Real> weights(size_t(s.keys), 0);
        Real total = m.sinks.image >= 0 ? std::exp(at(m.sinks, m.sinks.layout.position(&h))) : 0;
        for (int64_t j = 0; j < s.keys; ++j) {
          if (!p.sees(s, i, j)) continue;
          Real score = 0;
          const int64_t q = m.query_position(m.q, s, i, h), k = m.key_position(m.k, s, j, h / p.group());
          for (int64_t x = 0; x < p.head_dim; ++x) score += at(m.q, q + x) * at(m.k, k + x);
          total += weights[size_t(j)] = std::exp(p.transformed(score * Real(p.scale()), s, i, h, j));
        }
        if (total == 0) continue;
        if (made.dlse.image >= 0 && (sees_any(p, s, i) || made.dsinks.image >= 0))
          sum += Real(made.dlse.read(m.images, m.query_position(made.dlse, s, i, h))) * std::log(total);
        for (int64_t j = 0; j < s.keys; ++j)
          for (int64_t x = 0; x < p.head_dim_v && weights[size_t(j)] != 0; ++x)
            sum += Real(made.dout.read(m.images, m.query_position(made.dout, s, i, h) + x)) * weights[size_t(j)] /
                   total * at(m.v, m.key_position(m.v, s, j, h / p.group()) + x);
      }
  }
  return sum;
}

// The largest difference of a gradient from finite differences, as a share of the largest of these, of so many
// elements of a tensor and its gradient.
class Differences {
 public:
  explicit Differences(const PlannedGradients& made) : made_(made) {}
  void add(const View& input, int64_t at, const View& gradient, int64_t gradient_at, int64_t count) {
    constexpr Real step = 1e-5L;
    for (int64_t x = 0; x < count; ++x) {
      const Real slope = (loss(made_, &input, at + x, step) - loss(made_, &input, at + x, -step)) / (2 * step);
      const Real off = std::fabs(gradient.read(made_.forward.images, gradient_at + x) - slope);
      worst_ = off <= worst_ ? worst_ : off;  // NaN stays
      largest_ = std::max(largest_, std::fabs(slope));
    }
  }
  Real error() const { return largest_ > 0 ? worst_ / largest_ : worst_; }

 private:
  const PlannedGradients& made_;
  Real worst_ = 0, largest_ = 0;
};

// Few sequences of few rows, in float32: also none, more queries than keys, and some of a tensor's rows in use.
PlannedProblem few(int32_t mask, int32_t left, int32_t right, bool packed, Trait transform) {
  PlannedProblem p;
  p.dtype = FA3_DTYPE_FP32, p.mask = mask, p.window_left = left, p.window_right = right;
  p.heads = 4, p.heads_kv = 2, p.head_dim = 5, p.head_dim_v = 3, p.softmax_scale = 0.4f, p.seed = 3, p.guard = 64;
  p.packed_q = p.packed_k = packed, p.uses_q = p.uses_k = true, p.has_sinks = true;
  p.softcap = uint32_t(transform) & uint32_t(Trait::softcap) ? 0.7f : 0;
  p.has_slopes = p.slopes_each = uint32_t(transform) & uint32_t(Trait::alibi);
  make_room(p, {{3, 4}, {6, 3}, {0, 2}, {2, 0}, {2, 7}, {1, 1}}, 1);
  p.poisoned.assign(size_t(p.batch), false);
  p.sinks = {-INFINITY, 0.3f, -1, 1.5f};
  return p;
}

}  // namespace

TEST_CASE("random planned gradients against the formulas", "[planned][backward]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 20);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (uint64_t n = 0; n < 300; ++n) {
    const bool exact = n % 3 != 0;
    const Trait transforms[] = {Trait::softcap, Trait::alibi, Trait::softcap | Trait::alibi, Trait::plain,
                                Trait::centered_k};
    const Trait transform = transforms[n % 5];
    const fa3_dtype dtype = exact ? FA3_DTYPE_FP32 : FA3_DTYPE_NONE;
    PlannedGradients made = random_gradients(tools::mix(seed, n), dtype, 2e5, transform);
    INFO(n << ": " << made.forward.problem.describe() << (made.dlse.image < 0 ? "" : " dlse")
           << (made.dsinks.image < 0 ? "" : " dsinks"));
    const PlannedExpectedGradients expected = expect(made);
    run(made, int(n % 3));
    const bool bf16 = made.forward.problem.dtype == FA3_DTYPE_BF16;
    CHECK(verify(made, expected, exact ? 0x1p-23 : bf16 ? 0x1p-8 : 0x1p-11, exact ? 1e-10 : 1e-7) == "");
  }
}

TEST_CASE("planned gradients are what finite differences of the forward pass give", "[planned][backward]") {
  const std::tuple<int32_t, int32_t, int32_t> masks[] = {
      {FA3_MASK_NONE, 0, 0},         {FA3_MASK_CAUSAL_TOP_LEFT, 0, 0}, {FA3_MASK_CAUSAL_BOTTOM_RIGHT, 0, 0},
      {FA3_MASK_WINDOW, 2, 0},       {FA3_MASK_WINDOW, 1, 1},          {FA3_MASK_WINDOW, -1, 1},
      {FA3_MASK_CHUNK, 2, 0},        {FA3_MASK_CHUNK, 3, -1}};
  for (const auto& [mask, left, right] : masks)
    for (const int n : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const bool with_dlse = n % 2;
      constexpr Trait transforms[] = {Trait::plain, Trait::softcap, Trait::alibi, Trait::softcap | Trait::alibi};
      const Trait transform = transforms[n / 2];
      if (n >= 4 && mask == FA3_MASK_CHUNK) continue;
      PlannedGradients made(few(mask, left, right, with_dlse, transform), with_dlse, true);
      run(made);
      const PlannedCase& m = made.forward;
      const PlannedProblem& p = m.problem;
      INFO(p.describe());
      Differences dq(made), dk(made), dv(made), dsinks(made);
      for (int64_t b = 0; b < p.batch; ++b) {
        const PlannedSequence s = p.sequence(b);
        for (int64_t i = 0; i < s.queries; ++i)
          for (int64_t h = 0; h < p.heads && sees_any(p, s, i); ++h)
            dq.add(m.q, m.query_position(m.q, s, i, h), made.dq, m.query_position(made.dq, s, i, h), p.head_dim);
        for (int64_t j = 0; j < s.keys; ++j)
          for (int64_t h = 0; h < p.heads_kv; ++h) {
            dk.add(m.k, m.key_position(m.k, s, j, h), made.dk, m.key_position(made.dk, s, j, h), p.head_dim);
            dv.add(m.v, m.key_position(m.v, s, j, h), made.dv, m.key_position(made.dv, s, j, h), p.head_dim_v);
          }
      }
      for (int64_t h = 1; h < p.heads; ++h)  // the first has none
        dsinks.add(m.sinks, m.sinks.layout.position(&h), made.dsinks, made.dsinks.layout.position(&h), 1);
      CHECK(dq.error() < 1e-6L);
      CHECK(dk.error() < 1e-6L);
      CHECK(dv.error() < 1e-6L);
      CHECK(dsinks.error() < 1e-6L);
      const int64_t first = 0;
      CHECK(made.dsinks.read(m.images, made.dsinks.layout.position(&first)) == 0);
    }
}

TEST_CASE("a sequence has the gradients that it has alone, bit by bit", "[planned][backward]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 21);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (uint64_t n = 0; n < 100; ++n) {
    PlannedGradients made = random_gradients(tools::mix(seed, n), FA3_DTYPE_FP32), copy = made;
    const PlannedCase& m = made.forward;
    const PlannedProblem& p = m.problem;
    INFO(p.describe());
    run(made);
    for (int64_t b = 0; b < p.batch; ++b) {
      if (p.poisoned[size_t(b)]) continue;
      const PlannedSequence s = p.sequence(b);
      const fa3_backward_params call = alone(copy, s);
      const fa3_status status = fa3_reference_backward(&call, 1);
      INFO("sequence " << b << ": " << fa3_last_error_message());
      REQUIRE(status == FA3_OK);
      bool same = true;
      for (int64_t i = 0; i < s.queries; ++i)
        for (int64_t h = 0; h < p.heads; ++h)
          same = same && same_bits(made, copy, made.dq, m.query_position(made.dq, s, i, h), p.head_dim);
      for (int64_t j = 0; j < s.keys; ++j)
        for (int64_t h = 0; h < p.heads_kv; ++h)
          same = same && same_bits(made, copy, made.dk, m.key_position(made.dk, s, j, h), p.head_dim) &&
                 same_bits(made, copy, made.dv, m.key_position(made.dv, s, j, h), p.head_dim_v);
      CHECK(same);
    }
  }
}

TEST_CASE("planned gradients do not depend on the number of threads", "[planned][backward]") {
  for (uint64_t n = 0; n < 10; ++n) {
    PlannedGradients one = random_gradients(tools::mix(n, 22), FA3_DTYPE_NONE), many = one;
    run(one, 1);
    for (const int threads : {0, 2, 7}) {
      many.poison_outputs();
      run(many, threads);
      CHECK(many.forward.images == one.forward.images);
    }
  }
}

TEST_CASE("wrong lengths of a backward call reach nothing outside of the tensors", "[planned][backward]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 23);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (uint64_t n = 0; n < 100; ++n) {
    PlannedProblem p = random_planned_backward(tools::mix(seed, n), {1e5, 12, 32});
    p.guard = 0;
    PlannedGradients made(p, n % 2, p.has_sinks);
    spoil_numbers(made.forward.problem, tools::mix(seed, n + 1000));
    made.forward.write_numbers();
    INFO(p.describe());
    for (const bool at_the_end : {false, true}) {
      std::vector<std::unique_ptr<Fenced>> fenced;
      std::vector<void*> bases;
      for (const Image& image : made.forward.images) {
        fenced.push_back(std::make_unique<Fenced>(image, at_the_end));
        bases.push_back(fenced.back()->data());
      }
      const fa3_backward_params params = made.params(bases);
      const fa3_status status = fa3_reference_backward(&params, 1);
      INFO(fa3_last_error_message());
      REQUIRE(status == FA3_OK);
      std::vector<Image> after = made.forward.images;
      for (size_t image = 0; image < after.size(); ++image)
        std::copy_n(fenced[image]->data(), after[image].size(), after[image].begin());
      for (const View* view : made.outputs())  // elements may be anything
        view->layout.for_each([&](int64_t at) { view->write_poison(after, at); });
      CHECK(after == made.forward.images);
    }
  }
}

TEST_CASE("without rows dsinks is 0, and without queries dk and dv are", "[planned][backward]") {
  float sinks[2] = {1, -1}, dsinks[2], dk[12], dv[12], k[12] = {}, v[12] = {};
  int32_t cu_q[4] = {0, 0, 0, 0}, cu_k[4] = {0, 1, 1, 3};
  for (const int64_t sequences : {0, 3}) {
    std::fill_n(dsinks, 2, NAN), std::fill_n(dk, 12, NAN), std::fill_n(dv, 12, NAN);
    const auto tensor = [](void* data, std::initializer_list<int64_t> dims, int32_t dtype = FA3_DTYPE_FP32) {
      fa3_tensor t{};
      t.data = data, t.dtype = dtype;
      for (const int64_t dim : dims) t.dim[t.rank++] = dim;
      REQUIRE(fa3_tensor_pack(&t) == FA3_OK);
      return t;
    };
    fa3_backward_params p = FA3_BACKWARD_PARAMS_INIT;
    p.q = p.o = p.dout = p.dq = tensor(nullptr, {0, 2, 2}), p.lse = tensor(nullptr, {2, 0});
    p.k = tensor(k, {3, 2, 2}), p.v = tensor(v, {3, 2, 2}), p.dk = tensor(dk, {3, 2, 2}), p.dv = tensor(dv, {3, 2, 2});
    p.sinks = tensor(sinks, {2}), p.dsinks = tensor(dsinks, {2});
    p.cu_seqlens_q = tensor(cu_q, {sequences + 1}, FA3_DTYPE_INT32);
    p.cu_seqlens_k = tensor(cu_k, {sequences + 1}, FA3_DTYPE_INT32);
    p.max_seqlen_q = p.max_seqlen_k = 3;
    const fa3_status status = fa3_reference_backward(&p, 1);
    INFO(sequences << " sequences: " << fa3_last_error_message());
    REQUIRE(status == FA3_OK);
    CHECK((dsinks[0] == 0 && dsinks[1] == 0));
    for (int n = 0; n < 12; ++n) {
      if (sequences == 3) CHECK((dk[n] == 0 && dv[n] == 0));
      else CHECK((std::isnan(dk[n]) && std::isnan(dv[n])));  // rows of no sequence
    }
  }
}

}  // namespace fa3::test
