// Problems of a given row of the table, run on it and verified.
#pragma once
#include "problem.h"

namespace fa3::test {

const Variant& row(const char* name);

// Checks that the problem runs on that row, if it names one, and its results. Returns whether the library splits it along
// the keys.
bool run(const Problem& problem, const Variant& variant, int repeats = 3);

// A seed of its own for every row and problem, from the seed of the run.
uint64_t seed_for(const Variant& variant, int number);

}  // namespace fa3::test
