// Local memory: what of it the compiler uses because registers are short, and what for arguments of functions.
#pragma once

#include <vector>

#include "../listing/sass.h"

namespace sass {

// Of the accesses of local memory, those that are not a function's arguments. printf gets its arguments by address:
// they are stored at fixed places of the stack, and nothing in the kernel reads them there.
std::vector<int> spills(const Listing& listing, const std::vector<int>& accesses);

// Whether these accesses are surely of arrays, which the source has put there: an index leads to some of them, and
// nvdisasm, which marks what the compiler has spilled, has marked none.
bool are_of_arrays(const Listing& listing, const std::vector<int>& accesses);

}  // namespace sass
