// What the arithmetic of a kernel consists of, where a wrong constant or a missing instruction gives wrong numbers.
#pragma once

#include <string>
#include <vector>

namespace sass {

struct Figure;
struct Kernel;

// Of the whole kernel: its constants and modes.
std::vector<Figure> contents_figures(const Kernel& kernel);

// Of a prologue, an epilogue or a producer: which mbarriers it uses, and how much of each kind of arithmetic.
std::vector<Figure> part_figures(const Kernel& kernel, const std::string& scope);

}  // namespace sass
