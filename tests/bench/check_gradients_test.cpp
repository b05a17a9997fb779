// The check of gradients takes right ones, of any shape, and finds a single wrong element.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <tuple>

#include "../../tools/fa3-bench/check/check_gradients.h"
#include "half.h"
#include "params.h"
#include "random.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;

// A point's tensors on the host, with o and lse by the forward reference and gradients by the backward reference.
struct Computed {
  using Tensor = std::vector<uint16_t>;
  Point point;
  Tensor q, k, v, o, dout, dq, dk, dv;
  std::vector<float> lse;

  explicit Computed(const Point& p) : point(p), lse(size_t(p.lse_elements())) {
    point.direction = Direction::backward;
    uint64_t seed = 0;
    for (Tensor* t : {&q, &o, &dout, &dq, &k, &v, &dk, &dv}) {
      t->resize(size_t(t == &q || t == &dq   ? p.q_elements()
                       : t == &k || t == &dk ? p.k_elements()
                       : t == &v || t == &dv ? p.v_elements()
                                             : p.o_elements()));
      tools::fill_normal(++seed, t->data(), t->size(), p.dtype);
    }
    const fa3_forward_params forward = point.params({q.data(), k.data(), v.data(), o.data(), lse.data()});
    REQUIRE(fa3_reference_forward(&forward, 1) == FA3_OK);
    const fa3_backward_params gradients =
        point.backward_params(forward, {dout.data(), dq.data(), dk.data(), dv.data()});
    REQUIRE(fa3_reference_backward(&gradients, 1) == FA3_OK);
  }

  // Of so many random rows that whatever is wrong is among them.
  std::string verdict(int rows = 400) const {
    return check_gradients(point, {q.data(), k.data(), v.data(), o.data(), lse.data()},
                           {dout.data(), dq.data(), dk.data(), dv.data()}, rows, 7);
  }
  void write(Tensor& tensor, size_t at, float value) const { tensor[at] = tools::to_half(value, point.dtype); }
  // Adds this much of the row's largest element to one element.
  void change(Tensor& tensor, size_t at, float share) const {
    const size_t d = size_t(point.head_dim), first = at / d * d;
    float largest = 0;
    for (size_t i = first; i < first + d; ++i)
      largest = std::max(largest, std::abs(tools::from_half(tensor[i], point.dtype)));
    write(tensor, at, tools::from_half(tensor[at], point.dtype) + share * largest);
  }
};

TEST_CASE("the check takes right gradients") {
  Point unequal[] = {{FA3_DTYPE_BF16, 64, true, 2, 40, 50, 4, 2, {}}, {FA3_DTYPE_FP16, 64, false, 2, 40, 50, 4, 2, {}}};
  unequal[0].head_dim_v = 24, unequal[1].head_dim_v = 104;
  for (const Point& point : unequal) CHECK(Computed(point).verdict() == "");
  const Point points[] = {
      {FA3_DTYPE_BF16, 64, true, 2, 40, 50, 4, 2, {}},  {FA3_DTYPE_FP16, 128, false, 1, 70, 30, 2, 2, {}},
      {FA3_DTYPE_BF16, 256, true, 1, 33, 33, 3, 1, {}}, {FA3_DTYPE_FP16, 8, true, 1, 60, 20, 2, 1, {}},
      {FA3_DTYPE_BF16, 72, true, 1, 1, 1, 1, 1, {}},    {FA3_DTYPE_FP16, 64, false, 1, 1, 200, 1, 1, {}}};
  for (const Point& point : points) {
    INFO(point.label());
    CHECK(Computed(point).verdict() == "");
  }
}

TEST_CASE("the check finds one wrong element of a gradient") {
  Computed made({GENERATE(FA3_DTYPE_BF16, FA3_DTYPE_FP16), 64, true, 1, 20, 26, 2, 1, {}});
  const auto [name, tensor] = GENERATE(table<const char*, Computed::Tensor Computed::*>(
      {{"dq", &Computed::dq}, {"dk", &Computed::dk}, {"dv", &Computed::dv}}));
  Computed::Tensor& gradient = made.*tensor;
  const size_t at = gradient.size() / 2 + 5;
  const bool bf16 = made.point.dtype == FA3_DTYPE_BF16;
  CHECK(made.verdict() == "");
  SECTION("by less than its roundings") {
    made.change(gradient, at, bf16 ? 1e-3f : 1e-4f);
    CHECK(made.verdict() == "");
  }
  SECTION("by more") {
    made.change(gradient, at, bf16 ? 0.04f : 0.01f);
    CHECK_THAT(made.verdict(), ContainsSubstring(std::string(name) + " of batch"));
  }
  SECTION("NaN") {
    made.write(gradient, at, std::numeric_limits<float>::quiet_NaN());
    CHECK_THAT(made.verdict(), ContainsSubstring(std::string(name) + " of batch") && ContainsSubstring("nan"));
  }
  SECTION("not written") {
    gradient[at] = 0xffff;
    CHECK(made.verdict(1) == std::string("an element of ") + name + " was not written");
  }
  SECTION("a whole row of zeros") {
    std::fill_n(gradient.begin() + long(at / 64 * 64), 64, uint16_t(0));
    CHECK_THAT(made.verdict(), ContainsSubstring(std::string(name) + " of batch"));
  }
}

TEST_CASE("where a gradient is nothing, it may be off by what float32 loses") {
  Computed made({FA3_DTYPE_BF16, 64, true, 1, 1, 1, 1, 1, {}});
  REQUIRE(std::all_of(made.dq.begin(), made.dq.end(), [](uint16_t x) { return tools::from_bf16(x) == 0; }));
  made.write(made.dq, 5, 0x1p-17f);
  CHECK(made.verdict() == "");
  made.write(made.dq, 5, 0x1p-8f);
  CHECK_THAT(made.verdict(), ContainsSubstring("dq of batch"));
}

TEST_CASE("few rows are the first and the last") {
  const Computed right({FA3_DTYPE_BF16, 64, false, 1, 40, 50, 1, 1, {}});
  for (const auto& [row, rows, found] : {std::tuple(0, 1, true), {39, 1, false}, {39, 2, true}, {20, 2, false}}) {
    Computed made = right;
    made.change(made.dq, size_t(row * 64), 0.5f);
    CHECK(made.verdict(rows).empty() != found);
  }
}

TEST_CASE("the check takes o and lse as the kernel was given them") {
  Computed made({FA3_DTYPE_FP16, 64, false, 1, 40, 50, 2, 2, {}});
  SECTION("o") {
    for (size_t i = 0; i < 64; ++i) made.change(made.o, i, 0.5f);
    CHECK_THAT(made.verdict(), ContainsSubstring("dq of batch 0 row 0 head 0"));
  }
  SECTION("lse") {
    made.lse[0] += 0.1f;
    CHECK_THAT(made.verdict(), ContainsSubstring("dq of batch 0 row 0 head 0"));
  }
}

}  // namespace fa3::bench
