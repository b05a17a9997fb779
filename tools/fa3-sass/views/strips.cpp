#include "strips.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <stdexcept>

#include "../system/text.h"
#include "../time/clocks.h"
#include "hues.h"
#include "reports.h"

namespace sass {

std::string count_of(size_t number, const char* things) {
  return std::to_string(number) + " " + things + (number == 1 ? "" : "s");
}

std::string kinds_text(const Kernel& kernel, const std::vector<int>& code) {
  Turn turn;
  for (int i : code) turn.kinds.push_back(kind_of(kernel.listing.code[static_cast<size_t>(i)]));
  return stretch_text(turn, 0, static_cast<int>(turn.kinds.size()));
}

namespace {

std::string summary(const Figures& figures) {
  std::string text;
  const auto share = [&](const char* words, const char* figure, const char* counted) {
    const Figure *part = find(figures, figure), *all = find(figures, counted);
    if (!part || !all) return;
    text += (text.empty() ? "while a GEMM is in flight: " : ", ") + number(part->value * all->value) + " of " +
            all->shown() + " " + words;
  };
  share("exp2", "exps_in_flight", "exps");
  share("conversions", "conversions_in_flight", "conversions");
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : "; ") + words; };
  const std::pair<const char*, const char*> faults[] = {{"serialised", "waits within a GEMM"},
                                                        {"touches", "uses of registers in flight"},
                                                        {"masks", "masks"},
                                                        {"local", "spills"},
                                                        {"rescales", "multiplications of O"}};
  for (const auto& [figure, words] : faults)
    if (const Figure* f = find(figures, figure); f && f->value > 0) add(f->shown() + " " + words);
  return text;
}

Strip strip_of(const Kernel& kernel, const WgmmaLoop& loop) {
  const Turn& turn = loop.turn;
  Strip strip{std::string(loop.hot ? "hot loop " : "boundary loop ") + loop.role + ": " +
                  count_of(static_cast<size_t>(turn.size()), "instruction") + " a turn",
              "instructions of a turn, in program order (not time)"};
  strip.turn = turn;
  strip.notes = {loop.gemms, summary(loop.figures)};
  for (const Group& group : turn.groups) {
    Bar bar;
    for (int gemm : group.gemms) bar.name += (bar.name.empty() ? "" : "+") + turn.gemms[static_cast<size_t>(gemm)].name;
    bar.colour =
        gemm_colour(group.gemms.empty() ? "" : turn.gemms[static_cast<size_t>(group.gemms.front())].name);
    bar.from = group.first;
    bar.to = group.wait >= 0 ? group.wait : group.first + turn.size();
    bar.commit = group.commit >= 0 ? std::min<double>(group.commit + 1, bar.to) : bar.to;
    if (group.wait < 0) {
      bar.words = bar.fewer = "never waited for";
    } else {
      bar.fewer = std::to_string(static_cast<int>(bar.to - bar.commit));
      bar.words = bar.fewer + " instructions while it is in flight";
    }
    strip.bars.push_back(std::move(bar));
  }
  strip.ways = rare_ways(kernel, loop);
  return strip;
}

// Loops of some size within a region that is shown in order of addresses, larger ones first; but none whose code lies
// scattered among other code, as a bar would be about that, too.
void add_loops(const Kernel& kernel, const Region& region, Strip& strip) {
  constexpr size_t most = 4, smallest = 12;
  std::map<int, int> positions;
  for (size_t p = 0; p < region.code.size(); ++p) positions[region.code[p]] = static_cast<int>(p);
  for (const Loop& loop : kernel.cfg.loops) {
    std::vector<int> inside;
    bool all = true;
    for (int b : loop.blocks)
      for (int i = kernel.cfg.blocks[static_cast<size_t>(b)].begin; i < kernel.cfg.blocks[static_cast<size_t>(b)].end;
           ++i) {
        const auto position = positions.find(i);
        if (position != positions.end()) inside.push_back(position->second);
        else all = false;
      }
    if (!all || inside.size() < smallest || strip.bars.size() == most) continue;
    const auto [first, last] = std::minmax_element(inside.begin(), inside.end());
    if (2 * static_cast<int>(inside.size()) < *last - *first) continue;
    Bar bar{"loop", "#64748b", static_cast<double>(*first), static_cast<double>(*first), *last + 1.0, {}, {}};
    bar.fewer = std::to_string(inside.size());
    bar.words = "loop of " + count_of(inside.size(), "instruction");
    strip.bars.push_back(std::move(bar));
  }
}

