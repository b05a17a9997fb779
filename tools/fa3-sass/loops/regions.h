// Which part of a kernel each instruction belongs to: prologue, loops, the rare ways beside them, epilogue, producer.
#pragma once

#include <string>
#include <vector>

#include "kernel.h"

namespace sass {

struct Region {
  std::string name;                 // "prologue", "hot loop QK+PV", "hot loop QK+PV, beside its usual way"
  std::vector<int> code;            // instructions in program order
  const WgmmaLoop* loop = nullptr;  // whose turn this is
};

// Every instruction in exactly one region, but for what stands behind the end to fill the last cache line.
std::vector<Region> regions_of(const Kernel& kernel);

// A way through a loop that its usual way leaves out: an exact path, a rescale, the spin of a wait.
struct RareWay {
  std::vector<int> code;  // instructions in order of addresses
  int leaves = 0;         // position in the turn of the branch that leads there
  int returns = -1;       // position of the instruction that it comes back to; -1: it does not
};

std::vector<RareWay> rare_ways(const Kernel& kernel, const WgmmaLoop& loop);

}  // namespace sass
