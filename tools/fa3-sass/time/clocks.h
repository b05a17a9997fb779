// When the instructions of a turn are issued, and how long a turn takes, as far as control words and the units of a
// multiprocessor tell: an estimate.
#pragma once

#include <string>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

struct Clocks {
  // From one turn of a warpgroup to its next; 0 if the listing has no control words, or it cannot be told which loop
  // each warpgroup runs (team.h).
  double turn = 0;
  double tensor = 0;            // share of these clocks in which the tensor cores are busy, with all loops' WGMMAs
  std::vector<double> issued;   // of each position, counted from the first one
  std::vector<double> began;    // of WGMMAs: on the tensor cores
  std::vector<double> busy;     // how long each position keeps its unit
};

// A quarter of a multiprocessor, which has a warp of each computing warpgroup, is followed clock by clock: each warp
// issues in order, as stalls and scoreboards allow, one instruction of one warp a clock; WGMMAs of a warpgroup go to
// the tensor core one after another, and other warpgroups' wait until it has none ready. What TMA brings is always
// there, and named barriers are open, but for those at which all warpgroups of a loop meet; loops that hand over to
// each other by mbarriers wait for each other. The mean of a few ways to begin, and of these the one that is nearest
// to it.
Clocks estimated_clocks(const Kernel& kernel, const WgmmaLoop& loop);

}  // namespace sass
