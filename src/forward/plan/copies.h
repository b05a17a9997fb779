// Many queries of 16 bits over K and V of e4m3: a pass makes copies of K and V in the workspace, in fp16, which holds
// them exactly, and in the order of each sequence's keys; and rows that take copies run on these.
#pragma once
#include "forward/forward.h"
#include "params/widen_params.h"

namespace fa3 {

// Can the pass count the rows of K and V?
bool can_be_copied(const ForwardProblem& problem);
// May the library choose rows that take copies? Never where a sequence's bits are not to depend on the others, nor
// where the copies would take much memory.
bool may_be_copied(const ForwardProblem& problem);
// How long the pass is predicted to take.
double copying_us(const ForwardProblem& problem);

// Where copies are, from so many bytes of the workspace on.
Copies place_copies(const ForwardProblem& problem, size_t from);
// Thread blocks of the pass.
int64_t copying_blocks(const ForwardProblem& problem);
// The problem with these copies in place of K and V, without pages and a cache index.
ForwardProblem on_copies(const ForwardProblem& problem, const Copies& copies, void* workspace);
WidenParams copying_params(const ForwardProblem& problem, const Copies& copies, void* workspace);

}  // namespace fa3
