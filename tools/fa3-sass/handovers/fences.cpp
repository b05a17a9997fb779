#include "fences.h"

#include <algorithm>

#include "../listing/sync.h"

namespace sass {
namespace {

class FenceFinder {
 public:
  FenceFinder(const Listing& listing, const Cfg& cfg, const std::vector<bool>& one_lane)
      : listing_(listing), cfg_(cfg), one_lane_(one_lane) {}

  Unfenced run() {
    std::vector<Dirty> entry(cfg_.blocks.size());
    if (!cfg_.order.empty()) entry[static_cast<size_t>(cfg_.order.front())].no_fence = true;
    for (bool changed = true; changed;) {
      changed = false;
      for (int b : cfg_.order) {
        Dirty dirty = entry[static_cast<size_t>(b)];
        for (int i = block(b).begin; i < block(b).end; ++i) step(dirty, i, false);
        for (int next : block(b).successors) {
          Dirty& to = entry[static_cast<size_t>(next)];
          const Dirty joined{to.stored || dirty.stored, to.own || dirty.own, to.by_matrix || dirty.by_matrix,
                             to.initialised || dirty.initialised, to.fresh || dirty.fresh,
                             to.no_fence || dirty.no_fence};
          changed |= joined != to;
          to = joined;
        }
      }
    }
    for (int b : cfg_.order) {
      Dirty dirty = entry[static_cast<size_t>(b)];
      for (int i = block(b).begin; i < block(b).end; ++i) step(dirty, i, true);
    }
    std::ranges::sort(result_.any);
    std::ranges::sort(result_.tma);
    return std::move(result_);
  }

 private:
  const Instruction& code(int i) const { return listing_.code[static_cast<size_t>(i)]; }
  const Block& block(int b) const { return cfg_.blocks[static_cast<size_t>(b)]; }

  // On any way to an instruction: shared memory that was written, by stmatrix or not, and mbarriers that were
  // initialised, with no fence since. `fresh` are those barriers until a fence, `initialised` also until a barrier of
  // the thread block. `own` are stores until a wait for an mbarrier: behind it, TMA stores what other threads handed
  // over. `no_fence`: not since the kernel's beginning or the last TMA. In Triton's kernels ptxas puts the fence that
  // is written behind an mbarrier's initial value before it, so that one counts, too.
  struct Dirty {
    bool stored = false, own = false, by_matrix = false, initialised = false, fresh = false, no_fence = false;
    bool operator==(const Dirty&) const = default;
  };

  void step(Dirty& dirty, int i, bool note) {
    const Instruction& instruction = code(i);
    const bool store = tma_store(instruction), load = tma_load(instruction);
    const bool fault = (store && dirty.stored) || (only_arrives(instruction) && dirty.by_matrix) ||
                       (instruction.is("BAR") && dirty.initialised);
    if (fault && note) result_.any.push_back(i);
    // Another thread may fence a barrier of the thread block later: what counts is TMA that arrives there.
    if (((store && dirty.own) || (load && dirty.fresh)) && note) result_.tma.push_back(i);
    // What one lane writes is a message to other warps, not a tile.
    if (instruction.is("STSM") || (instruction.is("STS") && !one_lane_[static_cast<size_t>(i)]))
      dirty.stored = dirty.own = true;
    if (waits_for_mbarrier(instruction)) dirty.own = false;
    if (instruction.is("STSM")) dirty.by_matrix = true;
    if (proxy_fence(instruction)) dirty = {};
    if (instruction.is("BAR")) dirty.initialised = false;
    if (initialises_mbarrier(instruction)) {
      dirty.initialised = true;
      dirty.fresh |= dirty.no_fence;
    }
    if (store || load) dirty.no_fence = true;
    if (instruction.is("NOP")) dirty.initialised = dirty.fresh = false;  // all that ptxas leaves of fence.mbarrier_init
  }

  const Listing& listing_;
  const Cfg& cfg_;
  const std::vector<bool>& one_lane_;
  Unfenced result_;
};

}  // namespace

Unfenced unfenced_of(const Listing& listing, const Cfg& cfg, const std::vector<bool>& one_lane) {
  return FenceFinder(listing, cfg, one_lane).run();
}

}  // namespace sass
