// The verb timeline: loops as pictures (SVG, self-contained), one kernel or two on a page.
#pragma once

#include <string>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

struct TimelineOptions {
  bool whole = false;
  bool clocks = false;                           // from left to right estimated clocks, not program order
  const std::vector<double>* samples = nullptr;  // or what a profiler saw of each instruction (samples.h)
};

// Each hot loop, or with `whole` every region of the kernel, in program order from left to right: a lane for each unit,
// a bar for each group of WGMMAs up to the wait that covers it, and the rare ways. Several kernels stand side by side.
std::string timeline_svg(const std::vector<const Kernel*>& kernels, const TimelineOptions& options);

}  // namespace sass
