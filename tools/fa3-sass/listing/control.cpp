#include "control.h"

#include "../input/sections.h"
#include "sass.h"

namespace sass {

Control control_of(uint64_t upper_half) {
  const auto bits = [&](int from, int count) { return static_cast<int>(upper_half >> from & ((1u << count) - 1)); };
  const auto scoreboard = [&](int from) { return bits(from, 3) < scoreboards ? bits(from, 3) : -1; };
  Control control;
  control.known = true;
  control.stall = bits(41, 4);
  control.yields = bits(45, 1) == 0;
  control.written = scoreboard(46);
  control.read = scoreboard(49);
  control.waits = static_cast<unsigned>(bits(52, 6));
  control.reuses = static_cast<unsigned>(bits(58, 4));
  return control;
}

void add_controls(std::string_view code, Listing& listing) {
  for (Instruction& instruction : listing.code)
    if (const auto upper = get<uint64_t>(code, static_cast<size_t>(instruction.address) + 8))
      instruction.control = control_of(*upper);
}

}  // namespace sass
