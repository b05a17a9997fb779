// Where the library and its contracts are, beside this program: installed with it, or in its build.
#pragma once

#include <string>

namespace sass {

std::string library();           // throws std::runtime_error if there is none
std::string contracts_folder();  // the same

}  // namespace sass
