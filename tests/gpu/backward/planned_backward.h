// What the gradients of the cases of planned_backward.cpp are to be, with the errors of rounding.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "fa3.h"
#include "planned_gradients.h"

namespace fa3::test {

// Of few heads, with head dimensions that kernels take; of some all keys of a sequence are one block.
PlannedProblem random_for_kernels(uint64_t seed, double budget, Trait transform = Trait::plain);

// Of each element of dq, dk and dv, in the order of their dims: what is right, in float64; what plain float32 code
// computes, with P, dS and the gradients rounded to the dtype and softcap's derivative to fp16, as the header says; and
// what must hold of it.
enum class Must : uint8_t { stay, be_zero, be_right, be_anything };
struct ExpectedGradient {
  std::vector<float> right, plain;
  std::vector<Must> must;
};
struct ExpectedGradients {
  std::array<ExpectedGradient, 3> of;  // dq, dk, dv
  std::vector<float> dsinks;
};
ExpectedGradients expect_rounded(const PlannedGradients& made);

// "", or what is wrong.
std::string verify(const PlannedGradients& made, const ExpectedGradients& expected);
// The same where lengths mean nothing: only what is around the tensors must be as it was.
std::string check_around(const PlannedGradients& made);

}  // namespace fa3::test
