// The plain code, whose errors are the yardstick, rounds where kernels do.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <algorithm>
#include <cmath>
#include <vector>

#include "../problems/e4m3_rows.h"
#include "half.h"
#include "oracle.h"

namespace fa3::test {

using Catch::Matchers::WithinAbs;

TEST_CASE("the plain code rounds P and O, and nothing else") {
  // A key of score 0 and 64 of score -0.689453125, whose exponential, 0.50185, bf16 rounds down to 0.5; V is 1.
  Problem p;
  p.seqlen_k = 65, p.head_dim = 8, p.softmax_scale = 1;
  Case made(p);
  const auto set = [&](const View& view, int64_t row, int64_t c, float value) {
    const int64_t index[4] = {0, row, 0, c};
    view.data<uint16_t>(made.images)[view.layout.position(index)] = tools::to_bf16(value);
  };
  for (int64_t c = 0; c < 8; ++c) {
    set(made.q, 0, c, c < 2 ? 1 : 0);
    for (int64_t key = 0; key < 65; ++key) {
      set(made.k, key, c, key == 0 ? 0 : c == 0 ? -0.6875f : c == 1 ? -0x1p-9f : 0);
      set(made.v, key, c, 1);
    }
  }
  const double e = std::exp(-0.689453125);
  const Output plain = plain_forward(made);
  CHECK(plain.o == std::vector<float>(8, tools::from_bf16(tools::to_bf16(float((1 + 64 * 0.5) / (1 + 64 * e))))));
  CHECK(plain.o[0] < 1);
  CHECK_THAT(plain.lse[0], WithinAbs(std::log(1 + 64 * e), 1e-6));
}

TEST_CASE("the plain code rounds P of e4m3 even if there is one key only") {
  Problem p = plain_problem(e4m3_rows[2], 1, 300, 1, 1, 1, 53);
  p.mask = FA3_MASK_NONE, p.head_dim = 16, p.o_dtype = FA3_DTYPE_FP16, p.v_mean = p.lse_offset = false;
  Case made(p);
  const Expected expected = expect(made);
  double least = 1, most = 1, sum = 0;
  for (size_t i = 0; i < expected.plain.o.size(); i += 16) {
    const double ratio = expected.plain.o[i] / expected.reference.o[i];
    least = std::min(least, ratio), most = std::max(most, ratio), sum += ratio;
  }
  CHECK((least > 1 - 0x1.1p-4 && least < 1 - 0.04 && most > 1 + 0.04 && most < 1 + 0x1.1p-4));
  CHECK_THAT(sum / 300, WithinAbs(1, 0.01));
}

TEST_CASE("the plain code's sums of e4m3 shrink as the tensor cores' do where V has a mean") {
  Problem p = plain_problem(e4m3_rows[0], 1, 4, 4096, 1, 1, 52);
  p.head_dim = 64, p.o_dtype = FA3_DTYPE_BF16, p.v_mean = p.lse_offset = false, p.pattern = Pattern::normal;
  p.q_scales = p.k_scales = p.v_scales = Scales::tensor;
  const auto shrinkage = [&](bool two_level) {
    p.two_level = true;
    Case made(p);  // V has a mean
    made.problem.two_level = two_level;
    const Expected expected = expect(made);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < expected.plain.o.size(); ++i) {
      sum += double(expected.plain.o[i]) * expected.reference.o[i];
      squares += double(expected.reference.o[i]) * expected.reference.o[i];
    }
    return sum / squares;
  };
  CHECK_THAT(shrinkage(false), WithinAbs(0.95, 0.02));
  CHECK_THAT(shrinkage(true), WithinAbs(0.99, 0.01));
}

}  // namespace fa3::test
