// Which row of the table can run a problem, and its tiles there. Which of two rows does, and how the tiles are shared out,
// depends on the number of multiprocessors, too: schedule.h.
#pragma once
#include "problem.h"
#include "variant.h"

namespace fa3 {

struct Selection {
  int row;  // of variants[]
  int32_t q_blocks, q_origin, batch_heads, section_heads, tiles;

  const Variant& variant() const { return variants[row]; }
  // Blocks of query rows that are in no tile, of all heads. With the tiles they are few enough for 32 bits.
  int64_t blind_blocks() const {
    return q_origin <= 0 ? 0 : int64_t{batch_heads} * ((q_origin + variant().Br - 1) / variant().Br);
  }
};

// Does the library choose this row itself? Others run only by name.
constexpr bool is_default(const Variant& variant) { return variant.is_fwd(); }

// The row that the caller named, or else fwd's that fits best. Refuses a name that does not fit, and what the kernels' 32-bit
// counters cannot hold.
fa3_status select(const Problem& problem, Selection& selection);

// The same problem on fwdsmall's row; false if there is none, or the caller named a row.
bool select_small(const Problem& problem, const Selection& selection, Selection& small);

// (batch, head) pairs that are worked on together; see select.cpp.
int64_t section_heads(const Problem& problem);

}  // namespace fa3
