// A contract to begin with: what a kernel is today, as rules that it keeps.
#pragma once

#include <string>

#include "../loops/kernel.h"

namespace sass {

std::string first_contract(const Kernel& kernel);

}  // namespace sass
