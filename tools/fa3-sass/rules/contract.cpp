#include "contract.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "../handovers/protocol.h"
#include "../kernels/figures.h"
#include "../system/text.h"
#include "meaning.h"
#include "table.h"

namespace sass {
namespace {

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  for (std::string_view word : split(text, ' '))
    if (!trim(word).empty()) result.emplace_back(trim(word));
  return result;
}

std::string file_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

struct Reader {
  Contract contract;
  int line = 0;
  std::vector<std::string> most;  // figures of the lines below

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(contract.path + ":" + std::to_string(line) + ": " + what);
  }
  Section& section() {
    if (contract.sections.empty()) fail("a rule before the first `rows` line");
    return contract.sections.back();
  }

  void start_section(std::vector<std::string> rows) {
    if (rows.empty()) fail("`rows` needs a name or pattern");
    contract.sections.push_back({line, std::move(rows), {}, {}});
  }

  void bounds(std::string_view text) {
    const std::vector<std::string> all = words(text);
    if (all.size() <= most.size()) fail("patterns of rows, and a number or - for each figure of `most`");
    const auto first = all.end() - static_cast<std::ptrdiff_t>(most.size());
    start_section({all.begin(), first});
    for (size_t n = 0; n < most.size(); ++n) {
      const std::string& bound = first[static_cast<std::ptrdiff_t>(n)];
      if (bound == "-") continue;
      if (bound.find_first_not_of("0123456789") != std::string::npos) fail(bound + " is neither a number nor -");
      rule(most[n] + " <= " + bound);
    }
  }

  void waiver(std::string_view text) {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos || trim(text.substr(colon + 1)).empty())
      fail("a waiver needs a reason: waive FIGURE [ROWS]: REASON");
    std::vector<std::string> parts = words(text.substr(0, colon));
    if (parts.empty()) fail("a waiver names a figure");
    Waiver result{line, parts[0], std::string(trim(text.substr(colon + 1))), {parts.begin() + 1, parts.end()}};
    section().waivers.push_back(std::move(result));
  }

  void rule(std::string_view text) {
    Rule result;
    result.file = file_of(contract.path);
    result.line = line;
    const size_t at = text.find_first_of("=<>");
    if (at == std::string_view::npos) fail("not a rule: \"" + std::string(text) + "\"");
    const size_t after = at + (at + 1 < text.size() && text[at + 1] == '=' ? 2 : 1);
    result.relation = std::string(text.substr(at, after - at));
    if (result.relation == "=") fail("equality is ==");
    result.bound = std::string(trim(text.substr(after)));
    if (result.bound.empty()) fail("a rule needs a bound");
    std::string_view subject = trim(text.substr(0, at));
    const size_t dot = subject.rfind('.');
    if (dot == std::string_view::npos)
      fail("a figure has a scope: kernel.F, hot.F, hot[QK+PV].F, boundary.F, prologue.F, epilogue.F or producer.F");
    result.figure = std::string(subject.substr(dot + 1));
    subject = subject.substr(0, dot);
    if (const size_t bracket = subject.find('['); bracket != std::string_view::npos) {
      if (subject.back() != ']') fail("a role ends with ]");
      result.role = std::string(subject.substr(bracket + 1, subject.size() - bracket - 2));
      subject = subject.substr(0, bracket);
    }
    result.scope = std::string(subject);
    const bool is_loop = result.scope == "hot" || result.scope == "boundary";
    if (!is_loop && result.scope != "kernel" && std::ranges::count(scopes(), result.scope) == 0)
      fail("no scope " + result.scope);
    if (!is_loop && !result.role.empty()) fail("a role belongs to a loop, hot or boundary: not to " + result.scope);
    const std::vector<std::string>& known = figure_names(result.scope);
    if (std::find(known.begin(), known.end(), result.figure) == known.end()) fail("no figure " + result.figure);
    section().rules.push_back(std::move(result));
  }
};

bool holds(double found, const std::string& relation, double bound) {
  const double slack = 1e-9;  // shares are quotients
  if (relation == "==") return std::abs(found - bound) <= slack;
  if (relation == "<=") return found <= bound + slack;
  if (relation == ">=") return found >= bound - slack;
  return relation == "<" ? found < bound - slack : found > bound + slack;
}

