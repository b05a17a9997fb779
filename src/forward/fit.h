// Which rows of the table can run a problem.
#pragma once
#include "problem.h"
#include "row.h"

namespace fa3 {

// Rows that may run the problem, of which the planner takes the fastest: one, if the caller named it.
struct Fit {
  static constexpr int most = 8;
  int rows[most];
  int count;
  int for_tiles;  // the row that may run it instead if row-major V of 8 bits is made into tiles first; -1: none
};

// The row that the caller named; or all that the library chooses itself, of the problem's dtype and mask and of the
// smallest head dimensions that hold it (larger ones are never faster). Refuses a name that does not fit, and what the
// kernels' 32-bit counters cannot hold.
fa3_status fit(const Problem& problem, Fit& fit);

// Are the sequences short enough for the kernels, forward and backward?
fa3_status check_lengths(const AttentionShape& shape);

// The refusal of a kernel's name that this build does not have.
fa3_status unknown_kernel(const char* name);

}  // namespace fa3
