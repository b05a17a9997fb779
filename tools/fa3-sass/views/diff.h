// The verb diff: what differs between two kernels, whatever registers, addresses and labels the compiler chose.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/source.h"
#include "../loops/kernel.h"
#include "../system/colour.h"

namespace sass {

// The instruction without register numbers, predicate numbers and labels.
std::string normalised(const Instruction& instruction);

struct Change {
  bool appeared = false;  // or gone
  std::string instruction;
};

// The shortest edit from one sequence to the other, in order.
std::vector<Change> changes(const std::vector<std::string>& before, const std::vector<std::string>& after);

// A line of two listings side by side.
struct Line {
  int before = -1, after = -1;  // addresses; -1 on the side that lacks it
  std::string text, note;
  bool same() const { return before >= 0 && after >= 0; }
};

// The kernel as a whole, or one region of it.
struct PartDiff {
  std::string name;
  std::vector<std::pair<Figure, Figure>> figures{};  // those that moved; an empty name where one side lacks it
  int before = 0, after = 0;                         // instructions
  std::vector<Line> lines{};                         // the whole part, if its instructions differ
  bool reordered = false;                            // as many of each instruction on both sides
  bool same() const { return figures.empty() && lines.empty(); }
};

struct KernelDiff {
  std::string before, after;    // names; one is empty if the kernel is on one side only
  std::vector<PartDiff> parts;  // the kernel itself first, then its regions
  bool same() const;
};

KernelDiff difference(const Kernel& before, const Kernel& after);

// Kernels of two files, paired by name, in the order of the first; those that only the second has come last.
void each_difference(const Source& before, const std::vector<size_t>& chosen_before, const Source& after,
                     const std::vector<size_t>& chosen_after, const std::function<void(const KernelDiff&)>& use);

// Of each part the first differing instructions, or with `all` all of them.
std::string diff_text(const KernelDiff& diff, const Colours& colours, bool all = false);

}  // namespace sass
