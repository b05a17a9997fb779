// What the library would launch for points, and what each kernel that fits is predicted to take: nothing is measured.
#pragma once
#include <string>
#include <vector>

#include "device/card.h"
#include "point.h"

namespace fa3::bench {

// A table for each point, a line for each kernel that the library considers: its tiles, whole or as split as it would
// run them, and the predicted times. `pieces`: also the pieces of work of the one that is taken, as the thread blocks
// claim them.
struct Plans {
  std::string text;
  size_t refused;  // so many points no kernel runs
};
Plans show_plans(const std::vector<Point>& points, const Card& card, bool pieces);

// The same for packed sequences, as many as the points have batch entries, of so many queries and keys each. Their
// pieces are those that the device would make (ptx/plan/plan_lengths.h).
struct SequenceLengths {
  std::vector<int64_t> q, k;
};
Plans show_plans(const std::vector<Point>& points, const SequenceLengths& lengths, int multiprocessors, bool pieces);

}  // namespace fa3::bench
