// Which main loop each computing warpgroup of a kernel runs, and what these loops hand over to each other.
#pragma once

#include <vector>

#include "../loops/kernel.h"

namespace sass {

// A wait for an mbarrier in one loop, and where another one arrives there: the wait of turn t ends with the arrival of
// turn t + `later`, which is negative where buffers are given back.
struct Handover {
  size_t from = 0;       // in Team::members
  int arrival = 0, wait = 0;  // positions in the turns
  int later = 0;
};

struct Member {
  const WgmmaLoop* loop = nullptr;
  int warpgroups = 1;                // that run it
  std::vector<Handover> handovers;  // for which it waits
};

using Team = std::vector<Member>;

// Of the kernel's hot loops: one that all computing warpgroups run, or several, each by warpgroups of its own. Empty if
// that cannot be told: where warpgroups come from one loop to another, or where loops hand nothing over to each other
// by mbarriers, so that nothing says how many turns of one go with a turn of another.
Team team_of(const Kernel& kernel);

}  // namespace sass
