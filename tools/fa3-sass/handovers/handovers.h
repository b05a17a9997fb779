// What warps hand over to each other and to TMA: all mbarriers, named barriers, groups of bulk copies, semaphores in
// memory and tensor maps of a kernel, with the places that use them, and what is surely wrong about them.
#pragma once

#include <string>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

Handovers handovers_of(const Kernel& kernel);  // needs the kernel's protocol

// As figures, for rules and for JSON.
std::vector<Figure> handover_figures(const Kernel& kernel);

// Of some blocks: which mbarriers, by their place in the table, are used there, and how: "0w 4a".
Figure handovers_in(const Kernel& kernel, const std::vector<int>& blocks);

// As a table for readers.
std::string handover_text(const Kernel& kernel);

}  // namespace sass
