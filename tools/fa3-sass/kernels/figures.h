// The numbers contracts speak of.
#pragma once

#include "../loops/kernel.h"

namespace sass {

// Fills in the loop's role and the text of its GEMMs.
void describe_gemms(WgmmaLoop& loop);

Figures loop_figures(const Kernel& kernel, const WgmmaLoop& loop);
Figures kernel_figures(const Kernel& kernel);

// The names that a contract may use, in the order of the reports: of the kernel, of a scope (protocol.h), of a loop.
const std::vector<std::string>& figure_names(const std::string& scope);

}  // namespace sass
