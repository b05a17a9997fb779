// What the library would launch for points, and what each kernel that fits is predicted to take: nothing is measured.
#pragma once
#include <string>
#include <vector>

#include "device/card.h"
#include "points/point.h"

namespace fa3::bench {

// A table for each point, a line for each kernel that the library considers: its tiles, whole or as split as it would
// run them, and the predicted times. `pieces`: also the pieces of work of the one that is taken, as the thread blocks
// claim them; of planned calls, as the device would make them (ptx/plan/plan_forward.h).
struct Plans {
  std::string text;
  size_t refused;  // so many points no kernel runs
};
Plans show_plans(const std::vector<Point>& points, const Card& card, bool pieces);

}  // namespace fa3::bench
