// What each verb of the command line does: prints its answer, and returns the exit status.
#pragma once

#include <string>

#include "system/colour.h"

namespace sass {

struct Arguments {
  std::string file, second_file, kernel, second_kernel;  // empty if not given
  std::string contracts, contract, ncu;
  bool json = false, brief = false, all = false, no_budgets = false, verbose = false, init = false, full = false;
  bool clocks = false;
  std::string preset;
};

int list_verb(const Arguments& arguments, const Colours& colours);
int show_verb(const Arguments& arguments, const Colours& colours);
int timeline_verb(const Arguments& arguments, const Colours& colours);
int floors_verb(const Arguments& arguments, const Colours& colours);
int check_verb(const Arguments& arguments, const Colours& colours);
int contract_verb(const Arguments& arguments, const Colours& colours);
int diff_verb(const Arguments& arguments, const Colours& colours);

}  // namespace sass
