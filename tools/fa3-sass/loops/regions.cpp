#include "regions.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace sass {
namespace {

// Sets of roles ("QK+PV") are bits. Kernels have one to three of them; beyond the last bit they share it.
using Roles = uint64_t;
constexpr size_t last_role = 63;

struct Namer {
  const Kernel& kernel;
  std::vector<std::string> roles{};
  // By block: the role of its loop, of the loops that it leads to, and of those that it comes from.
  std::vector<Roles> inside{}, before{}, after{};
  std::vector<std::string> names{};                // by block
  std::map<std::string, const WgmmaLoop*> loops{};  // by the name of their turn

  const Block& block(int b) const { return kernel.cfg.blocks[static_cast<size_t>(b)]; }
  std::string& name(int b) { return names[static_cast<size_t>(b)]; }

  Roles role(const WgmmaLoop& loop) {
    const auto at = std::find(roles.begin(), roles.end(), loop.role);
    if (at == roles.end()) roles.push_back(loop.role);
    return Roles{1} << std::min(last_role, static_cast<size_t>(std::find(roles.begin(), roles.end(), loop.role) -
                                                               roles.begin()));
  }

  void name_loops() {
    std::map<std::string, int> seen;
    for (const WgmmaLoop& loop : kernel.loops) {
      std::string title = (loop.hot ? "hot loop " : "boundary loop ") + loop.role;
      if (const int number = ++seen[title]; number > 1) title += " #" + std::to_string(number);
      const Roles bit = role(loop);
      for (int b : kernel.cfg.loops[static_cast<size_t>(loop.loop)].blocks) {
        inside[static_cast<size_t>(b)] = bit;
        name(b) = title + ", beside its usual way";
      }
      for (int b : loop.path) name(b) = title;
      loops[title] = &loop;
    }
  }

  // Along forward edges only: a persistent kernel's loop over tiles would otherwise lead from everywhere to everywhere.
  void follow_edges() {
    const Cfg& cfg = kernel.cfg;
    const auto forward = [&](int from, int to) {
      return cfg.rank[static_cast<size_t>(to)] > cfg.rank[static_cast<size_t>(from)];
    };
    for (int b : cfg.order)
      for (int p : block(b).predecessors)
        if (cfg.rank[static_cast<size_t>(p)] >= 0 && forward(p, b))
          after[static_cast<size_t>(b)] |= after[static_cast<size_t>(p)] | inside[static_cast<size_t>(p)];
    for (auto b = cfg.order.rbegin(); b != cfg.order.rend(); ++b)
      for (int s : block(*b).successors)
        if (forward(*b, s))
          before[static_cast<size_t>(*b)] |= before[static_cast<size_t>(s)] | inside[static_cast<size_t>(s)];
  }

  std::string words(Roles set) const {
    std::string text;
    for (size_t r = 0; r < roles.size(); ++r)
      if (set >> std::min(last_role, r) & 1) text += (text.empty() ? "" : " and ") + roles[r];
    return text;
  }

  void name_the_rest() {
    const Roles all = roles.size() > last_role ? ~Roles{0} : (Roles{1} << roles.size()) - 1;
    for (int b : kernel.cfg.order) {
      if (!name(b).empty()) continue;
      const Roles leads = before[static_cast<size_t>(b)], comes = after[static_cast<size_t>(b)];
      if (leads && comes) name(b) = "between loops of " + words(leads | comes);
      else if (leads) name(b) = leads == all ? "prologue" : "prologue of " + words(leads);
      else if (comes) name(b) = comes == all ? "epilogue" : "epilogue of " + words(comes);
    }
  }

  // What no loop with WGMMAs leads to or from is the code of other warps, one piece after the other.
  void name_other_warps() {
    for (int first : kernel.cfg.order) {
      if (!name(first).empty()) continue;
      std::vector<int> piece, work{first};
      bool loads = false;
      name(first) = "?";
      while (!work.empty()) {
        const int b = work.back();
        work.pop_back();
        piece.push_back(b);
        for (int i = block(b).begin; i < block(b).end; ++i)
          loads |= kind_of(kernel.listing.code[static_cast<size_t>(i)]) == Kind::tma_load;
        for (const std::vector<int>* edges : {&block(b).successors, &block(b).predecessors})
          for (int other : *edges)
            if (kernel.cfg.rank[static_cast<size_t>(other)] >= 0 && name(other).empty()) {
              name(other) = "?";
              work.push_back(other);
            }
      }
      for (int b : piece) name(b) = roles.empty() ? "code" : loads ? "producer" : "other warps";
    }
  }

