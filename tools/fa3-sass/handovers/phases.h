// Waits for mbarriers that are left out in some turns of a loop.
#pragma once

#include <cstdint>
#include <vector>

#include "../listing/cfg.h"

namespace sass {

// A place that waits for an mbarrier or arrives at one: which barriers it may be at, and of a wait the parity when it
// is come to first (-1: not known). Where `known` is false, it may be at any.
struct MbarrierPlace {
  int instruction = 0;
  std::uint32_t address = 0, end = 0;
  bool known = false, one_address = false;
  int parity = -1;
};

// The waits whose parity goes on in every turn of their loop, while what is loaded in that turn says whether they are
// executed. A warp that leaves one out has not seen that phase end. The next wait asks for the parity of the phase
// before the one that was left out, so it passes at once if that one is not over.
//
// Nothing is said of a wait if its warp learns of that phase otherwise: from those that always wait for it, through the
// barriers at which they arrive behind that, directly or through a third one, or at a named barrier. Nor if lanes of a
// warp may differ, if the loop may end behind the turn that leaves it out, if the loop itself arrives at that mbarrier,
// or if anything cannot be followed. `waits` are all of the kernel, with those that spin.
std::vector<int> waits_left_out(const Listing& listing, const Cfg& cfg, const std::vector<MbarrierPlace>& waits,
                                const std::vector<MbarrierPlace>& arrivals);

}  // namespace sass
