// A quarter of a multiprocessor, followed clock by clock: one warp of each computing warpgroup, which issue in order,
// and the units that they share.
#pragma once

#include <vector>

#include "../listing/control.h"

namespace sass {

enum class Unit { tensor, mufu, fma, alu, uniform, memory, control };

// Clocks for which an instruction of a warp keeps its unit.
double busy_clocks(Unit unit);

// An instruction of a turn.
struct Step {
  // A wait that ends when each warp of another loop has arrived, `later` turns after the one that waits.
  struct Condition {
    size_t loop = 0, arrival = 0;
    int later = 0;
  };

  Unit unit = Unit::control;
  Control control;
  double columns = 0;    // of a WGMMA
  bool commits = false;
  double wavefronts = 0;  // clocks of shared memory, for the whole warpgroup
  double latency = 0;     // until its scoreboards end, if not that of the unit
  bool meets = false;     // all warps of the loop wait here for each other
  int in_flight = -1;    // of a wait for groups
  int arrival = -1;      // in the loop's list of those that others wait for
  std::vector<Condition> conditions;
};

struct LoopSteps {
  std::vector<Step> steps;
  int warps = 1;
  int arrivals = 0;
};

// Of a loop in its steady state: clocks from turn to turn, and when its first warp issues each instruction, and begins
// each WGMMA on the tensor cores, counted from the first instruction. Nothing if it never comes to that.
struct Issue {
  double turn = 0;
  std::vector<double> issued, began;
};

// Warps begin `start` clocks after one another. `copies`: what TMA needs of shared memory's clocks in a turn.
std::vector<Issue> run_quarter(const std::vector<LoopSteps>& loops, double start, double copies);

}  // namespace sass
