// The verb timeline: a loop as a picture (SVG, self-contained).
#pragma once

#include <string>

#include "kernel.h"

namespace sass {

// One panel for each hot loop (every WGMMA loop with `all`): program order from left to right, a lane for each unit,
// and shading from a group's commit to the wait that covers it.
std::string timeline_svg(const Kernel& kernel, bool all);

}  // namespace sass
