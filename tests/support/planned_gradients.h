// The backward pass of a planned problem: its memory, what is right, and the verdict.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "planned_case.h"

namespace fa3::test {

// A random problem that the backward pass takes: without pages, padding and cache entries, in 16 bits; with softcap,
// ALiBi or FA3_FLAG_CENTERED_K (then without sinks), if that is the trait, else with none.
PlannedProblem random_planned_backward(uint64_t seed, const PlannedLimits& limits = {}, Trait transform = Trait::plain);

// A planned problem with its forward pass done by the CPU reference, and the gradients poisoned. dout and dlse are
// N(0,1) in rows that count; what the header says is not read is NaN: all of rows that see no key (but dlse, if there
// is dsinks), and everything else that PlannedCase has as NaN.
struct PlannedGradients {
  PlannedCase forward;  // has all images
  View dout, dlse, dq, dk, dv, dsinks;  // dlse and dsinks without an image where absent

  bool adds;  // FA3_FLAG_ACCUMULATE: dq, dk and dv are numbers before, not poison

  // gradients: the dtype of dq, dk and dv; none: the problem's.
  PlannedGradients(const PlannedProblem& problem, bool with_dlse, bool with_dsinks,
                   fa3_dtype gradients = FA3_DTYPE_NONE, bool adds = false);

  fa3_backward_params params(const std::vector<void*>& bases) const;
  fa3_backward_params host_params();
  std::vector<const View*> outputs() const;
  void poison_outputs();
  // What is at an element of dq, dk or dv then, if gradients are added.
  static float before(int64_t at) { return static_cast<float>(at * 7919 % 2001 - 1000) / 512; }
};

// How many rows of q and of k sequence b has, in use or not.
std::array<int64_t, 2> all_rows(const PlannedProblem& problem, int64_t b);
// Does query i of the sequence see any of its keys?
bool sees_any(const PlannedProblem& problem, const PlannedSequence& s, int64_t query);

// Made once, compared with any number of runs. Of each gradient's elements, by their positions, what they must be.
struct PlannedExpectedGradients {
  enum What : char { untouched, number, zero, anything };
  struct Of {
    std::vector<double> right;  // by the header's formulas, in float64 from what is in memory
    std::vector<What> what;
  } dq, dk, dv, dsinks;
};
PlannedExpectedGradients expect(const PlannedGradients& made);

// Empty if each element is what it must be: a number to within `relative` of it and `absolute`, zeros exactly, and all
// that belongs to no sequence untouched.
std::string verify(const PlannedGradients& made, const PlannedExpectedGradients& expected, double relative,
                   double absolute);

}  // namespace fa3::test
