// Waits for mbarriers: which of them come back to themselves until the barrier's phase is over.
#pragma once

#include <cstdint>
#include <vector>

#include "../listing/cfg.h"

namespace sass {

struct Spins {
  std::vector<int> waits;     // for mbarriers; a wait and the copy of it that spins count once
  std::vector<int> parities;  // of each of `waits`, when it is come to for the first time: 0, 1, or -1 for either
  std::vector<int> no_spin;   // waits that may be left before the barrier's phase is over
};

Spins spins_of(const Listing& listing, const Cfg& cfg);

// The constant part of an address in shared memory: arrays of mbarriers have one each. "[R4+UR39+0x38000]" -> 0x38000
std::uint32_t offset_of(const Instruction& instruction);

}  // namespace sass
