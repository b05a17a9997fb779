// The steps in which a clipped map (ptx/params/clipped.h) counts where a sequence ends. No driver is asked.
#pragma once
#include "params/clipped.h"
#include "problem.h"

namespace fa3 {

// Of a view: how far its rows and batch entries are apart, and how many steps it has to the end of the last row of the
// last batch entry. From most_steps on kernels cannot count them, and `steps` means nothing.
struct StepsOfView {
  ClippedSteps steps;
  int64_t bytes, count;  // of a step; of steps
};
inline constexpr int64_t most_steps = INT32_MAX;
StepsOfView clipped_steps(const View& view);

}  // namespace fa3
