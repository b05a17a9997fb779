#include "verbs.h"

#include <CLI/Error.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>

#include "handovers/handovers.h"
#include "kernels/analyse.h"
#include "kernels/source.h"
#include "rules/check.h"
#include "rules/first_contract.h"
#include "rules/preset.h"
#include "system/places.h"
#include "system/text.h"
#include "time/samples.h"
#include "views/diff.h"
#include "views/json.h"
#include "views/print.h"
#include "views/reports.h"
#include "views/timeline.h"

namespace sass {
namespace {

std::unique_ptr<Source> source_of(const Arguments& arguments) {
  return open_source(arguments.file.empty() ? library() : arguments.file);
}

Columns columns_for(const Source& source, const std::vector<size_t>& wanted) {
  Columns columns;
  for (size_t i : wanted) columns.make_room(i + 1, source.entries()[i].readable);
  return columns;
}

// Most kernels of a large library need not be disassembled for their line.
void list_table(const Source& source, const std::vector<size_t>& wanted, const Columns& columns,
                const Colours& colours) {
  std::vector<size_t> looked_at;
  size_t wgmmas = 0;
  for (size_t i : wanted) {
    wgmmas += source.may_have_wgmmas(i);
    if (!source.record(i) || !source.record(i)->plain) looked_at.push_back(i);
  }
  if (wanted.size() > 1 && source.record(wanted[0]) && source.architecture() == hopper)
    print(list_summary(wanted.size(), wgmmas));
  print(list_head(columns, colours));
  size_t next = 0;
  const auto plain_before = [&](size_t kernel) {
    for (; next < wanted.size() && wanted[next] < kernel; ++next)
      print(list_text(plain_kernel(*source.record(wanted[next]), static_cast<int>(wanted[next]) + 1),
                                  columns, colours));
  };
  source.each(looked_at, [&](const Kernel& kernel) {
    plain_before(static_cast<size_t>(kernel.number) - 1);
    print(list_text(kernel, columns, colours));
    ++next;
  });
  plain_before(source.entries().size());
}

}  // namespace

int list_verb(const Arguments& arguments, const Colours& colours) {
  const auto source = source_of(arguments);
  const auto wanted = source->matching(arguments.kernel);
  if (arguments.json) {
    JsonList kernels("kernels");
    source->each(wanted, [&](const Kernel& kernel) { kernels.add(list_json(kernel)); });
    kernels.end();
  } else {
    list_table(*source, wanted, columns_for(*source, wanted), colours);
  }
  return 0;
}

int show_verb(const Arguments& arguments, const Colours& colours) {
  const auto source = source_of(arguments);
  source->each(source->matching(arguments.kernel), [&](const Kernel& kernel) {
    print(show_text(kernel, {arguments.brief, arguments.all, arguments.clocks}, colours) + "\n");
  });
  return 0;
}

namespace {

// The one kernel of the file that is meant, for verbs that take no more.
Kernel one_of(const Source& source, const std::string& wanted) {
  const std::vector<size_t> found = source.matching(wanted);
  std::vector<size_t> exact;
  for (size_t i : found)
    if (found.size() == 1 || source.entries()[i].name == wanted) exact.push_back(i);
  if (exact.size() == 1) return std::move(source.read(exact).front());
  constexpr size_t shown = 40;
  std::string names;
  for (size_t i = 0; i < std::min(found.size(), shown); ++i)
    names += "\n  " + std::to_string(found[i] + 1) + "  " + shortened(source.entries()[found[i]].readable);
  if (found.size() > shown) names += "\n  and " + std::to_string(found.size() - shown) + " more";
  throw std::runtime_error("one kernel is wanted, by its name or number; \"" + wanted + "\" means these:" + names);
}

}  // namespace

// One kernel, two of one file, or the same of two files.
int timeline_verb(const Arguments& arguments, const Colours&) {
  if (!arguments.second_file.empty() && !arguments.second_kernel.empty())
    throw CLI::ValidationError("timeline takes two files, or two kernels of one");
  const auto source = source_of(arguments);
  std::vector<Kernel> kernels;
  kernels.push_back(one_of(*source, arguments.kernel));
  if (!arguments.second_file.empty())
    kernels.push_back(one_of(*open_source(arguments.second_file), arguments.kernel));
  else if (!arguments.second_kernel.empty())
    kernels.push_back(one_of(*source, arguments.second_kernel));
  for (const Kernel& kernel : kernels)
    if (!arguments.all && kernel.loops.empty())
      throw std::runtime_error(shortened(kernel.readable) +
                               ": no loop with WGMMAs to draw; --all draws the whole kernel");
  if ((arguments.clocks || !arguments.ncu.empty()) && arguments.all)
    throw CLI::ValidationError("time is known of main loops alone: --clocks and --ncu do not go with --all");
  if (!arguments.ncu.empty() && kernels.size() > 1) throw CLI::ValidationError("--ncu is for one kernel");
  std::vector<double> samples;
  if (!arguments.ncu.empty()) samples = samples_of(kernels[0], arguments.ncu, read_file(arguments.ncu));
  std::vector<const Kernel*> shown;
  for (const Kernel& kernel : kernels) shown.push_back(&kernel);
  print(timeline_svg(shown, {arguments.all, arguments.clocks, samples.empty() ? nullptr : &samples}));
  return 0;
}

int floors_verb(const Arguments& arguments, const Colours& colours) {
  const auto source = source_of(arguments);
  refuse_others(*source, "floors");
  const auto wanted = source->matching(arguments.kernel);
  if (arguments.json) {
    JsonList loops("loops");
    source->each(wanted, [&](const Kernel& kernel) {
      for (const std::string& entry : floors_json(kernel)) loops.add(entry);
    });
    loops.end();
  } else {
    const Columns columns = columns_for(*source, wanted);
    print(floors_head(columns, colours));
    source->each(wanted, [&](const Kernel& kernel) { print(floors_text(kernel, columns, colours)); });
  }
  return 0;
}

namespace {

CheckResult check_table(const Arguments& arguments, const Source& source,
                              const std::vector<size_t>& kernels) {
  const auto wanted = [&](const std::string& row) {
    if (kernel_number(arguments.kernel)) return row == source.entries()[kernels.front()].name;
    return matches(arguments.kernel, row, row);
  };
  TableCheck table(arguments.contracts.empty() ? contracts_folder() : arguments.contracts, wanted,
                         !arguments.no_budgets);
  source.each(kernels, [&](const Kernel& kernel) { table.add(kernel); });
  return table.result();
}

CheckResult check_one_contract(const Arguments& arguments, const Source& source,
                                     const std::vector<size_t>& kernels) {
  Contract contract = read_contract(arguments.contract, read_file(arguments.contract));
  contract.budgets = !arguments.no_budgets;
  CheckResult result;
  source.each(kernels, [&](const Kernel& kernel) { check_contract(contract, kernel, result); });
  if (result.kernels == 0)
    throw std::runtime_error(arguments.contract + ": none of its `rows` lines covers a kernel of the file");
  return result;
}

// Whether the table of hand-overs tells more of it.
bool is_about_handovers(const Finding& finding) {
  return finding.state == Finding::State::broken && finding.rule.starts_with("kernel.") &&
         !finding.rule.starts_with("kernel.spills");
}

CheckResult check_preset(const Arguments& arguments, const Source& source, std::vector<size_t> kernels) {
  const std::string& preset = arguments.preset;
  if (preset != "any") std::erase_if(kernels, [&](size_t kernel) { return !source.may_have_wgmmas(kernel); });
  // Most kernels of a large library need not be disassembled.
  std::vector<size_t> looked_at;
  for (size_t kernel : kernels)
    if (!source.record(kernel) || !keeps_every_rule(*source.record(kernel))) looked_at.push_back(kernel);
  CheckResult result;
  const auto add = [&](const Kernel& kernel) {
    if (!belongs_to(preset, kernel)) return;
    const auto before = static_cast<std::ptrdiff_t>(result.findings.size());
    check_contract(preset_for(kernel), kernel, result);
    if (arguments.verbose || std::any_of(result.findings.begin() + before, result.findings.end(), is_about_handovers))
      result.handovers[{kernel.number, kernel.record.name}] = handover_text(kernel);
  };
  size_t next = 0;
  const auto others_before = [&](size_t end) {
    for (; next < kernels.size() && kernels[next] < end; ++next)
      add(plain_kernel(*source.record(kernels[next]), static_cast<int>(kernels[next]) + 1));
  };
  source.each(looked_at, [&](const Kernel& kernel) {
    others_before(static_cast<size_t>(kernel.number) - 1);
    add(kernel);
    ++next;
  });
  others_before(source.entries().size());
  if (result.kernels == 0)
    throw std::runtime_error(source.name() + ": none of these kernels is " +
                             (preset == "gemm" ? "a GEMM by WGMMAs" : "attention by WGMMAs (--preset=gemm, any)"));
  return result;
}

}  // namespace

int check_verb(const Arguments& arguments, const Colours& colours) {
  const bool by_preset = !arguments.preset.empty();
  if (by_preset && !(arguments.contract.empty() && arguments.contracts.empty()))
    throw CLI::ValidationError("--preset has rules of its own, and takes no contract");
  const auto source = source_of(arguments);
  refuse_others(*source, "check");
  const auto kernels = source->matching(arguments.kernel);
  const CheckResult result = by_preset                     ? check_preset(arguments, *source, kernels)
                                   : arguments.contract.empty() ? check_table(arguments, *source, kernels)
                                                                : check_one_contract(arguments, *source, kernels);
  print(arguments.json ? check_json(result) : check_text(result, colours, arguments.verbose));
  return result.passed() ? 0 : 1;
}

int contract_verb(const Arguments& arguments, const Colours&) {
  if (!arguments.init) throw CLI::RequiredError("--init");
  const auto source = source_of(arguments);
  refuse_others(*source, "contract");
  print(first_contract(one_of(*source, arguments.kernel)));
  return 0;
}

namespace {

// Two files whose kernels are compared by name.
void each_difference(const Arguments& arguments, const std::function<void(const KernelDiff&)>& use) {
  const auto first = source_of(arguments), second = open_source(arguments.second_file);
  const auto matching = [&](const Source& source) {
    try {
      return source.matching(arguments.kernel);
    } catch (const std::runtime_error&) {
      return std::vector<size_t>();
    }
  };
  const auto before = matching(*first), after = matching(*second);
  if (before.empty() && after.empty())
    throw std::runtime_error(first->name() + ", " + second->name() + ": no kernel matches \"" + arguments.kernel +
                             "\"");
  // Two cubins with one kernel each are two kernels to compare, whatever their names.
  if (before.size() == 1 && after.size() == 1)
    return use(difference(first->read(before).front(), second->read(after).front()));
  each_difference(*first, before, *second, after, use);
}

}  // namespace

int diff_verb(const Arguments& arguments, const Colours& colours) {
  const bool two_files = !arguments.second_file.empty(), two_kernels = !arguments.second_kernel.empty();
  if (two_files == two_kernels) throw CLI::ValidationError("diff takes two files, or two kernels of one");
  bool same = true;
  std::optional<JsonList> kernels;
  const auto use = [&](const KernelDiff& difference) {
    same = same && difference.same();
    if (arguments.json && !kernels) kernels.emplace("kernels");
    if (arguments.json) kernels->add(diff_json(difference));
    else print(diff_text(difference, colours, arguments.all));
  };
  if (two_files) {
    each_difference(arguments, use);
  } else {
    const auto source = source_of(arguments);
    use(difference(one_of(*source, arguments.kernel), one_of(*source, arguments.second_kernel)));
  }
  if (kernels) kernels->end();
  return same ? 0 : 1;
}

}  // namespace sass
