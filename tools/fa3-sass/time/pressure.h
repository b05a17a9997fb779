// What instructions do to the register file: how many registers are live, and where operands wait for each other.
#pragma once

#include <vector>

#include "../listing/cfg.h"

namespace sass {

// General registers whose values are still needed, before each instruction. Registers that are read as a pair where
// the listing names only the first count once.
std::vector<int> live_registers(const Listing& listing, const Cfg& cfg);

// Positions of these instructions, which follow each other, that read three registers of one bank, so that their
// operands take a clock more. A bank holds every second register; operands in the reuse cache are read from there.
std::vector<int> bank_conflicts(const Listing& listing, const std::vector<int>& code);

}  // namespace sass
