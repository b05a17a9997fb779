// The verb check: the kernels of the table against the contracts beside their sources.
#pragma once

#include <string>
#include <vector>

#include "colour.h"
#include "contract.h"

namespace sass {

struct CheckResult {
  std::vector<Finding> findings;
  int kernels = 0;
  bool passed() const;
};

// Every row of the table, with the contract <folder>/<kernel>.contract of its kernel. A row without a kernel in the
// file, and a contract's `rows` line that covers no row, are broken findings. `wanted` restricts it to some rows;
// without `budgets` numbers of instructions are left out.
CheckResult check_table(const std::vector<Kernel>& kernels, const std::string& folder, const std::string& wanted,
                        bool budgets);

// The kernels that one contract's `rows` lines name, in or out of the table.
CheckResult check_contract(const std::vector<Kernel>& kernels, const Contract& contract);

std::string check_text(const CheckResult& result, const Colours& colours, bool verbose);

}  // namespace sass
