// A piece of varlen sequences (sequence.h), of which the device makes a list (plan_forward.h): all that a kernel needs
// to know of it, in a line of 64 bytes, so that one load brings everything. Plain C++, read by both sides.
#pragma once
#include <cstdint>

#include "sequence.h"
#include "work.h"

namespace fa3 {

// An entry is for all heads: piece n is that of entry n / heads, of head n % heads. Its rows are those from
// q_block * Br on of the sequence.
struct alignas(16) PlannedPiece {
  Sequence sequence;
  int32_t q_block;
  int32_t slot;          // of part 0, if there were one head only; part i has slot + i
  int32_t begin, end;    // K/V blocks [begin, end)
  int32_t part, parts;
  int32_t sequence_number;  // in the call, of the whole sequence where it is cut: whose scales are meant
  int32_t reserved;         // 0

  // What is to be done for the piece of this number. Every tile that is split has two slots at least, so half of its
  // slot is a number for its tickets that no other has.
  constexpr Work work(int32_t number, int32_t heads, int32_t head) const {
    return {number, begin, end, part, parts, slot * heads + head * parts, slot / 2 * heads + head};
  }
};
static_assert(sizeof(PlannedPiece) == 64);

}  // namespace fa3