std::string listing_line(const Instruction& i) {
  char address[16];
  std::snprintf(address, sizeof address, "%04x", static_cast<unsigned>(i.address));
  return std::string(address) + "  " + i.text;
}

// Whether another compiler may break the rule, and be right.
bool is_budget(const Rule& rule) {
  static const char* const compiler_made[] = {
      "mbarriers", "mbarrier_counts", "steady_waits", "handovers", "bulk_groups", "semaphores", "votes", "permutes",
      "roundings", "reductions", "named_barriers", "descriptors", "parameter_words", "tensor_maps", "adds",
      "adds_anywhere", "fmas", "fmas_anywhere", "multiplies", "most_multiplies", "specials", "fences"};
  if (rule.figure.ends_with("instructions")) return true;
  const bool some = rule.relation == "==" && rule.bound != "table" && rule.bound != "0" && rule.bound != "none";
  return some && std::ranges::any_of(compiler_made, [&](const char* name) { return rule.figure == name; });
}

struct Checker {
  const Contract& contract;
  const Kernel& kernel;
  std::vector<Finding> findings;

  Finding fresh(const Rule& rule) const {
    Finding finding;
    finding.row = kernel.record.name;
    finding.rule = rule.text();
    finding.place = (rule.file.empty() ? file_of(contract.path) : rule.file) + ":" + std::to_string(rule.line);
    finding.meaning = meaning_of(rule.figure);
    return finding;
  }
  std::string place(int line) const { return file_of(contract.path) + ":" + std::to_string(line); }

  // The rule against the figures of one loop, or of the kernel.
  void figure(const Rule& rule, const Figures& figures, const WgmmaLoop* loop) {
    Finding finding = fresh(rule);
    finding.state = Finding::State::broken;
    const Figure* found = find(figures, rule.figure);
    std::optional<Figure> bound;
    if (rule.bound == "table") {
      bound = table_figure(kernel.record.name, rule.scope, rule.figure);
      if (!bound)
        throw std::runtime_error(contract.path + ":" + std::to_string(rule.line) + ": the table does not determine " +
                                 rule.subject() + " of " + kernel.record.name);
    } else {
      bound = Figure{rule.figure, found && found->is_text, 0, rule.bound, {}, false};
      char* end = nullptr;
      bound->value = std::strtod(rule.bound.c_str(), &end);
      if (found && !found->is_text && *end != '\0')
        throw std::runtime_error(contract.path + ":" + std::to_string(rule.line) + ": " + rule.bound +
                                 " is not a number");
    }
    finding.expected =
        rule.relation + " " + (rule.bound == "table" ? bound->shown() + " (from the table)" : rule.bound);
    if (!found) {
      finding.found = "nothing to measure: no such instructions in the loop";
    } else {
      finding.found = found->shown();
      const bool kept = found->is_text ? rule.relation == "==" && found->text == bound->text
                                       : holds(found->value, rule.relation, bound->value);
      if (kept) finding.state = Finding::State::kept;
    }
    if (loop) {
      const Instruction& first = kernel.listing.code[static_cast<size_t>(loop->turn.code.front())];
      char address[16];
      std::snprintf(address, sizeof address, "%x", static_cast<unsigned>(first.address));
      finding.found +=
          std::string(" (") + (loop->hot ? "hot loop " : "boundary loop ") + loop->role + " at " + address + ")";
    }
    if (finding.state == Finding::State::broken && found)
      for (int i : found->evidence) {
        finding.instructions.push_back(listing_line(kernel.listing.code[static_cast<size_t>(i)]));
        finding.sources.push_back(kernel.listing.code[static_cast<size_t>(i)].source);
      }
    if (finding.state == Finding::State::broken && rule.advice) finding.state = Finding::State::advice;
    findings.push_back(std::move(finding));
  }

