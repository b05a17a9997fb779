// Many queries of 16 bits over K and V of e4m3: a pass makes copies of K and V in the workspace, in q's dtype and in the
// order of each sequence's keys, and rows for 16 bits run on these. An element times its scale is rounded once.
#pragma once
#include "forward/forward.h"
#include "widen_params.h"

namespace fa3 {

// Does the row take copies of the problem's K and V?
inline bool needs_copies(const ForwardProblem& problem, const ForwardRow& row) {
  return problem.widens_keys() && !row.widens();
}
// Can the pass count their rows?
bool can_be_copied(const ForwardProblem& problem);
// May the library choose such rows? Never where a sequence's bits are not to depend on the others, nor where the copies
// would take much memory.
bool may_be_copied(const ForwardProblem& problem);
// How long the pass is predicted to take.
double copying_us(const ForwardProblem& problem);

// Where copies are, from so many bytes of the workspace on.
Copies place_copies(const ForwardProblem& problem, size_t from);
// Thread blocks of the pass.
int64_t copying_blocks(const ForwardProblem& problem);
// The problem with these copies in place of K and V, without scales, pages and a cache index. Null copies: to plan it.
ForwardProblem on_copies(const ForwardProblem& problem, const Copies& copies, void* workspace);
WidenParams copying_params(const ForwardProblem& problem, const Copies& copies, void* workspace);

}  // namespace fa3
