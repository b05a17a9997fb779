// Problems of a given row of the table, run on it and verified.
#pragma once

#include "problems/problem.h"

namespace fa3::test {

// Checks that the problem runs on that row, if it names one, and its results. Returns whether the library splits it
// along the keys.
bool run(const Problem& problem, const ForwardRow& row, int repeats = 3);

constexpr bool every_row(const ForwardRow&) { return true; }

// Registers a test case for every forward row that it applies to, named after it; but not for those with lengths of
// their own, which take other problems (planned.cpp). Not a template: a compiler would make a copy of the body for each
// row.
struct RowCases {
  RowCases(const char* what, const char* tags, void (*body)(const ForwardRow&),
           bool (*applies)(const ForwardRow&) = every_row);
};

// A seed of its own for every row and problem, from the seed of the run.
uint64_t seed_for(const ForwardRow& row, int number);

}  // namespace fa3::test
