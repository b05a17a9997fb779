// What a picture of a kernel shows: strips, each a turn of a loop, or a region of code.
#pragma once

#include <string>
#include <vector>

#include "../loops/regions.h"
#include "timeline.h"

namespace sass {

// From one position of a strip to another; beyond its end it goes on in the next turn.
struct Bar {
  std::string name, colour;
  double from = 0, commit = 0, to = 0;  // lighter up to the commit
  std::string words, fewer;             // in the bar, as far as there is room
};

// What one panel shows: a turn of a loop, or a region in order of addresses.
struct Strip {
  std::string title, axis;
  std::vector<std::string> notes{};
  Turn turn{};
  std::vector<Bar> bars{};
  std::vector<RareWay> ways{};
  // In a picture of time: when each position is come to, and at last when the turn ends; how long each keeps its unit
  // busy, and from when.
  std::vector<double> clocks{}, began{}, busy{};

  // Where a position, or what lies between two, is from left to right.
  double place(double position) const {
    if (clocks.empty()) return position;
    const size_t before = std::min(static_cast<size_t>(position), clocks.size() - 2);
    return clocks[before] + (position - static_cast<double>(before)) * (clocks[before + 1] - clocks[before]);
  }
  double length() const { return clocks.empty() ? turn.size() : clocks.back(); }
};

std::vector<Strip> strips_of(const Kernel& kernel, const TimelineOptions& options);

std::string count_of(size_t number, const char* things);                     // "1 instruction", "2 instructions"
std::string kinds_text(const Kernel& kernel, const std::vector<int>& code);  // "12 exp2, 8 add"

}  // namespace sass
