// Which instructions one lane of a warp executes, and which all may: by following comparisons of the thread's number.
#pragma once

#include <vector>

#include "../listing/cfg.h"

namespace sass {

// For each instruction, whether no more than one lane of a warp can get to it: because of its guard, or because every
// way to it leads through a branch that only one lane takes. A lane is singled out by a comparison of a number that
// differs from lane to lane (the thread's number, its low five bits, what shuffles and additions make of them) with one
// that is the same in all, or by ELECT. What cannot be followed counts as executed by many.
std::vector<bool> by_one_lane(const Listing& listing, const Cfg& cfg);

}  // namespace sass
