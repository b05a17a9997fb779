// What each instruction tells the scheduler, beside what a listing prints: the upper bits of its 128.
#pragma once

#include <cstdint>
#include <string_view>

namespace sass {

struct Listing;

struct Control {
  bool known = false;
  int stall = 0;               // clocks until this warp may issue its next instruction
  bool yields = false;         // another warp should issue next
  int written = -1, read = -1;  // scoreboards that end when its result is there, and when its operands are read
  unsigned waits = 0;          // scoreboards that it waits for, a bit each
  unsigned reuses = 0;         // operands that stay in the reuse cache, a bit each

  bool waits_for(int scoreboard) const { return waits >> scoreboard & 1; }
};

constexpr int scoreboards = 6;

Control control_of(uint64_t upper_half);

// Of each instruction of a function's listing, from the bytes of its code.
void add_controls(std::string_view code, Listing& listing);

}  // namespace sass
