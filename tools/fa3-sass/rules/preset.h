// Rules that hold for any kernel, whoever wrote it: they need neither the table nor a contract.
#pragma once

#include "contract.h"

namespace sass {

// A loop of QK and PV, or of a backward pass.
bool is_attention(const Kernel& kernel);

// Which kernels a preset is for: "attention"; "gemm", others with WGMMAs; "any".
bool belongs_to(const std::string& preset, const Kernel& kernel);

// Whether a look at its machine code tells that a kernel breaks no rule of "any": it has no local memory and no WGMMAs,
// and hands nothing over.
bool keeps_every_rule(const KernelRecord& record);

// The rules, as far as the kernel has what they speak of: a listing tells of no stack, and not every loop has
// exponentials.
Contract preset_for(const Kernel& kernel);

}  // namespace sass
