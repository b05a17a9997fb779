#include "protocol.h"

#include <algorithm>

#include "../dataflow/lanes.h"
#include "../dataflow/spins.h"
#include "../listing/kinds.h"
#include "../loops/kernel.h"
#include "fences.h"

namespace sass {
namespace {

class Follower {
 public:
  explicit Follower(const Kernel& kernel) : kernel_(kernel), listing_(kernel.listing), cfg_(kernel.cfg) {}

  Protocol run() {
    result_.one_lane = by_one_lane(listing_, cfg_);
    find_scopes();
    find_groups();
    Spins spins = spins_of(listing_, cfg_);
    result_.waits = std::move(spins.waits);
    result_.parities = std::move(spins.parities);
    result_.no_spin = std::move(spins.no_spin);
    Unfenced unfenced = unfenced_of(listing_, cfg_, result_.one_lane);
    result_.unfenced = std::move(unfenced.any);
    result_.unfenced_tma = std::move(unfenced.tma);
    return std::move(result_);
  }

 private:
  const Instruction& code(int i) const { return listing_.code[static_cast<size_t>(i)]; }
  const Block& block(int b) const { return cfg_.blocks[static_cast<size_t>(b)]; }
  bool forward(int from, int to) const {
    return cfg_.rank[static_cast<size_t>(to)] > cfg_.rank[static_cast<size_t>(from)];
  }

  void find_scopes() {
    std::vector<bool> inside(cfg_.blocks.size()), before(cfg_.blocks.size()), behind(cfg_.blocks.size());
    for (const WgmmaLoop& loop : kernel_.loops)
      for (int b : cfg_.loops[static_cast<size_t>(loop.loop)].blocks) inside[static_cast<size_t>(b)] = true;
    for (int b : cfg_.order)
      for (int next : block(b).successors)
        if (forward(b, next) && (inside[static_cast<size_t>(b)] || behind[static_cast<size_t>(b)]))
          behind[static_cast<size_t>(next)] = true;
    for (auto b = cfg_.order.rbegin(); b != cfg_.order.rend(); ++b)
      for (int next : block(*b).successors)
        if (forward(*b, next) && (inside[static_cast<size_t>(next)] || before[static_cast<size_t>(next)]))
          before[static_cast<size_t>(*b)] = true;
    for (size_t b = 0; b < cfg_.blocks.size(); ++b)
      result_.scope.push_back(inside[b] ? "loop" : before[b] ? "prologue" : behind[b] ? "epilogue" : "producer");
  }

  // Groups committed and not waited for; where ways meet, the most.
  void find_groups() {
    constexpr int most = 16;
    result_.in_flight.assign(listing_.code.size(), 0);
    std::vector<int> entry(cfg_.blocks.size(), 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (int b : cfg_.order) {
        int groups = entry[static_cast<size_t>(b)];
        for (int i = block(b).begin; i < block(b).end; ++i) {
          const Kind kind = kind_of(code(i));
          if (kind == Kind::wait) groups = std::min(groups, wait_count(code(i)));
          result_.in_flight[static_cast<size_t>(i)] = groups;
          if (kind == Kind::wgmma && !code(i).operands.empty() && code(i).operands.back() == "gsb0")
            groups = std::min(groups + 1, most);
        }
        for (int next : block(b).successors)
          if (groups > entry[static_cast<size_t>(next)]) {
            entry[static_cast<size_t>(next)] = groups;
            changed = true;
          }
      }
    }
  }

  const Kernel& kernel_;
  const Listing& listing_;
  const Cfg& cfg_;
  Protocol result_;
};

}  // namespace

Protocol protocol_of(const Kernel& kernel) { return Follower(kernel).run(); }

}  // namespace sass
