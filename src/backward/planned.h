// The backward pass of planned problems, whose lengths only the device knows. From maxima and totals follow the row of
// the table, the grids, and how much memory there must be for the list of key blocks (ptx/plan/backward_list.h) and for
// sums; what is in the list, the device finds out.
#pragma once
#include <array>

#include "backward/backward.h"
#include "device/card.h"
#include "device/driver.h"
#include "table/row.h"

namespace fa3 {

// The row of this pass, with these traits, for the head dimension of another row of the table, 0 if it takes any; or -1.
constexpr int pass_of(Pass pass, int head_dim, Trait traits = Trait::plain) {
  for (int n = first_pass; n < row_count; ++n)
    if (const PassRow& row = pass_row(n); row.pass == pass && row.d == head_dim && row.traits == traits) return n;
  return -1;
}

// The kernel for dQ that goes with one for dK and dV, or -1.
constexpr int queries_row_of(const BackwardRow& keys, bool centered_k) {
  for (int n = first_backward; n < first_pass; ++n) {
    const BackwardRow& row = backward_row(n);
    if (row.gradients == Gradients::queries && row.dtype == keys.dtype && row.d == keys.d && row.mask == keys.mask &&
        row.has(Trait::softcap) == keys.has(Trait::softcap) && row.has(Trait::alibi) == keys.has(Trait::alibi) &&
        row.has(Trait::centered_k) == centered_k)
      return n;
  }
  return -1;
}

// The most keys that a sequence, or a chunk of it, has.
inline int64_t most_keys(const BackwardProblem& problem) {
  return problem.planned && problem.chunk > 0 ? std::min(problem.seqlen_k, problem.chunk) : problem.seqlen_k;
}

// Is dQ summed up in the workspace?
inline bool sums_dq(const BackwardRow& row) { return row.all_gradients() && !row.has(Trait::one_key_block); }

// The tensors of which kernels take clipped maps, in the order of BackwardMap.
struct MappedView {
  const char* name;
  const View& view;
  bool is_used;  // otherwise there need be no map
};
using MappedViews = std::array<MappedView, backward_maps>;
MappedViews mapped_views(const BackwardProblem& problem, bool sums_dq);

// Do sections of such a problem depend on the card (how many heads they have, and which way their blocks go)? The
// workspace does not.
bool depends_on_card(const BackwardProblem& problem, const BackwardRow& row);

// The call on the row of this number.
fa3_status plan_planned_run(const BackwardProblem& problem, int row, const Card& card, BackwardRun& plan);

// What is enqueued before all else, when all else is ready; function null: nothing. Whatever is behind it starts when
// it has ended, as kernels read K and V before they wait for the one before them.
struct FirstLaunch {
  CUfunction function;
  BackwardLaunch launch;
  WidenParams params;
};
fa3_status enqueue(const Driver& driver, const FirstLaunch& first, fa3_stream stream);

fa3_status launch_planned(const BackwardProblem& problem, const BackwardRun& plan, const FirstLaunch& first,
                          const Device& device, void* workspace, fa3_stream stream);

}  // namespace fa3
