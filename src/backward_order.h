// In which order thread blocks of the backward pass take key blocks, and how these add to dQ (backward_work.h).
#pragma once
#include "backward.h"
#include "divide_up.h"
#include "row.h"

namespace fa3 {

constexpr int64_t max_rows = INT32_MAX;  // query rows of all heads, tiles rounded up, are counted in int32

struct Parts {
  int64_t parts = 1, ranges = 1;  // of a K/V head, of a query head
  int64_t range_tiles;            // of Br rows

  // Query heads that a part reads.
  int64_t readers(int64_t heads_per_kv) const { return heads_per_kv * ranges / parts; }
};
// tiles: of Br rows, of a query head; key_blocks: of a K/V head.
Parts parts_of(const BackwardProblem& problem, const Row& row, int64_t key_blocks, int64_t tiles);

// The counters are null.
KeyOrder key_order_of(const BackwardProblem& problem, const Row& row, const Parts& parts, int64_t key_blocks);

// Of blocks that add nothing up.
BlockOrder block_order_of(int64_t batch_heads, int64_t blocks, const Visible& seen);

}  // namespace fa3
