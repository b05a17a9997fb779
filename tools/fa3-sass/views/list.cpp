#include <algorithm>
#include <cstdio>
#include <map>

#include "../system/text.h"
#include "reports.h"

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
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + shortened(demangle(name));
  return text;
}

}  // namespace

std::map<std::string, int> wgmma_counts(const Kernel& kernel) {
  std::map<std::string, int> counts;
  for (const Instruction& instruction : kernel.listing.code)
    if (is_wgmma(instruction) || kind_of(instruction) == Kind::umma) ++counts[instruction.opcode];
  return counts;
}

void Columns::make_room(size_t number_of_kernel, const std::string& name_of_kernel) {
  number = std::max(number, std::to_string(number_of_kernel).size());
  name = std::max(name, std::min(shortened(name_of_kernel).size(), shown_name));
}

std::string list_summary(size_t kernels, size_t with_wgmmas) {
  const std::string all = std::to_string(kernels) + " kernels, ";
  return with_wgmmas == 0 ? all + "none with WGMMAs: nothing here is attention for Hopper\n"
                          : all + std::to_string(with_wgmmas) + " of them with WGMMAs\n";
}

std::string list_head(const Columns& columns, const Colours& colours) {
  return colours.bold(pad("#", columns.number) + "  kernel" + std::string(columns.name - 6, ' ') +
                      "  regs  setmaxnreg  threads  smem  stack  spills  code  WGMMAs") +
         "\n";
}

std::string list_text(const Kernel& kernel, const Columns& columns, const Colours& colours) {
  std::string name = shortened(kernel.readable);
  name.resize(std::max(name.size(), columns.name), ' ');
  std::string text = pad(std::to_string(kernel.number), columns.number) + "  " + name +
                     pad(shown(kernel, "registers"), 6) + pad(shown(kernel, "setmaxnreg"), 12) +
                     pad(shown(kernel, "threads"), 9) + pad(shown(kernel, "shared"), 6) +
                     pad(shown(kernel, "stack"), 7);
  const std::string spills = pad(shown(kernel, "spills"), 8);
  text += (find(kernel.figures, "spills")->value > 0 ? colours.red(spills) : spills) +
          pad(shown(kernel, "instructions"), 6) + " ";
  for (const auto& [opcode, count] : wgmma_counts(kernel)) text += " " + std::to_string(count) + " " + opcode;
  text += "\n";
  if (!kernel.followed.empty())
    text += colours.dim("  with the functions it calls: " + words(kernel.followed)) + "\n";
  if (!kernel.unseen.empty())
    text += colours.red("  calls what this file does not have: " + words(kernel.unseen)) + "\n";
  if (const Figure* calls = find(kernel.figures, "calls_by_address"); calls->value > 0)
    text += colours.dim("  calls by address, which are not followed: " + calls->shown()) + "\n";
  for (const WgmmaLoop& loop : kernel.loops)
    text += colours.dim(std::string(loop.hot ? "  hot loop      " : "  boundary loop ") + loop.gemms + "; " +
                        std::to_string(loop.turn.size()) + " instructions, " + find(loop.figures, "groups")->shown() +
                        " groups, waits " + find(loop.figures, "waits")->shown() + ", " +
                        find(loop.figures, "exps")->shown() + " exp2") +
            "\n";
  return text;
}

}  // namespace sass
