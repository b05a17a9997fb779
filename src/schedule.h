// How a problem's tiles are shared out among the multiprocessors, and the workspace that this takes.
#pragma once
#include <cstddef>

#include "params.h"
#include "problem.h"
#include "select.h"

namespace fa3 {

// Which tiles are split along the keys, and how; depends on the problem and the number of multiprocessors only.
Split plan_split(const Problem& problem, const Selection& selection, int multiprocessors);

// Persistent thread blocks: one for each multiprocessor, or for each item where there are fewer.
int grid(const Split& split, int multiprocessors);

// What stands where in the workspace, in bytes from its start: the struct Workspace and, if tiles are split, tickets and
// partial results.
struct WorkspaceLayout {
  size_t tickets, partials, bytes;
};
WorkspaceLayout workspace_layout(const Variant& variant, const Split& split);

}  // namespace fa3
