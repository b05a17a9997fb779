#include <algorithm>
#include <cstdio>
#include <map>

#include "json.h"
#include "reports.h"
#include "text.h"

namespace sass {
namespace {

// All WGMMAs of the kernel by shape, loops or not.
std::map<std::string, int> wgmma_counts(const Kernel& kernel) {
  std::map<std::string, int> counts;
  for (const Instruction& instruction : kernel.listing.code)
    if (is_wgmma(instruction)) ++counts[instruction.opcode];
  return counts;
}

std::string shown(const Kernel& kernel, const char* figure) {
  const Figure* found = find(kernel.figures, figure);
  return found && !found->shown().empty() ? found->shown() : "-";
}

std::string pad(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

}  // namespace

std::string list_text(const std::vector<Kernel>& kernels, const Colours& colours) {
  size_t width = 6;
  for (const Kernel& kernel : kernels) width = std::max(width, std::min<size_t>(kernel.readable.size(), 60));
  std::string text = colours.bold("kernel" + std::string(width - 6, ' ') +
                                  "  regs  setmaxnreg  threads  smem  stack  spills  code  WGMMAs") +
                     "\n";
  for (const Kernel& kernel : kernels) {
    std::string name = kernel.readable;
    if (name.size() > width) {  // too long for a column: a line of its own
      text += name + "\n";
      name.clear();
    }
    name.resize(std::max(name.size(), width), ' ');
    text += name + pad(shown(kernel, "registers"), 6) + pad(shown(kernel, "setmaxnreg"), 12) +
            pad(shown(kernel, "threads"), 9) + pad(shown(kernel, "shared"), 6) + pad(shown(kernel, "stack"), 7);
    const std::string spills = pad(shown(kernel, "local"), 8);
    text += (find(kernel.figures, "local")->value > 0 ? colours.red(spills) : spills) +
            pad(shown(kernel, "instructions"), 6) + " ";
    for (const auto& [opcode, count] : wgmma_counts(kernel)) text += " " + std::to_string(count) + " " + opcode;
    text += "\n";
    for (const WgmmaLoop& loop : kernel.loops)
      text += colours.dim(std::string(loop.hot ? "  hot loop      " : "  boundary loop ") + loop.gemms + "; " +
                          std::to_string(loop.turn.size()) + " instructions, " + find(loop.figures, "groups")->shown() +
                          " groups, waits " + find(loop.figures, "waits")->shown() + ", " +
                          find(loop.figures, "exps")->shown() + " exp2") +
              "\n";
  }
  return text;
}

std::string list_json(const std::vector<Kernel>& kernels) {
  const auto figures = [](const Figures& all) {
    std::vector<std::pair<std::string, std::string>> members;
    for (const Figure& figure : all)
      members.emplace_back(figure.name, figure.is_text ? json::quote(figure.text) : json::number(figure.value));
    return json::object(members);
  };
  std::vector<std::string> entries;
  for (const Kernel& kernel : kernels) {
    std::vector<std::pair<std::string, std::string>> counts;
    for (const auto& [opcode, count] : wgmma_counts(kernel)) counts.emplace_back(opcode, json::number(count));
    std::vector<std::string> loops;
    for (const WgmmaLoop& loop : kernel.loops)
      loops.push_back(json::object({{"role", json::quote(loop.role)},
                                    {"hot", loop.hot ? "true" : "false"},
                                    {"figures", figures(loop.figures)}}));
    entries.push_back(json::object({{"name", json::quote(kernel.record.name)},
                                    {"readable", json::quote(kernel.readable)},
                                    {"image", json::quote(kernel.image)},
                                    {"figures", figures(kernel.figures)},
                                    {"wgmma", json::object(counts)},
                                    {"loops", json::array(loops)}}));
  }
  return json::object({{"kernels", json::array(entries)}}) + "\n";
}

}  // namespace sass