  void run() {
    const size_t count = kernel.cfg.blocks.size();
    inside.assign(count, 0);
    before.assign(count, 0);
    after.assign(count, 0);
    names.assign(count, "");
    name_loops();
    follow_edges();
    name_the_rest();
    name_other_warps();
  }
};

// Behind the last instruction that does something: a branch to itself, and NOPs.
size_t end_of_code(const Kernel& kernel) {
  size_t end = kernel.listing.code.size();
  while (end > 0 && kernel.listing.code[end - 1].is("NOP")) --end;
  const auto jumps_to_itself = [&](size_t i) {
    return kernel.listing.code[i].is("BRA") && kernel.listing.code[i].targets == std::vector{static_cast<int>(i)};
  };
  return end > 0 && jumps_to_itself(end - 1) ? end - 1 : kernel.listing.code.size();
}

}  // namespace

std::vector<Region> regions_of(const Kernel& kernel) {
  Namer namer{kernel};
  namer.run();
  std::vector<Region> regions;
  std::map<std::string, size_t> places;
  const int end = static_cast<int>(end_of_code(kernel));
  // Control flow does not follow calls.
  const bool calls = std::ranges::any_of(kernel.listing.code, [](const Instruction& i) { return i.is("CALL"); });
  const std::string unreached = calls ? "subroutines" : "unreachable";
  for (size_t b = 0; b < kernel.cfg.blocks.size(); ++b) {
    const std::string name = namer.names[b].empty() ? unreached : namer.names[b];
    for (int i = kernel.cfg.blocks[b].begin; i < std::min(kernel.cfg.blocks[b].end, end); ++i) {
      const auto [place, fresh] = places.emplace(name, regions.size());
      if (fresh) regions.push_back({name, {}, nullptr});
      regions[place->second].code.push_back(i);
    }
  }
  // A turn is read in the order of its path, which need not be that of addresses.
  for (Region& region : regions) {
    const auto loop = namer.loops.find(region.name);
    if (loop == namer.loops.end()) continue;
    std::vector<int> sorted = loop->second->turn.code;
    std::sort(sorted.begin(), sorted.end());
    if (sorted != region.code) continue;
    region.loop = loop->second;
    region.code = loop->second->turn.code;
  }
  return regions;
}

std::vector<RareWay> rare_ways(const Kernel& kernel, const WgmmaLoop& loop) {
  const std::vector<Block>& blocks = kernel.cfg.blocks;
  std::map<int, int> starts, ends;  // positions in the turn, by block of the usual way
  int position = 0;
  for (int b : loop.path) {
    starts[b] = position;
    position += blocks[static_cast<size_t>(b)].end - blocks[static_cast<size_t>(b)].begin;
    ends[b] = position - 1;
  }
  std::vector<RareWay> ways;
  std::vector<bool> seen(blocks.size(), false);
  const Loop& all = kernel.cfg.loops[static_cast<size_t>(loop.loop)];
  for (int first : all.blocks) {
    if (seen[static_cast<size_t>(first)] || starts.count(first)) continue;
    RareWay way;
    way.leaves = position;
    std::vector<int> work{first};
    seen[static_cast<size_t>(first)] = true;
    while (!work.empty()) {
      const Block& block = blocks[static_cast<size_t>(work.back())];
      work.pop_back();
      for (int i = block.begin; i < block.end; ++i) way.code.push_back(i);
      const auto reach = [&](int other) {
        if (!all.contains(other) || starts.count(other) || seen[static_cast<size_t>(other)]) return;
        seen[static_cast<size_t>(other)] = true;
        work.push_back(other);
      };
      for (int p : block.predecessors) {
        if (ends.count(p)) way.leaves = std::min(way.leaves, ends[p]);
        reach(p);
      }
      for (int s : block.successors) {
        if (starts.count(s)) way.returns = std::max(way.returns, starts[s]);
        reach(s);
      }
    }
    std::sort(way.code.begin(), way.code.end());
    ways.push_back(std::move(way));
  }
  std::ranges::sort(ways, {}, &RareWay::leaves);
  return ways;
}

}  // namespace sass
