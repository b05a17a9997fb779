// How a problem's tiles are shared out among the multiprocessors, and the workspace that this takes.
#pragma once
#include <cstddef>

#include "params.h"
#include "problem.h"
#include "select.h"

namespace fa3 {

struct Schedule {
  Selection selection;
  Split split;
};

// On which row the problem runs, the selected one or its fwdsmall, which tiles are split along the keys, and how; depends on
// the problem and the number of multiprocessors only.
Schedule make_schedule(const Problem& problem, const Selection& selection, int multiprocessors);

// Persistent thread blocks: one for each multiprocessor, or for each item where there are fewer, or for each block of rows
// that are in no tile where those are more.
int grid(const Schedule& schedule, int multiprocessors);

// What stands where in the workspace, in bytes from its start: the struct Workspace and, if tiles are split, tickets and
// partial results.
struct WorkspaceLayout {
  size_t tickets, partials, bytes;
};
WorkspaceLayout workspace_layout(const Schedule& schedule);

}  // namespace fa3
