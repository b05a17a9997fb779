// The verb diff: what changed between two kernels, whatever registers the compiler chose.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "colour.h"
#include "kernel.h"

namespace sass {

// The instruction without register numbers, predicate numbers and labels.
std::string normalised(const Instruction& instruction);

struct Change {
  bool appeared = false;  // or gone
  std::string instruction;
};

// The shortest edit from one sequence to the other, in order.
std::vector<Change> changes(const std::vector<std::string>& before, const std::vector<std::string>& after);

struct LoopDiff {
  std::string role;
  std::vector<std::pair<Figure, Figure>> figures;  // those that moved; an empty name where one side lacks it
  std::vector<Change> instructions;
};

struct KernelDiff {
  std::string before, after;    // names; one is empty if the kernel is on one side only
  std::vector<LoopDiff> parts;  // the kernel itself first, then its loops
  bool same() const;
};

KernelDiff difference(const Kernel& before, const Kernel& after);

// Kernels of two files, paired by name.
std::vector<KernelDiff> differences(const std::vector<Kernel>& before, const std::vector<Kernel>& after);

std::string diff_text(const std::vector<KernelDiff>& diffs, const Colours& colours);

}  // namespace sass
