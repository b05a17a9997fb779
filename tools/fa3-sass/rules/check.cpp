#include "check.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <stdexcept>

#include "../system/text.h"
#include "table.h"

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

// Of many kernels: how many break each rule.
std::string summary(const CheckResult& result, const Colours& colours) {
  if (result.kernels < 2) return {};
  std::set<std::pair<int, std::string>> bad;
  std::map<std::string, size_t> kernels_of;  // by rule
  std::map<std::string, std::string> meanings;
  for (const Finding& finding : result.findings) {
    if (finding.state != Finding::State::broken && finding.state != Finding::State::advice) continue;
    const bool advice = finding.state == Finding::State::advice;
    if (!advice) bad.emplace(finding.number, finding.row);
    const std::string rule = finding.rule + (advice ? " (advice)" : "");
    ++kernels_of[rule];
    meanings[rule] = finding.meaning;
  }
  std::vector<std::pair<size_t, std::string>> rules;
  for (const auto& [rule, count] : kernels_of) rules.emplace_back(count, rule);
  std::ranges::stable_sort(rules, std::greater(), &std::pair<size_t, std::string>::first);
  std::string text = std::to_string(result.kernels) + " kernels, " +
                     (bad.empty() ? "none" : std::to_string(bad.size())) + " of them " +
                     (bad.size() == 1 ? "breaks" : "break") + " rules" + (rules.empty() ? "" : ":") + "\n";
  for (const auto& [count, rule] : rules) {
    const std::string number = std::to_string(count);
    text += std::string(number.size() < 7 ? 7 - number.size() : 0, ' ') + number + "  " + colours.bold(rule) + "\n";
    if (!meanings[rule].empty()) text += "         " + meanings[rule] + "\n";
  }
  return text;
}

}  // namespace

bool CheckResult::passed() const {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.state == Finding::State::broken; });
}

const Contract& TableCheck::contract_of(const std::string& kernel) {
  const auto known = contracts_.find(kernel);
  if (known != contracts_.end()) return known->second;
  std::string path = folder_ + "/" + kernel + ".contract";
  // The installed ones lie in one folder, those of the sources beside their kernels.
  if (!std::filesystem::exists(path))
    for (const auto& room : std::filesystem::directory_iterator(folder_))
      if (std::filesystem::exists(room.path() / (kernel + ".contract"))) path = room.path() / (kernel + ".contract");
  Contract read = read_contract(path, read_file(path));
  read.budgets = budgets_;
  return contracts_.emplace(kernel, std::move(read)).first->second;
}

void TableCheck::add(const Kernel& kernel) {
  const std::string& name = kernel.record.name;
  if (!wanted_(name) || findings_.contains(name)) return;
  for (const Row& row : table_rows())
    if (row.name == name) findings_[name] = check(contract_of(row.is_pass ? "passes" : row.kernel), kernel);
}

CheckResult TableCheck::result() const {
  CheckResult result;
  const std::vector<Row> rows = table_rows();
  for (const Row& row : rows) {
    if (!wanted_(row.name)) continue;
    const auto found = findings_.find(row.name);
    if (found == findings_.end()) {
      result.findings.push_back(
          broken(row.name, "every row is a kernel", "rows.def", "a kernel of this name", "none in the file"));
    } else {
      result.findings.insert(result.findings.end(), found->second.begin(), found->second.end());
      ++result.kernels;
    }
  }
  if (result.findings.empty() && result.kernels == 0)
    throw std::runtime_error("none of these is a row of the table (--contract and --preset check others)");
  for (const auto& [name, contract] : contracts_)
    for (const Section& section : contract.sections)
      if (std::none_of(rows.begin(), rows.end(), [&](const Row& row) { return section.covers(row.name); }))
        result.findings.push_back(broken(section.rows.front(), "every `rows` line covers a row",
                                         name + ".contract:" + std::to_string(section.line), "a row of the table",
                                         "none"));
  return result;
}

void check_contract(const Contract& contract, const Kernel& kernel, CheckResult& result) {
  if (std::none_of(contract.sections.begin(), contract.sections.end(),
                   [&](const Section& section) { return section.covers(kernel.record.name); }))
    return;
  for (Finding& finding : check(contract, kernel)) {
    finding.number = kernel.number;
    result.findings.push_back(std::move(finding));
  }
  ++result.kernels;
}

std::string check_text(const CheckResult& result, const Colours& colours, bool verbose) {
  std::string text;
  for (size_t begin = 0; begin < result.findings.size();) {
    size_t end = begin, bad = 0, waived = 0, advice = 0;
    const auto same = [&](const Finding& a, const Finding& b) { return a.row == b.row && a.number == b.number; };
    for (; end < result.findings.size() && same(result.findings[end], result.findings[begin]); ++end) {
      bad += result.findings[end].state == Finding::State::broken;
      waived += result.findings[end].state == Finding::State::waived;
      advice += result.findings[end].state == Finding::State::advice;
    }
    // Which of the kernels whose names look the same when shortened.
    const int number = result.kernels > 1 ? result.findings[begin].number : 0;
    text += (bad ? colours.red("FAIL") : colours.green("ok  ")) + " " +
            (number > 0 ? std::to_string(number) + " " : "") + shortened(demangle(result.findings[begin].row)) + ": " +
            std::to_string(end - begin) + " rules";
    if (bad) text += ", " + std::to_string(bad) + " broken";
    if (waived) text += ", " + std::to_string(waived) + " waived";
    if (advice) text += ", " + std::to_string(advice) + " with advice";
    text += "\n";
    const auto table = result.handovers.find({result.findings[begin].number, result.findings[begin].row});
    for (; begin < end; ++begin) {
      const Finding& finding = result.findings[begin];
      if (finding.state == Finding::State::kept && !verbose) continue;
      text += "  " + finding.place + ": " + colours.bold(finding.rule) +
              (finding.state == Finding::State::advice ? " (advice)" : "") + "\n";
      if (!finding.meaning.empty() && finding.state != Finding::State::kept) text += "    " + finding.meaning + "\n";
      text += "    expected " + finding.expected + "\n    found    " + finding.found + "\n";
      if (finding.state == Finding::State::waived) text += "    waived   " + finding.reason + "\n";
      if (finding.state == Finding::State::waived && !verbose) continue;
      const size_t shown = std::min(finding.instructions.size(), instructions_shown);
      for (size_t i = 0; i < shown; ++i) {
        const std::string source = i < finding.sources.size() ? finding.sources[i] : "";
        text += "      " + colours.dim(finding.instructions[i]) + (source.empty() ? "" : "  // " + source) + "\n";
      }
      if (shown < finding.instructions.size())
        text += "      and " + std::to_string(finding.instructions.size() - shown) + " more\n";
    }
    if (table != result.handovers.end()) text += table->second;
  }
  return summary(result, colours) + text;
}

}  // namespace sass
