// The protocol between the warps of a kernel, as far as machine code shows it: mbarriers, TMA, fences, and who executes
// them.
//
// Scopes, beside the kernel and its loops: `prologue` is what leads to a loop with WGMMAs, `epilogue` what comes behind
// the last one, and `producer` all else: what warps do that never come to such a loop.
#pragma once

#include <string>
#include <vector>

namespace sass {

struct Figure;
struct Kernel;
struct WgmmaLoop;

// What is followed once through a kernel, for all of its figures.
struct Protocol {
  std::vector<bool> one_lane;    // by instruction: no more than one lane of a warp gets to it
  std::vector<int> in_flight;    // by instruction: WGMMA groups that may be in flight there
  std::vector<std::string> scope;  // by block: "prologue", "epilogue", "producer", or "loop"
  std::vector<int> waits;        // for mbarriers; a wait and the copy of it that spins count once
  std::vector<int> parities;     // of each of `waits`, when it is come to for the first time: 0, 1, or -1 for either
  std::vector<int> no_spin;      // waits that may be left before the barrier's phase is over
  std::vector<int> unfenced;     // what hands data of shared memory to TMA or WGMMA without a fence behind its stores
  std::vector<int> unfenced_tma;  // TMA alone: stores of such data, and loads at mbarriers not fenced since their init
};

Protocol protocol_of(const Kernel& kernel);

// Figures of the kernel, of a loop and of a scope. The kernel's `protocol` must be there.
std::vector<Figure> protocol_figures(const Kernel& kernel);
std::vector<Figure> protocol_figures(const Kernel& kernel, const WgmmaLoop& loop);
std::vector<Figure> scope_figures(const Kernel& kernel, const std::string& scope);

// The names of these scopes.
const std::vector<std::string>& scopes();

}  // namespace sass
