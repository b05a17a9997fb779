// validate() called without the library around it, so that a test sees the problem that a call becomes. It leaves its
// message in its own place.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <algorithm>
#include <cstring>
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

// Each change of right parameters, by fa3_forward_check and under these rules.
template <int count>
void refuse_all(P (*right)(), const Change (&changes)[count], std::initializer_list<Rules> all_rules) {
  for (const Change& change : changes) {
    P p = right();
    change.apply(p);
    const P before = p;
    expect(fa3_forward_check(&p), change);
    for (const Rules rules : all_rules) {
      const bool refused = refuse(p, rules, change);
      if (refused && rules == Rules::reference) expect(fa3_reference_forward(&p, 1), change);
    }
    CHECK(std::memcmp(&p, &before, sizeof p) == 0);
  }
}

inline void check_view(const View& view, const fa3_tensor& t, std::initializer_list<int64_t> dim,
                       std::initializer_list<int64_t> stride) {
  CHECK((view.data == t.data && view.dtype == t.dtype));
  CHECK(std::equal(dim.begin(), dim.end(), view.dim));
  CHECK(std::equal(stride.begin(), stride.end(), view.stride));
}

}  // namespace fa3::test
