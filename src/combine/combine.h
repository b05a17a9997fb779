// fa3_combine: its rules, what it launches, and the same on the CPU.
#pragma once
#include "params/combine_params.h"
#include "problem.h"
#include "rules/call.h"

namespace fa3 {

struct Device;

// The caller's parameters after validation. Absent tensors have data null and dims 0.
struct CombineProblem {
  View part;            // (batch, rows, heads, head_dim): the first of o_parts; others are part_stride elements apart
  int64_t part_stride;
  View lse_parts;       // (parts, batch, heads, rows)
  View o, lse;          // (batch, rows, heads, head_dim); (batch, heads, rows, 1)
  bool wants_lse;
  int64_t parts, batch, rows, heads, head_dim;

  bool empty() const { return o.empty(); }
};

// Every rule of fa3.h. fa3_reference_combine has those of the device.
fa3_status validate(const fa3_combine_params* params, CombineProblem& problem);

// What a call launches: one kernel. A function of the problem.
struct CombinePlan {
  int row;
  int32_t chunks;  // of 16 bytes, of a row of a part: what a thread loads at once
  CombineTiles tiles;
  int32_t grid;  // thread blocks; 0: nothing is launched
};
CombinePlan plan(const CombineProblem& problem);

fa3_status launch(const CombineProblem& problem, const CombinePlan& plan, const Device& device, fa3_stream stream);

fa3_status reference_combine(const CombineProblem& problem);

}  // namespace fa3
