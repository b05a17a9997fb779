// What the verbs list and show print.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "colour.h"
#include "kernel.h"

namespace sass {

std::string list_text(const std::vector<Kernel>& kernels, const Colours& colours);

struct ShowOptions {
  bool brief = false;  // stretches of arithmetic as one line
  bool all = false;    // boundary loops too
};
std::string show_text(const Kernel& kernel, const ShowOptions& options, const Colours& colours);

// All WGMMAs of the kernel by opcode, in loops or not.
std::map<std::string, int> wgmma_counts(const Kernel& kernel);

// "12 exp2, 8 add": what a stretch of a turn consists of, most frequent first.
std::string stretch_text(const Turn& turn, int begin, int end);

}  // namespace sass
