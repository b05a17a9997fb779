// The numbers contracts speak of.
#pragma once

#include "kernel.h"

namespace sass {

// Fills in the loop's role and the text of its GEMMs.
void describe_gemms(WgmmaLoop& loop);

Figures loop_figures(const Kernel& kernel, const WgmmaLoop& loop);
Figures kernel_figures(const Kernel& kernel);

// The names that a contract may use, in the order of the reports.
const std::vector<std::string>& figure_names(bool of_kernel);

}  // namespace sass
