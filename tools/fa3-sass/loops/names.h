// Which GEMM is which.
#pragma once

#include <vector>

#include "turn.h"

namespace sass {

// From the data flow of one loop. A loop without exponentials keeps its GEMMs without names.
void name_gemms(const Listing& listing, Turn& turn);

// What the loops of a kernel say of each other: warpgroups may share the work and pass P and dS through shared memory.
void name_across(const std::vector<Turn*>& turns);

}  // namespace sass
