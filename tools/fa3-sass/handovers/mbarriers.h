// The mbarriers of a kernel: where each lies in shared memory, who arrives at it, loads to it and waits for it.
#pragma once

#include "handovers.h"

namespace sass {

// Sets `mbarriers` and what is surely wrong about them. The kernel's protocol must be there.
void find_mbarriers(const Kernel& kernel, Handovers& handovers);

}  // namespace sass
