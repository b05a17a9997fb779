// Which row of the table runs a problem, and with which run-time numbers of the schedule.
#pragma once
#include "problem.h"
#include "variant.h"

namespace fa3 {

struct Selection {
  int row;  // of variants[]
  int32_t q_blocks, q_origin, batch_heads, section_heads, tiles;

  const Variant& variant() const { return variants[row]; }
};

// Does the library choose this row itself? Others run only by name.
constexpr bool is_default(const Variant& variant) { return variant.kernel == Kernel::fwd; }

// The row that the caller named, or else the one that fits best. Refuses a name that does not fit, and what the kernels'
// 32-bit counters cannot hold.
fa3_status select(const Problem& problem, Selection& selection);

// (batch, head) pairs that are worked on together; see select.cpp.
int64_t section_heads(const Problem& problem);

}  // namespace fa3
