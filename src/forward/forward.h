// What a call launches: on which row its tiles run, in which pieces, in how much workspace. A function of the problem
// and the number of multiprocessors only.
#pragma once
#include <cstddef>

#include "forward/fit.h"
#include "problem.h"
#include "work.h"

namespace fa3 {

// What stands where in the workspace, in bytes from its start: the struct Workspace and, if tiles are split, tickets
// and partial results.
struct WorkspaceLayout {
  size_t tickets, partials, bytes;
};

// A problem on a row.
struct ForwardPlan {
  int row;
  Tiles tiles;
  Pieces pieces;
  Listed list[list_capacity];
  int32_t slots;              // for partial results
  double whole_us;            // predicted time with all tiles whole,
  double predicted_us;        // and as planned
  WorkspaceLayout workspace;
};

enum class Step { forward, empty_rows, tile_v };

struct Launch {
  Step step;
  int row;
  int32_t grid;  // thread blocks. Those of a forward kernel are persistent: one for each multiprocessor, or for each
                 // piece where there are fewer
};

struct Plan {
  static constexpr int most_launches = 2;
  Launch launches[most_launches];
  int launch_count;  // 0 for a problem without rows
  ForwardPlan forward;
  size_t v_tiles;  // where V as tiles is in the workspace, if there is a step that puts it there
  size_t workspace_bytes;
};

// The plan, until the calling thread plans some problems more: it remembers its last few.
const Plan& plan(const Problem& problem, const Fit& fit, int multiprocessors);

// The problem on one row, as it would be planned.
void plan_row(const Problem& problem, int row, int multiprocessors, ForwardPlan& plan);

}  // namespace fa3
