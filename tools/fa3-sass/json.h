// What the verbs print with --json. All of it is here, so that only one file has to compile the JSON library.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "diff.h"
#include "kernel.h"

namespace sass {

std::string list_json(const std::vector<Kernel>& kernels);
std::string floors_json(const std::vector<Kernel>& kernels);
std::string check_json(const CheckResult& result);
std::string diff_json(const std::vector<KernelDiff>& diffs);

}  // namespace sass
