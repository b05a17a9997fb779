// What a loop does in its first turn only, such as the first product of a pipeline that is filled inside the loop.
#pragma once

#include <set>
#include <utility>

#include "../listing/cfg.h"

namespace sass {

// Ways from block to block, within the loop, that can be taken in the first turn alone: a counter is compared with the
// number that it begins with, and every turn adds something to it.
std::set<std::pair<int, int>> first_turn_only(const Listing& listing, const Cfg& cfg, const Loop& loop);

}  // namespace sass
