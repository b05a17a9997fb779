// Two sequences side by side: the longest common subsequence, in time n * m and little memory.
#pragma once

#include <utility>
#include <vector>

namespace sass {

// What is compared of an instruction. Of all alignments by `form` that are as long, one with most equal `whole` wins,
// so that one instruction gone out of many alike is the one that is reported.
struct Element {
  int form = 0, whole = 0;
};

// Pairs of positions, ascending in both.
std::vector<std::pair<int, int>> align(const std::vector<Element>& before, const std::vector<Element>& after);

}  // namespace sass
