// A sequence of a batch whose sequences have lengths of their own. Plain C++, read by both sides.
#pragma once
#include <cstdint>

namespace fa3 {

// What a piece needs to know of the sequence that its rows are of: where that lies in the tensors, how long it is, and
// which keys its rows see (left and right of visible.h).
struct Sequence {
  int32_t q_row, q_batch;  // of its first query
  int32_t k_row, k_batch;  // of its first key
  int32_t seqlen_q, seqlen_k;
  int32_t left, right;
};

}  // namespace fa3
