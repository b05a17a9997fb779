#include <algorithm>
#include <cstdio>
#include <map>

#include "reports.h"
#include "text.h"

namespace sass {
namespace {

std::string shown(const Kernel& kernel, const char* figure) {
  const Figure* found = find(kernel.figures, figure);
  return found && !found->shown().empty() ? found->shown() : "-";
}

std::string pad(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::string words(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + demangle(name);
  return text;
}

}  // namespace

std::map<std::string, int> wgmma_counts(const Kernel& kernel) {
  std::map<std::string, int> counts;
  for (const Instruction& instruction : kernel.listing.code)
    if (is_wgmma(instruction)) ++counts[instruction.opcode];
  return counts;
}

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
    if (!kernel.followed.empty())
      text += colours.dim("  with the functions it calls: " + words(kernel.followed)) + "\n";
    if (!kernel.unseen.empty())
      text += colours.red("  calls what this file does not have: " + words(kernel.unseen)) + "\n";
    for (const WgmmaLoop& loop : kernel.loops)
      text += colours.dim(std::string(loop.hot ? "  hot loop      " : "  boundary loop ") + loop.gemms + "; " +
                          std::to_string(loop.turn.size()) + " instructions, " + find(loop.figures, "groups")->shown() +
                          " groups, waits " + find(loop.figures, "waits")->shown() + ", " +
                          find(loop.figures, "exps")->shown() + " exp2") +
              "\n";
  }
  return text;
}

}  // namespace sass
