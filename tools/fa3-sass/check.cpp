#include "check.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "table.h"
#include "text.h"

namespace sass {
namespace {

constexpr size_t instructions_shown = 12;

Finding broken(const std::string& row, const std::string& rule, const std::string& place, const std::string& expected,
               const std::string& found) {
  Finding finding;
  finding.state = Finding::State::broken;
  finding.row = row;
  finding.rule = rule;
  finding.place = place;
  finding.expected = expected;
  finding.found = found;
  return finding;
}

void add(CheckResult& result, std::vector<Finding> findings) {
  for (Finding& finding : findings) result.findings.push_back(std::move(finding));
  ++result.kernels;
}

}  // namespace

bool CheckResult::passed() const {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.state == Finding::State::broken; });
}

CheckResult check_table(const std::vector<Kernel>& kernels, const std::string& folder, const std::string& wanted,
                        bool budgets) {
  CheckResult result;
  std::map<std::string, Contract> contracts;
  const std::vector<Row> rows = table_rows();
  for (const Row& row : rows) {
    if (!matches(wanted, row.name, row.name)) continue;
    const auto kernel =
        std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& k) { return k.record.name == row.name; });
    if (kernel == kernels.end()) {
      result.findings.push_back(
          broken(row.name, "every row is a kernel", "rows.def", "a kernel of this name", "none in the file"));
      continue;
    }
    auto contract = contracts.find(row.kernel);
    if (contract == contracts.end()) {
      const std::string path = folder + "/" + row.kernel + ".contract";
      const Contract read = read_contract(path, read_file(path));
      contract = contracts.emplace(row.kernel, budgets ? read : without_budgets(read)).first;
    }
    add(result, check(contract->second, *kernel));
  }
  if (result.findings.empty()) throw std::runtime_error("no row of the table matches \"" + wanted + "\"");
  for (const auto& [name, contract] : contracts)
    for (const Section& section : contract.sections)
      if (std::none_of(rows.begin(), rows.end(), [&](const Row& row) { return section.covers(row.name); }))
        result.findings.push_back(broken(section.rows.front(), "every `rows` line covers a row",
                                         name + ".contract:" + std::to_string(section.line), "a row of the table",
                                         "none"));
  return result;
}

CheckResult check_contract(const std::vector<Kernel>& kernels, const Contract& contract) {
  CheckResult result;
  for (const Kernel& kernel : kernels)
    if (std::any_of(contract.sections.begin(), contract.sections.end(),
                    [&](const Section& s) { return s.covers(kernel.record.name); }))
      add(result, check(contract, kernel));
  if (result.kernels == 0)
    throw std::runtime_error(contract.path + ": none of its `rows` lines covers a kernel of the file");
  return result;
}

std::string check_text(const CheckResult& result, const Colours& colours, bool verbose) {
  std::string text;
  for (size_t begin = 0; begin < result.findings.size();) {
    size_t end = begin, bad = 0, waived = 0;
    for (; end < result.findings.size() && result.findings[end].row == result.findings[begin].row; ++end) {
      bad += result.findings[end].state == Finding::State::broken;
      waived += result.findings[end].state == Finding::State::waived;
    }
    text += (bad ? colours.red("FAIL") : colours.green("ok  ")) + " " + result.findings[begin].row + ": " +
            std::to_string(end - begin) + " rules";
    if (bad) text += ", " + std::to_string(bad) + " broken";
    if (waived) text += ", " + std::to_string(waived) + " waived";
    text += "\n";
    for (; begin < end; ++begin) {
      const Finding& finding = result.findings[begin];
      if (finding.state == Finding::State::kept && !verbose) continue;
      text += "  " + finding.place + ": " + colours.bold(finding.rule) + "\n    expected " + finding.expected +
              "\n    found    " + finding.found + "\n";
      if (finding.state == Finding::State::waived) text += "    waived   " + finding.reason + "\n";
      if (finding.state == Finding::State::waived && !verbose) continue;
      const size_t shown = std::min(finding.instructions.size(), instructions_shown);
      for (size_t i = 0; i < shown; ++i) text += "      " + colours.dim(finding.instructions[i]) + "\n";
      if (shown < finding.instructions.size())
        text += "      and " + std::to_string(finding.instructions.size() - shown) + " more\n";
    }
  }
  return text;
}

}  // namespace sass
