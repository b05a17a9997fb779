#include "clocks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "../listing/operands.h"
#include "../listing/sync.h"
#include "floors.h"
#include "quarter.h"
#include "team.h"

namespace sass {
namespace {

// How much later than the one before it a warp begins: what they do to each other settles in different ways.
constexpr double starts[] = {0, 150, 400, 900};

// Until stores are there for all threads, and for TMA and WGMMAs: fitted, as the rates of quarter.cpp are.
constexpr double fence_latency = 250;

Unit unit_of(const Instruction& i, Kind kind) {
  switch (kind) {
    case Kind::wgmma: return Unit::tensor;
    case Kind::exp:
    case Kind::special: return Unit::mufu;
    case Kind::multiply:
    case Kind::multiply_add:
    case Kind::add: return Unit::fma;
    case Kind::shuffle:
    case Kind::shared_memory:
    case Kind::global_memory:
    case Kind::local_memory: return i.opcode[0] == 'U' || i.is("VOTEU") ? Unit::uniform : Unit::memory;
    case Kind::uniform: return Unit::uniform;
    case Kind::maximum:
    case Kind::convert:
    case Kind::mask: return Unit::alu;
    case Kind::move:
    case Kind::other:
      if (i.is("IMAD")) return Unit::fma;
      return i.is("R2UR") || i.opcode[0] == 'U' ? Unit::uniform : i.is("LDC") ? Unit::memory : Unit::alu;
    default: return Unit::control;
  }
}

// 128 bytes a clock: of a WGMMA's B and, unless that is in registers, A; of a warp's load or store, four of which come
// together. What threads load of 8 bytes and less is taken for numbers of rows, which lanes share.
double wavefronts_of(const Instruction& i, const Step& step) {
  if (step.unit == Unit::tensor) return (step.columns + (a_in_registers(i) ? 0 : 64)) * 32 / 128;
  if (i.is("STSM") || i.is("LDSM")) return 4.0 * (i.has("4") ? 4 : i.has("2") ? 2 : 1);
  if (i.is("LDS")) return 4.0 * (i.has("128") ? 4 : 1);
  if (i.is("STS")) return 4.0 * (i.has("128") ? 4 : i.has("64") ? 2 : 1);
  return 0;
}

// BAR.SYNC 0x1, 0x100: whether all warpgroups that run the loop meet there, and nobody else.
bool meets(const Kernel& kernel, const Member& member, const Instruction& i) {
  if (!i.is("BAR") || !i.has("SYNC") || i.operands.size() != 2) return false;
  const Operand id = operand_of(i.operands[0]), threads = operand_of(i.operands[1]);
  const auto only_meets = [&](const NamedBarrier& barrier) {
    return barrier.id == static_cast<int>(id.value) && barrier.arrivals.empty();
  };
  return id.kind == Operand::Kind::number && threads.kind == Operand::Kind::number &&
         threads.value == 128u * static_cast<unsigned>(member.warpgroups) &&
         std::ranges::any_of(kernel.handovers.named, only_meets);
}

// Empty if the listing has no control words.
LoopSteps steps_of(const Kernel& kernel, const Member& member) {
  const Turn& turn = member.loop->turn;
  LoopSteps made;
  made.warps = member.warpgroups;
  for (int p = 0; p < turn.size(); ++p) {
    const Instruction& i = kernel.listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(p)])];
    const Kind kind = turn.kinds[static_cast<size_t>(p)];
    if (!i.control.known) return {};
    Step step;
    step.unit = unit_of(i, kind);
    step.control = i.control;
    if (kind == Kind::wgmma) {
      step.columns = wgmma_columns(i.opcode.substr(i.opcode.find('.') + 1));
      step.commits = i.operands.back() == "gsb0";
    }
    if (kind == Kind::wait) step.in_flight = wait_count(i);
    if (kind == Kind::fence) step.latency = fence_latency;
    step.wavefronts = wavefronts_of(i, step);
    step.meets = meets(kernel, member, i);
    made.steps.push_back(std::move(step));
  }
  return made;
}

void link_loops(const Team& team, std::vector<LoopSteps>& loops) {
  for (size_t to = 0; to < team.size(); ++to)
    for (const Handover& handover : team[to].handovers) {
      LoopSteps& from = loops[handover.from];
      int& arrival = from.steps[static_cast<size_t>(handover.arrival)].arrival;
      if (arrival < 0) arrival = from.arrivals++;
      loops[to].steps[static_cast<size_t>(handover.wait)].conditions.push_back(
          {handover.from, static_cast<size_t>(arrival), handover.later});
    }
}

