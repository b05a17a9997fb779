// validate() called without the library around it, so that a test sees the problem that a call becomes. It leaves its
// message in its own place.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <algorithm>
#include <initializer_list>

#include "change.h"
#include "error.h"
#include "forward/forward.h"

namespace fa3::test {

// Was it refused at all?
inline bool refuse(const P& p, Rules rules, const Change& change) {
  INFO(change.name);
  ForwardProblem problem;
  const fa3_status status = validate(&p, rules, problem);
  CHECK(status == change.status);
  CHECK_THAT(last_message(), Catch::Matchers::ContainsSubstring(change.name));
  return status != FA3_OK;
}

inline ForwardProblem accept(const P& p, Rules rules) {
  ForwardProblem problem;
  const fa3_status status = validate(&p, rules, problem);
  INFO(last_message());
  REQUIRE(status == FA3_OK);
  return problem;
}

inline void check_view(const View& view, const fa3_tensor& t, std::initializer_list<int64_t> dim,
                       std::initializer_list<int64_t> stride) {
  CHECK((view.data == t.data && view.dtype == t.dtype));
  CHECK(std::equal(dim.begin(), dim.end(), view.dim));
  CHECK(std::equal(stride.begin(), stride.end(), view.stride));
}

}  // namespace fa3::test
