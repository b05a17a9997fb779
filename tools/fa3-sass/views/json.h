// What the verbs print with --json. All of it is here, so that only one file has to compile the JSON library.
#pragma once

#include <string>
#include <vector>

#include "../loops/kernel.h"
#include "../rules/check.h"
#include "diff.h"

namespace sass {

std::string check_json(const CheckResult& result);

// Entries of reports that are printed piece by piece.
std::string list_json(const Kernel& kernel);                 // of "kernels"
std::vector<std::string> floors_json(const Kernel& kernel);  // of "loops"
std::string diff_json(const KernelDiff& diff);               // of "kernels"

}  // namespace sass
