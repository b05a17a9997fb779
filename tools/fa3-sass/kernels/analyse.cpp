#include "analyse.h"

#include <algorithm>
#include <map>

#include "../handovers/handovers.h"
#include "../handovers/protocol.h"
#include "../system/text.h"
#include "contents.h"
#include "../dataflow/first_turn.h"
#include "../loops/names.h"
#include "figures.h"

namespace sass {
namespace {

bool has_wgmma(const Listing& listing, const Cfg& cfg, const Loop& loop) {
  for (int block : loop.blocks)
    for (int i = cfg.blocks[static_cast<size_t>(block)].begin; i < cfg.blocks[static_cast<size_t>(block)].end; ++i)
      if (is_wgmma(listing.code[static_cast<size_t>(i)])) return true;
  return false;
}

// The innermost loops with WGMMAs; of those that do the same GEMMs the hot one has no masks, if there is one without,
// and is the shortest.
void find_loops(Kernel& kernel) {
  std::vector<bool> wgmma, inner(kernel.cfg.loops.size(), true);
  for (const Loop& loop : kernel.cfg.loops) wgmma.push_back(has_wgmma(kernel.listing, kernel.cfg, loop));
  for (size_t l = 0; l < wgmma.size(); ++l)
    if (wgmma[l] && kernel.cfg.loops[l].parent >= 0) inner[static_cast<size_t>(kernel.cfg.loops[l].parent)] = false;
  for (size_t l = 0; l < wgmma.size(); ++l) {
    if (!wgmma[l] || !inner[l]) continue;
    WgmmaLoop loop;
    loop.loop = static_cast<int>(l);
    const Loop& whole = kernel.cfg.loops[l];
    loop.path = hot_path(kernel.listing, kernel.cfg, whole, first_turn_only(kernel.listing, kernel.cfg, whole));
    loop.turn = follow(kernel.listing, kernel.cfg, loop.path, true);
    if (!loop.turn.gemms.empty()) kernel.loops.push_back(std::move(loop));
  }
  std::vector<Turn*> turns;
  for (WgmmaLoop& loop : kernel.loops) turns.push_back(&loop.turn);
  name_across(turns);
  for (WgmmaLoop& loop : kernel.loops) describe_gemms(loop);
  std::sort(kernel.loops.begin(), kernel.loops.end(),
            [](const WgmmaLoop& a, const WgmmaLoop& b) { return a.turn.code.front() < b.turn.code.front(); });
  const auto work = [&](size_t l) {
    const Turn& turn = kernel.loops[l].turn;
    return std::pair(std::ranges::count(turn.kinds, Kind::mask) > 0, turn.size());
  };
  std::map<std::string, size_t> least;
  for (size_t l = 0; l < kernel.loops.size(); ++l) {
    const auto [best, fresh] = least.emplace(kernel.loops[l].gemms, l);
    if (!fresh && work(l) < work(best->second)) best->second = l;
  }
  for (size_t l = 0; l < kernel.loops.size(); ++l) kernel.loops[l].hot = least[kernel.loops[l].gemms] == l;
}

}  // namespace

Kernel plain_kernel(const KernelRecord& record, int number) {
  Kernel kernel;
  kernel.record = record;
  kernel.readable = demangle(record.name);
  kernel.number = number;
  kernel.figures = kernel_figures(kernel);
  for (Figure& figure : kernel.figures)
    if (figure.name == "instructions") figure.value = static_cast<double>(record.code_bytes / 16);
  return kernel;
}

Kernel analyse(const KernelRecord& record, Listing listing, const std::map<std::string, Listing>& functions) {
  Kernel kernel;
  kernel.record = record;
  kernel.readable = demangle(record.name);
  Called called = follow_calls(std::move(listing), functions);
  kernel.listing = std::move(called.listing);
  kernel.followed = std::move(called.followed);
  kernel.unseen = std::move(called.unseen);
  kernel.cfg = control_flow(kernel.listing);
  find_loops(kernel);
  kernel.protocol = protocol_of(kernel);
  kernel.handovers = handovers_of(kernel);
  for (WgmmaLoop& loop : kernel.loops) loop.figures = loop_figures(kernel, loop);
  kernel.figures = kernel_figures(kernel);
  for (const std::string& scope : scopes()) {
    kernel.scopes[scope] = scope_figures(kernel, scope);
    const Figures more = part_figures(kernel, scope);
    kernel.scopes[scope].insert(kernel.scopes[scope].end(), more.begin(), more.end());
  }
  return kernel;
}

}  // namespace sass
