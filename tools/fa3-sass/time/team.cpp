#include "team.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "floors.h"

namespace sass {
namespace {

int block_of(const Kernel& kernel, int instruction) {
  const std::vector<Block>& blocks = kernel.cfg.blocks;
  const auto behind = std::ranges::upper_bound(blocks, instruction, {}, &Block::begin);
  return static_cast<int>(behind - blocks.begin()) - 1;
}

int position_of(const WgmmaLoop& loop, int instruction) {
  const auto at = std::ranges::find(loop.turn.code, instruction);
  return at == loop.turn.code.end() ? -1 : static_cast<int>(at - loop.turn.code.begin());
}

const Loop& blocks_of(const Kernel& kernel, const WgmmaLoop& loop) {
  return kernel.cfg.loops[static_cast<size_t>(loop.loop)];
}

// Blocks that follow this one, on any way, or on ways that go on in program order alone: not round an outer loop.
std::vector<bool> reached_from(const Kernel& kernel, int block, bool forward) {
  std::vector<bool> reached(kernel.cfg.blocks.size(), false);
  std::vector<int> next = {block};
  while (!next.empty()) {
    const int at = next.back();
    next.pop_back();
    for (const int successor : kernel.cfg.blocks[static_cast<size_t>(at)].successors) {
      const auto& rank = kernel.cfg.rank;
      if (forward && rank[static_cast<size_t>(successor)] <= rank[static_cast<size_t>(at)]) continue;
      if (reached[static_cast<size_t>(successor)]) continue;
      reached[static_cast<size_t>(successor)] = true;
      next.push_back(successor);
    }
  }
  return reached;
}

// The registers that setmaxnreg has left each thread where a block begins: 0 for those of the launch, nothing if ways
// that meet there differ.
std::vector<std::optional<int>> registers_at(const Kernel& kernel) {
  const Cfg& cfg = kernel.cfg;
  std::vector<std::optional<int>> begin(cfg.blocks.size());
  std::vector<bool> seen(cfg.blocks.size(), false);
  if (cfg.order.empty()) return begin;
  begin[static_cast<size_t>(cfg.order.front())] = 0;
  seen[static_cast<size_t>(cfg.order.front())] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (const int b : cfg.order) {
      if (!seen[static_cast<size_t>(b)]) continue;
      const Block& block = cfg.blocks[static_cast<size_t>(b)];
      std::optional<int> end = begin[static_cast<size_t>(b)];
      for (int i = block.begin; i < block.end; ++i) {
        const Instruction& instruction = kernel.listing.code[static_cast<size_t>(i)];
        if (instruction.is("USETMAXREG") && !instruction.operands.empty())
          end = static_cast<int>(std::strtol(instruction.operands.back().c_str(), nullptr, 0));
      }
      for (const int next : block.successors) {
        const auto n = static_cast<size_t>(next);
        if (!seen[n]) begin[n] = end;
        else if (begin[n] && begin[n] != end) begin[n].reset();
        else continue;
        seen[n] = changed = true;
      }
    }
  }
  return begin;
}

// How many warpgroups have each number of registers: the one way in which they use most of what the launch has given
// the thread block, each number at least once, and as often as it has loops of its own.
std::map<int, int> warpgroups_of(const std::map<int, int>& loops, int warpgroups, int registers) {
  std::map<int, int> best, tried;
  int most = 0;
  bool single = false;
  const auto try_all = [&](auto&& self, auto at, int left, int used) -> void {
    if (at == loops.end()) {
      if (left > 0 || used > registers || used < most) return;
      single = used > most;
      most = used;
      best = tried;
      return;
    }
    for (int n = std::max(1, at->second); n <= left; ++n) {
      tried[at->first] = n;
      self(self, std::next(at), left - n, used + n * at->first);
    }
  };
  try_all(try_all, loops.begin(), warpgroups, 0);
  return single ? best : std::map<int, int>();
}

bool set_warpgroups(const Kernel& kernel, Team& team) {
  if (team.size() == 1) {
    team[0].warpgroups = computing_warpgroups(kernel);
    return true;
  }
  const std::vector<std::optional<int>> registers = registers_at(kernel);
  std::map<int, int> loops;  // by registers; the loading warps' have none
  for (const Instruction& i : kernel.listing.code)
    if (i.is("USETMAXREG") && !i.operands.empty())
      loops[static_cast<int>(std::strtol(i.operands.back().c_str(), nullptr, 0))] = 0;
  const auto registers_of = [&](const Member& member) {
    return registers[static_cast<size_t>(blocks_of(kernel, *member.loop).header)];
  };
  for (const Member& member : team) {
    if (!registers_of(member)) return false;
    ++loops[*registers_of(member)];
  }
  const Figure* threads = find(kernel.figures, "threads");
  const int all = threads ? static_cast<int>(threads->value) / 128 : 0;
  // Without setmaxnreg all numbers are 0, and all warpgroups have the same.
  const std::map<int, int> counts = loops.size() == 1 ? std::map<int, int>{{loops.begin()->first, all}}
                                                      : warpgroups_of(loops, all, kernel.record.registers * all);
  for (Member& member : team) {
    const auto count = counts.find(*registers_of(member));
    if (count == counts.end() || count->second % loops[count->first] != 0) return false;
    member.warpgroups = count->second / loops[count->first];
  }
  return true;
}

// How many of these instructions come before the loop, on the way to it, less those that come behind it: what is made
// up for there, the loop's first turn has left out. Loops with WGMMAs are no such way.
int turns_ahead(const Kernel& kernel, const WgmmaLoop& loop, const std::vector<int>& instructions) {
  const int header = blocks_of(kernel, loop).header;
  const std::vector<bool> behind = reached_from(kernel, header, true);
  int ahead = 0;
  for (const int i : instructions) {
    const int b = block_of(kernel, i);
    if (std::ranges::any_of(kernel.loops, [&](const WgmmaLoop& l) { return blocks_of(kernel, l).contains(b); }))
      continue;
    if (reached_from(kernel, b, true)[static_cast<size_t>(header)]) ++ahead;
    else if (behind[static_cast<size_t>(b)]) --ahead;
  }
  return ahead;
}

// A loop's wait at this mbarrier for what another loop arrives with there.
void add_handovers(const Kernel& kernel, const Mbarrier& barrier, Team& team) {
  const int buffers = std::max<int>(1, static_cast<int>(barrier.inits.size()));
  for (Member& to : team)
    for (size_t w = 0; w < barrier.waits.size(); ++w) {
      const int wait = position_of(*to.loop, barrier.waits[w]);
      if (wait < 0 || barrier.parities[w] < 0) continue;
      // A wait that may pass at first, before anything has come, is one for a buffer to be given back.
      const int free = barrier.parities[w] == 1 ? buffers : 0;
      for (size_t from = 0; from < team.size(); ++from) {
        if (&team[from] == &to) continue;
        std::vector<int> arrivals;
        for (const int i : barrier.arrivals)
          if (const int position = position_of(*team[from].loop, i); position >= 0) arrivals.push_back(position);
        if (arrivals.size() != 1) continue;
        const int waited = turns_ahead(kernel, *to.loop, barrier.waits);
        const int arrived = turns_ahead(kernel, *team[from].loop, barrier.arrivals);
        to.handovers.push_back({from, arrivals[0], wait, waited - arrived - free});
      }
    }
}

// Whether each loop is tied to the first one, by way of others if need be.
bool tied(const Team& team) {
  std::vector<size_t> known = {0};
  for (size_t k = 0; k < known.size(); ++k)
    for (size_t m = 0; m < team.size(); ++m) {
      const auto comes_from = [](const Member& to, size_t from) {
        return std::ranges::any_of(to.handovers, [&](const Handover& h) { return h.from == from; });
      };
      if (std::ranges::count(known, m) == 0 && comes_from(team[m], known[k]) && comes_from(team[known[k]], m))
        known.push_back(m);
    }
  return known.size() == team.size();
}

// Whether a warpgroup may come from one of these loops to another.
bool follow_each_other(const Kernel& kernel, const Team& team) {
  for (const Member& member : team) {
    const std::vector<bool> reached = reached_from(kernel, blocks_of(kernel, *member.loop).header, false);
    for (const Member& other : team)
      if (&other != &member && reached[static_cast<size_t>(blocks_of(kernel, *other.loop).header)]) return true;
  }
  return false;
}

}  // namespace

Team team_of(const Kernel& kernel) {
  Team team;
  for (const WgmmaLoop& loop : kernel.loops)
    if (loop.hot) team.push_back({&loop, 1, {}});
  if (team.empty() || (team.size() > 1 && follow_each_other(kernel, team)) || !set_warpgroups(kernel, team)) return {};
  if (team.size() == 1) return team;
  for (const Mbarrier& barrier : kernel.handovers.mbarriers) add_handovers(kernel, barrier, team);
  return tied(team) ? team : Team();
}

}  // namespace sass