// Whether warps that store by TMA wait for what this loop arrives with: they take away what it stores.
bool stages_for_tma(const Kernel& kernel, const WgmmaLoop& loop) {
  const auto in_loop = [&](int i) { return std::ranges::count(loop.turn.code, i) > 0; };
  const auto stores_at = [&](int wait) {
    return std::ranges::any_of(kernel.cfg.loops, [&](const Loop& l) {
      bool waits = false, stores = false, multiplies = false;
      for (const int b : l.blocks) {
        const Block& block = kernel.cfg.blocks[static_cast<size_t>(b)];
        waits |= block.begin <= wait && wait < block.end;
        for (int i = block.begin; i < block.end; ++i) {
          stores |= tma_store(kernel.listing.code[static_cast<size_t>(i)]);
          multiplies |= is_wgmma(kernel.listing.code[static_cast<size_t>(i)]);
        }
      }
      return waits && stores && !multiplies;
    });
  };
  return std::ranges::any_of(kernel.handovers.mbarriers, [&](const Mbarrier& barrier) {
    return std::ranges::any_of(barrier.arrivals, in_loop) && std::ranges::any_of(barrier.waits, stores_at);
  });
}

// What TMA brings and takes away in a turn, in bytes / 128.
double copies_of(const Kernel& kernel, const Team& team, const std::vector<LoopSteps>& loops) {
  const std::vector<Instruction>& code = kernel.listing.code;
  double bytes = 0;
  for (const Mbarrier& barrier : kernel.handovers.mbarriers) {
    double most = 0, waits = 0;
    for (const std::string& expected : barrier.bytes) most = std::max(most, std::atof(expected.c_str()));
    for (const Member& member : team)
      waits = std::max<double>(waits, std::ranges::count_if(barrier.waits, [&](int i) {
        return std::ranges::count(member.loop->turn.code, i) > 0;
      }));
    bytes += most * waits;
  }
  double taken = 0;
  for (size_t m = 0; m < team.size(); ++m) {
    if (!stages_for_tma(kernel, *team[m].loop)) continue;
    for (size_t p = 0; p < loops[m].steps.size(); ++p)
      if (code[static_cast<size_t>(team[m].loop->turn.code[p])].is("STS"))
        taken += team[m].warpgroups * loops[m].steps[p].wavefronts;
  }
  return bytes / 128 + taken;
}

double tensor_clocks(const LoopSteps& loop) {
  double columns = 0;
  for (const Step& step : loop.steps) columns += step.columns;
  return loop.warps * columns / 2;
}

}  // namespace

Clocks estimated_clocks(const Kernel& kernel, const WgmmaLoop& loop) {
  Team team = team_of(kernel);
  if (!loop.hot && team.size() == 1) team[0].loop = &loop;
  const auto own = std::ranges::find(team, &loop, &Member::loop);
  if (own == team.end()) return {};
  const auto shown = static_cast<size_t>(own - team.begin());
  std::vector<LoopSteps> loops;
  for (const Member& member : team) {
    loops.push_back(steps_of(kernel, member));
    if (loops.back().steps.empty()) return {};
  }
  link_loops(team, loops);

  const double copies = copies_of(kernel, team, loops);
  std::vector<Clocks> runs;
  double mean = 0, tensor = 0;
  for (const double start : starts) {
    const std::vector<Issue> issues = run_quarter(loops, start, copies);
    if (issues.empty()) return {};
    Clocks run;
    run.turn = issues[shown].turn;
    run.issued = issues[shown].issued;
    run.began = issues[shown].began;
    for (size_t l = 0; l < loops.size(); ++l) run.tensor += tensor_clocks(loops[l]) / issues[l].turn;
    mean += run.turn / static_cast<double>(std::size(starts));
    tensor += run.tensor / static_cast<double>(std::size(starts));
    runs.push_back(std::move(run));
  }
  Clocks clocks = *std::ranges::min_element(runs, {}, [&](const Clocks& run) { return std::abs(run.turn - mean); });
  for (std::vector<double>* places : {&clocks.issued, &clocks.began})
    for (double& place : *places) place *= mean / clocks.turn;
  for (const Step& step : loops[shown].steps)
    clocks.busy.push_back(step.unit == Unit::tensor ? step.columns / 2 : busy_clocks(step.unit));
  clocks.turn = mean;
  clocks.tensor = tensor;
  return clocks;
}

}  // namespace sass
