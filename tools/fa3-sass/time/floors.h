// What a turn of a hot loop must cost at least on each unit of a multiprocessor, all warpgroups that run it together.
#pragma once

#include <string>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

// Clocks a turn. Rates of sm_90 per clock and multiprocessor: a WGMMA of n columns takes n / 2 (4096 16-bit FLOP, 8192
// 8-bit); shared memory delivers 128 bytes; MUFU 16 results, FP32 multiply-add 128, the other arithmetic 64; four warp
// instructions are issued.
struct Floors {
  int warpgroups = 1;  // that run the loop
  double tensor = 0, shared_memory = 0, mufu = 0, fma = 0, alu = 0, issue = 0;

  struct Unit {
    const char* name;
    double clocks;
  };
  std::vector<Unit> units() const;
  Unit bound() const;  // the unit that needs most
};

Floors floors(const Kernel& kernel, const WgmmaLoop& loop);

// Of all hot loops, where each is run by warpgroups of its own; 0 warpgroups if that cannot be told (team.h).
Floors floors_together(const Kernel& kernel);

// Warpgroups of the thread block, less one where setmaxnreg has two values: that one loads.
int computing_warpgroups(const Kernel& kernel);

// "64x128x16": 128.
int wgmma_columns(const std::string& shape);

}  // namespace sass
