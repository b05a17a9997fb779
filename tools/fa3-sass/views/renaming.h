// Whether two kernels with the same instructions also read the same values, in whatever registers these are.
#pragma once

#include <vector>

#include "../loops/kernel.h"

namespace sass {

// For each instruction of `before` its counterpart in `after`, or -1.
using Matching = std::vector<int>;

struct Rewired {
  enum class Way { value, place };
  int instruction = 0;  // of `before`
  Way way = Way::value;
};

// The instructions with a counterpart that looks the same but reads another value, or goes to another place. What is
// `unsure` is not looked at, and nothing is taken for known behind it: there the matching is only one of several.
std::vector<Rewired> rewired(const Kernel& before, const Kernel& after, const Matching& matching,
                             const std::vector<bool>& unsure);

}  // namespace sass
