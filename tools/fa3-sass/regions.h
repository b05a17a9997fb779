// Which part of a kernel each instruction belongs to: prologue, loops, the rare ways beside them, epilogue, producer.
#pragma once

#include <string>
#include <vector>

#include "kernel.h"

namespace sass {

struct Region {
  std::string name;                 // "prologue", "hot loop QK+PV", "hot loop QK+PV, beside its usual way"
  std::vector<int> code;            // instructions in program order
  const WgmmaLoop* loop = nullptr;  // whose turn this is
};

// Every instruction in exactly one region, but for what stands behind the end to fill the last cache line.
std::vector<Region> regions_of(const Kernel& kernel);

}  // namespace sass
