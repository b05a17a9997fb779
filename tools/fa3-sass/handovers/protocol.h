// The protocol between the warps of a kernel, as far as machine code shows it: mbarriers, TMA, fences, and who executes
// them.
//
// Scopes, beside the kernel and its loops: `prologue` is what leads to a loop with WGMMAs, `epilogue` what comes behind
// the last one, and `producer` all else: what warps do that never come to such a loop.
#pragma once

#include <string>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

Protocol protocol_of(const Kernel& kernel);

// Figures of the kernel, of a loop and of a scope. The kernel's `protocol` must be there.
std::vector<Figure> protocol_figures(const Kernel& kernel);
std::vector<Figure> protocol_figures(const Kernel& kernel, const WgmmaLoop& loop);
std::vector<Figure> scope_figures(const Kernel& kernel, const std::string& scope);

// The names of these scopes.
const std::vector<std::string>& scopes();

}  // namespace sass
