// The cases of served_backward.cpp: a backward call of sequences with lengths of their own, with its tensors, and what
// its gradients are to be.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "fa3.h"
#include "served_case.h"

namespace fa3::test {

// Inputs are those of a forward case, whose o and lse the reference has computed: N(0,1) where a row counts, and NaN
// elsewhere. Gradients are poison until they are computed.
struct ServedGradients {
  ServedCase made;
  View dout, dlse, dq, dk, dv, dsinks;  // dlse, dsinks without an image where absent
  bool deterministic;

  struct Wishes {
    bool dlse = false, dsinks = false, deterministic = false;
  };
  ServedGradients(const ServedProblem& problem, const Wishes& wishes);

  fa3_backward_params params(const std::vector<void*>& bases) const;
  std::vector<View> gradients() const;  // those that there are
  void poison();
};
// Any mix of what the backward pass takes, from the seed.
ServedProblem random_for_gradients(uint64_t seed, double budget);
ServedGradients::Wishes random_wishes(const ServedProblem& problem, uint64_t seed);

// Of each element of dq, dk and dv, in the order of their dims: what is right, in float64; what plain float32 code
// computes, with P, dS and the gradients rounded to the dtype; and what must hold of it.
enum class Must : uint8_t { stay, be_zero, be_right, be_anything };
struct ExpectedGradient {
  std::vector<float> right, plain;
  std::vector<Must> must;
};
struct ExpectedGradients {
  std::array<ExpectedGradient, 3> of;  // dq, dk, dv
  std::vector<float> dsinks;
};
ExpectedGradients expect(const ServedGradients& made);

// "", or what is wrong.
std::string verify(const ServedGradients& made, const ExpectedGradients& expected);
// The same where lengths mean nothing: only what is around the tensors must be as it was.
std::string check_around(const ServedGradients& made);

}  // namespace fa3::test
