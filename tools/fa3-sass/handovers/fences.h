// What is handed to TMA or to WGMMAs without a fence behind the stores that made it.
#pragma once

#include <vector>

#include "../listing/cfg.h"

namespace sass {

struct Unfenced {
  std::vector<int> any;  // what hands data of shared memory to TMA or WGMMA without a fence behind its stores
  std::vector<int> tma;  // TMA alone: stores of such data, and loads at mbarriers not fenced since their init
};

// `one_lane`: by instruction, whether no more than one lane of a warp gets to it.
Unfenced unfenced_of(const Listing& listing, const Cfg& cfg, const std::vector<bool>& one_lane);

}  // namespace sass