// Lays the strip out by clocks: estimated ones, or shares of what a profiler saw.
void add_time(const Kernel& kernel, const WgmmaLoop& loop, const std::vector<double>* samples, Strip& strip) {
  const size_t size = strip.turn.code.size();
  const Clocks clocks = estimated_clocks(kernel, loop);
  char words[120];
  if (!samples && clocks.turn == 0)
    throw std::runtime_error(shortened(kernel.readable) + ": no estimate of clocks: " +
                             (kernel.listing.code.front().control.known
                                  ? "which warpgroups run which of its main loops cannot be told"
                                  : "a listing without control words (-hex)"));
  strip.began = strip.clocks = clocks.issued;
  strip.busy = clocks.busy;
  std::snprintf(words, sizeof words, "about %.0f clocks a turn (an estimate); tensor cores busy %.0f%%", clocks.turn,
                100 * clocks.tensor);
  strip.axis = "clocks of a turn, estimated";
  if (samples) {
    double all = 0;
    for (int i : strip.turn.code) all += (*samples)[static_cast<size_t>(i)];
    if (all == 0) throw std::runtime_error(shortened(kernel.readable) + ": the profiler saw nothing of its main loop");
    const double unit = clocks.turn > 0 ? clocks.turn : 100;
    double from = 0;
    strip.clocks.clear();
    for (int i : strip.turn.code) {
      strip.clocks.push_back(from);
      from += unit * (*samples)[static_cast<size_t>(i)] / all;
    }
    strip.began = strip.clocks;
    strip.busy.assign(size, 0);
    for (size_t p = 0; p < size; ++p) strip.busy[p] = (p + 1 < size ? strip.clocks[p + 1] : unit) - strip.clocks[p];
    strip.axis = clocks.turn > 0 ? "where a warp spends the clocks of a turn, as profiled (their sum is an estimate)"
                                 : "where a warp spends its time, as profiled: percent of a turn";
    std::snprintf(words, sizeof words, "%.0f samples of a profiler", all);
    strip.clocks.push_back(unit);
  } else {
    for (size_t p = 0; p < size; ++p)
      if (strip.turn.kinds[p] == Kind::wgmma) strip.began[p] = clocks.began[p];
    strip.clocks.push_back(clocks.turn);
  }
  strip.notes.push_back(words);
}

Strip strip_of(const Kernel& kernel, const Region& region) {
  if (region.loop) return strip_of(kernel, *region.loop);
  Strip strip{region.name + ": " + count_of(region.code.size(), "instruction"), "instructions, in order of addresses"};
  strip.turn.code = region.code;
  strip.turn.cyclic = false;
  for (int i : region.code) strip.turn.kinds.push_back(kind_of(kernel.listing.code[static_cast<size_t>(i)]));
  strip.notes = {kinds_text(kernel, region.code)};
  add_loops(kernel, region, strip);
  return strip;
}

}  // namespace

std::vector<Strip> strips_of(const Kernel& kernel, const TimelineOptions& options) {
  std::vector<Strip> strips;
  if (options.whole) {
    for (const Region& region : regions_of(kernel)) strips.push_back(strip_of(kernel, region));
    return strips;
  }
  for (const WgmmaLoop& loop : kernel.loops) {
    if (!loop.hot) continue;
    strips.push_back(strip_of(kernel, loop));
    if (options.clocks || options.samples) add_time(kernel, loop, options.samples, strips.back());
  }
  return strips;
}

}  // namespace sass