  void apply(const Rule& rule) {
    if (rule.scope == "kernel") return figure(rule, kernel.figures, nullptr);
    if (const auto scope = kernel.scopes.find(rule.scope); scope != kernel.scopes.end())
      return figure(rule, scope->second, nullptr);
    bool any = false;
    for (const WgmmaLoop& loop : kernel.loops) {
      if (loop.hot != (rule.scope == "hot") || (!rule.role.empty() && loop.role != rule.role)) continue;
      any = true;
      figure(rule, loop.figures, &loop);
    }
    if (any || (rule.scope == "boundary" && rule.role.empty())) return;  // a kernel without masks has no boundary loop
    Finding finding = fresh(rule);
    finding.state = Finding::State::broken;
    finding.expected = rule.relation + " " + rule.bound;
    finding.found = "no such loop";
    for (const WgmmaLoop& loop : kernel.loops)
      finding.found += std::string(", but a ") + (loop.hot ? "hot" : "boundary") + " loop of " + loop.gemms;
    findings.push_back(std::move(finding));
  }

  void run() {
    std::vector<Rule> rules;
    std::vector<Waiver> waivers;
    for (const Section& section : contract.sections) {
      if (!section.covers(kernel.record.name)) continue;
      for (const Rule& rule : section.rules) {
        const auto same = [&](const Rule& r) { return r.subject() == rule.subject() && r.relation == rule.relation; };
        rules.erase(std::remove_if(rules.begin(), rules.end(), same), rules.end());
        rules.push_back(rule);
      }
      for (const Waiver& waiver : section.waivers) {
        const auto covers = [&](const std::string& pattern) { return glob(pattern, kernel.record.name); };
        if (waiver.rows.empty() || std::any_of(waiver.rows.begin(), waiver.rows.end(), covers))
          waivers.push_back(waiver);
      }
    }
    if (rules.empty()) {
      Finding finding;
      finding.state = Finding::State::broken;
      finding.row = kernel.record.name;
      finding.rule = "every kernel has a contract";
      finding.place = file_of(contract.path);
      finding.expected = "a `rows` line that covers it";
      finding.found = "none";
      findings.push_back(finding);
    }
    // Only now: a budget has replaced what came before it.
    std::set<std::string> left_out;
    if (!contract.budgets)
      std::erase_if(rules, [&](const Rule& rule) {
        if (is_budget(rule)) left_out.insert(rule.subject());
        return is_budget(rule);
      });
    for (const Rule& rule : rules) {
      const size_t before = findings.size();
      apply(rule);
      const auto waiver =
          std::find_if(waivers.begin(), waivers.end(), [&](const Waiver& w) { return w.subject == rule.subject(); });
      if (waiver == waivers.end()) continue;
      for (size_t f = before; f < findings.size(); ++f)
        if (findings[f].state == Finding::State::broken) {
          findings[f].state = Finding::State::waived;
          findings[f].reason = waiver->reason;
        }
    }
    for (const Waiver& waiver : waivers) {
      if (left_out.contains(waiver.subject)) continue;
      const auto used = [&](const Finding& f) {
        return f.state == Finding::State::waived && f.rule.rfind(waiver.subject + " ", 0) == 0;
      };
      if (std::any_of(findings.begin(), findings.end(), used)) continue;
      Finding finding;
      finding.state = Finding::State::broken;
      finding.row = kernel.record.name;
      finding.rule = "waive " + waiver.subject;
      finding.place = place(waiver.line);
      finding.expected = "a rule that is broken";
      finding.found = "it holds, or there is none: the waiver is out of date";
      findings.push_back(finding);
    }
  }
};

}  // namespace

bool Section::covers(std::string_view row) const {
  return std::any_of(rows.begin(), rows.end(), [&](const std::string& pattern) { return glob(pattern, row); });
}

Contract read_contract(const std::string& path, std::string_view text) {
  Reader reader;
  reader.contract.path = path;
  for (std::string_view line : split(text, '\n')) {
    ++reader.line;
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string first(line.substr(0, line.find_first_of(" \t")));
    if (first == "rows") {
      reader.most.clear();
      reader.start_section(words(line.substr(4)));
    } else if (first == "most") {
      reader.most = words(line.substr(4));
      if (reader.most.empty()) reader.fail("`most` needs a figure");
    } else if (!reader.most.empty()) {
      reader.bounds(line);
    } else if (first == "waive") {
      reader.waiver(line.substr(5));
    } else {
      reader.rule(line);
    }
  }
  if (reader.contract.sections.empty()) reader.fail("no rules in the contract");
  return reader.contract;
}

std::vector<Finding> check(const Contract& contract, const Kernel& kernel) {
  Checker checker{contract, kernel, {}};
  checker.run();
  return checker.findings;
}

}  // namespace sass
