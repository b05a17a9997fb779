// The colours of instructions and GEMMs in pictures, no two alike.
#pragma once

#include <string>

#include "../loops/kernel.h"

namespace sass {

struct Hue {
  const char* name;  // in the legend; empty for WGMMAs, which have their GEMM's
  const char* colour;
};

const char* gemm_colour(const std::string& name);
Hue hue_of(const Kernel& kernel, const Turn& turn, int position);

}  // namespace sass
