// TMA that a warp issues once for each of its lanes.
#pragma once

#include <vector>

#include "../listing/cfg.h"

namespace sass {

// TMA instructions that do the same for each lane of a warp. ptxas writes a loop for TMA that several lanes may
// execute: ELECT takes one lane after another, R2UR its operands, until no lane is left (BRA.U.ANY). Where the operands
// differ from lane to lane, that is what was meant. Outside such a loop a warp issues TMA once, however many lanes it
// has.
// `one_lane` is by_one_lane of the kernel (lanes.h).
std::vector<int> repeated_tma(const Listing& listing, const Cfg& cfg, const std::vector<bool>& one_lane);

}  // namespace sass
