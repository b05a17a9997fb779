// What a profiler saw: how often warps stood at each instruction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

// Of each instruction of the kernel the samples, from what `ncu --page source --print-source sass --csv` prints of a
// launch: one row for each instruction, in order. Throws std::runtime_error if it is of another kernel, or another
// build.
std::vector<double> samples_of(const Kernel& kernel, const std::string& path, std::string_view csv);

}  // namespace sass
