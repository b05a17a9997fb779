// Functions that a kernel calls: their code put where the call stands, so that a loop shows what it does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sass.h"

namespace sass {

struct Called {
  Listing listing;                    // of the kernel, with the code of called functions
  std::vector<std::string> followed;  // functions whose code was copied behind each call
  std::vector<std::string> unseen;    // what is called and neither in the kernel's listing nor among the others
};

bool has_calls(const Listing& listing);

// A call of what a register holds: printf, a virtual function. Which one it is cannot be seen.
bool calls_by_address(const Instruction& instruction);

// Functions with WGMMAs, their waits or exponentials, or that call such, are followed; others stay calls.
Called follow_calls(Listing kernel, const std::map<std::string, Listing>& functions);

}  // namespace sass
