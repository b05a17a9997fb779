// A problem on a row of the table that may run it.
#pragma once
#include "forward/forward.h"
#include "integers.h"

namespace fa3 {

struct Candidate {
  const ForwardProblem& problem;
  const ForwardRow& row;

  int number() const { return static_cast<int>(&row - forward_rows.data()); }  // of the row
  // On a row that packs heads (ptx/plan/packing.h), the query heads of each K/V head are one head with more rows.
  Packing packing() const { return row.packs_heads() ? Packing::of(problem.heads_per_kv()) : Packing{0}; }
  int64_t rows() const { return packing().rows(problem.seqlen_q); }                        // of such a head
  int64_t heads() const { return row.packs_heads() ? problem.heads_kv : problem.heads; }  // of a batch entry
  Visible visible() const {
    return {narrow(problem.seqlen_q), narrow(problem.seqlen_k), 0, narrow(problem.causal_offset),
            row.bounded_left(), row.bounded_right(), packing()};
  }
};

}  // namespace fa3
