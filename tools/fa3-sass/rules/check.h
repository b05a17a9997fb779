// The verb check: kernels against contracts. They come one by one.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "../system/colour.h"
#include "contract.h"

namespace sass {

struct CheckResult {
  std::vector<Finding> findings;
  int kernels = 0;
  std::map<std::pair<int, std::string>, std::string> handovers{};  // tables, by a kernel's number and name
  bool passed() const;
};

// Every row of the table, with the contract <folder>/<kernel>.contract of its kernel. A row without a kernel, and a
// contract's `rows` line that covers no row, are broken findings. Rows that are not `wanted` are left out, and without
// `budgets` numbers of instructions.
class TableCheck {
 public:
  TableCheck(std::string folder, std::function<bool(const std::string&)> wanted, bool budgets)
      : folder_(std::move(folder)), wanted_(std::move(wanted)), budgets_(budgets) {}
  void add(const Kernel& kernel);  // in any order; one that is no row is left out
  CheckResult result() const;      // throws std::runtime_error if no row is wanted

 private:
  const Contract& contract_of(const std::string& kernel);

  std::string folder_;
  std::function<bool(const std::string&)> wanted_;
  bool budgets_;
  std::map<std::string, Contract> contracts_;
  std::map<std::string, std::vector<Finding>> findings_;  // by row
};

// A kernel, in or out of the table, if one of the contract's `rows` lines names it.
void check_contract(const Contract& contract, const Kernel& kernel, CheckResult& result);

std::string check_text(const CheckResult& result, const Colours& colours, bool verbose);

}  // namespace sass
