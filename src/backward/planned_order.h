// In which order the thread blocks of a planned backward call take key blocks and tiles, in how many parts of heads.
#pragma once
#include "backward/planned.h"
#include "backward/order.h"

namespace fa3 {

// Of all heads: the kernels count key blocks in int32.
inline constexpr int64_t most_blocks = INT32_MAX / 2;

// Of all sequences.
inline int64_t all_rows(int64_t total, const View& view) { return total < 0 ? view.dim[0] * view.dim[1] : total; }

// Is the order another one on a card with fast memory?
bool suits_fast_memory(const BackwardProblem& problem, const BackwardRow& row);

// How many parts each head of K and V has.
int64_t listed_parts(const BackwardProblem& problem, const BackwardRow& row, const PlanBackwardParams& call);
// To the order of key blocks, a part of a head of K and V is what another head is.
inline BackwardProblem in_parts(const BackwardProblem& problem, int64_t parts) {
  BackwardProblem each = problem;
  each.heads_kv *= parts;
  return each;
}

// Of a problem whose heads of K and V are their parts, so many of each.
KeyOrder order_of(const BackwardProblem& problem, const BackwardRow& row, const Card& card,
                  const PlanBackwardParams& call, int64_t parts, int64_t head_tiles);
// Of the kernel that computes dQ alone: the heads of a section read the K and V of one of the other kernel's.
BlockOrder query_order_of(const BackwardProblem& problem, const PlanBackwardParams& call);

}  // namespace fa3
