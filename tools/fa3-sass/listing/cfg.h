// Control flow: basic blocks, natural loops, and the path a loop takes when nothing unusual happens.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "sass.h"

namespace sass {

struct Block {
  int begin = 0, end = 0;  // instructions [begin, end)
  std::vector<int> successors, predecessors;
};

struct Loop {
  int header = 0;           // block
  int parent = -1;          // the next larger loop
  std::vector<int> blocks;  // ascending
  bool contains(int block) const;
};

struct Cfg {
  std::vector<Block> blocks;
  std::vector<Loop> loops;  // outer loops first
  std::vector<int> order;   // reachable blocks in reverse postorder
  std::vector<int> rank;    // position in `order`, -1 for unreachable blocks
};

bool is_wgmma(const Instruction& instruction);

Cfg control_flow(const Listing& listing);

// The blocks of one turn of the loop, header first. Of all ways round it is the one with the most WGMMAs, and of those
// the one with the fewest instructions: a rare exact path, a rescale under a flag and an mbarrier's spin are thus left
// out, and so is what is done in the first turn only (first_turn.h). Loops inside count once, and only where the way
// leads through them.
std::vector<int> hot_path(const Listing& listing, const Cfg& cfg, const Loop& loop,
                          const std::set<std::pair<int, int>>& first_turn_only);

}  // namespace sass
