// The table of hand-overs: as figures, and as text for readers.
#include <algorithm>
#include <cstdio>

#include "../dataflow/steady.h"
#include "../loops/kernel.h"
#include "handovers.h"

namespace sass {
namespace {

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "%x", value);
  return text;
}

template <typename Parts>
std::string join(const Parts& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

std::string counts_of(const std::set<std::uint32_t>& all) {
  std::vector<std::string> counts;
  for (std::uint32_t count : all) counts.push_back(std::to_string(count));
  return counts.empty() ? "?" : join(counts, "|");
}

void append(std::vector<int>& to, const std::vector<int>& more) { to.insert(to.end(), more.begin(), more.end()); }

Figure count_figure(const char* name, const std::vector<int>& evidence) {
  return {name, false, static_cast<double>(evidence.size()), {}, evidence, false};
}
Figure words(const char* name, const std::vector<std::string>& parts, std::vector<int> evidence) {
  std::ranges::sort(evidence);
  const std::string text = join(parts, ", ");
  return {name, true, 0, text.empty() ? "none" : text, std::move(evidence), false};
}

// Of each mbarrier how many arrivals it counts to, and what is done at it: arrivals (a), those that expect bytes (e),
// TMA loads that end there (t), waits (w). How often is left out: ptxas copies code.
constexpr const char* letters = "aetw";
std::vector<const std::vector<int>*> uses_of(const Mbarrier& barrier) {
  return {&barrier.arrivals, &barrier.expectations, &barrier.loads, &barrier.waits};
}

Figure mbarriers_figure(const Handovers& table) {
  std::vector<std::pair<std::string, int>> same;  // and how many of them follow each other
  std::vector<int> evidence;
  for (const Mbarrier& barrier : table.mbarriers) {
    std::string text = counts_of(barrier.counts) + " ";
    append(evidence, barrier.inits);
    for (size_t u = 0; u < uses_of(barrier).size(); ++u) {
      if (!uses_of(barrier)[u]->empty()) text += letters[u];
      append(evidence, *uses_of(barrier)[u]);
    }
    if (!same.empty() && same.back().first == text) ++same.back().second;
    else same.emplace_back(text, 1);
  }
  std::vector<std::string> parts;
  for (const auto& [text, count] : same) parts.push_back(text + (count > 1 ? " x" + std::to_string(count) : ""));
  if (!table.other_counts.empty()) parts.push_back("others " + counts_of(table.other_counts));
  if (!table.elsewhere.empty()) parts.push_back("unknown");
  return words("mbarriers", parts, std::move(evidence));
}

std::string threads_of(const NamedBarrier& barrier) {
  return barrier.threads == NamedBarrier::all ? "all" : barrier.threads < 0 ? "?" : std::to_string(barrier.threads);
}
std::string id_of(const NamedBarrier& barrier) { return barrier.id < 0 ? "?" : std::to_string(barrier.id); }

// "1: 256 x 2": barrier 1, for 256 threads, at two places; "+ 1": and at one that only arrives.
Figure named_figure(const Handovers& table) {
  std::vector<std::string> parts;
  std::vector<int> evidence;
  for (const NamedBarrier& barrier : table.named) {
    parts.push_back(id_of(barrier) + ": " + threads_of(barrier) + " x " + std::to_string(barrier.syncs.size()) +
                    (barrier.arrivals.empty() ? "" : " + " + std::to_string(barrier.arrivals.size())));
    append(evidence, barrier.syncs);
    append(evidence, barrier.arrivals);
  }
  return words("named_barriers", parts, std::move(evidence));
}

// How many groups a wait leaves; "c": it waits until they are done, not only until they are read.
std::string wait_of(const Kernel& kernel, int i) {
  const Instruction& wait = kernel.listing.code[static_cast<size_t>(i)];
  const long left = std::strtol(wait.operands.back().c_str(), nullptr, 0);
  return std::to_string(left) + (std::ranges::count(kernel.handovers.complete_waits, i) ? "c" : "");
}

// "3 acquires"
void say(std::vector<std::string>& parts, const std::vector<int>& list, const std::string& what) {
  if (!list.empty()) parts.push_back(std::to_string(list.size()) + " " + what + (list.size() > 1 ? "s" : ""));
}

// Where instructions stand: scopes, or the GEMMs of loops, each with a number; and whether all lanes execute them.
std::string places(const Kernel& kernel, const std::vector<int>& instructions, bool with_lanes = true) {
  std::vector<std::pair<std::string, int>> counts;
  for (int i : instructions) {
    std::string place = "code that is not reached";
    for (size_t b = 0; b < kernel.cfg.blocks.size(); ++b) {
      const Block& block = kernel.cfg.blocks[b];
      if (i < block.begin || i >= block.end) continue;
      place = kernel.protocol.scope[b];
      for (const WgmmaLoop& loop : kernel.loops)
        if (kernel.cfg.loops[static_cast<size_t>(loop.loop)].contains(static_cast<int>(b)))
          place = (loop.hot ? "loop " : "boundary loop ") + loop.role;
    }
    if (with_lanes && !kernel.protocol.one_lane[static_cast<size_t>(i)]) place += " by all lanes";
    const auto known = std::ranges::find(counts, place, &std::pair<std::string, int>::first);
    if (known != counts.end()) ++known->second;
    else counts.emplace_back(place, 1);
  }
  std::vector<std::string> parts;
  for (const auto& [place, count] : counts) parts.push_back(place + (count > 1 ? " x " + std::to_string(count) : ""));
  return join(parts, ", ");
}

// Of waits it is no news that all lanes do.
std::string waiters(const Kernel& kernel, const std::vector<int>& instructions) {
  return places(kernel, instructions, false);
}

std::string parities_of(const Kernel& kernel, const Mbarrier& barrier) {
  std::set<std::string> first;
  for (int parity : barrier.parities) first.insert(parity < 0 ? "?" : std::to_string(parity));
  std::string text = "parity " + join(first, " or ") + " first";
  if (!barrier.steady.empty())
    text += barrier.steady.size() == barrier.waits.size()
                ? ", the same in every turn"
                : ", at " + std::to_string(barrier.steady.size()) + " places the same in every turn";
  std::vector<int> flipping = barrier.waits;
  std::erase_if(flipping, [&](int i) {
    return std::ranges::count(barrier.steady, i) > 0 || !outermost_loop(kernel.listing, kernel.cfg, i);
  });
  if (flipping.size() == barrier.waits.size()) text += ", flips with turns";
  else if (!flipping.empty()) text += ", flips with turns of " + waiters(kernel, flipping);
  return text;
}

// Where tensor maps are fetched ahead by which nothing is loaded or stored; none if some loads' maps are not known.
std::vector<int> only_fetched(const Kernel& kernel) {
  std::vector<int> result;
  const auto fetches = [&](int i) { return kernel.listing.code[static_cast<size_t>(i)].is("UTMACCTL"); };
  for (const auto& [place, uses] : kernel.handovers.tensor_maps) {
    if (place == 0) return {};
    if (std::ranges::all_of(uses, fetches)) append(result, uses);
  }
  return result;
}

void line(std::string& text, const std::string& what, const std::string& content) {
  if (!content.empty()) text += "      " + what + ": " + content + "\n";
}

}  // namespace

std::vector<Figure> handover_figures(const Kernel& kernel) {
  const Handovers& table = kernel.handovers;
  std::vector<Figure> figures;
  figures.push_back(count_figure("never_awaited", table.never_awaited));
  figures.push_back(count_figure("unexpected_loads", table.unexpected_loads));
  figures.push_back(count_figure("never_loaded", table.never_loaded));
  figures.push_back(count_figure("parity_never_flips", table.parity_never_flips));
  figures.push_back(count_figure("waits_left_out", table.left_out));
  figures.push_back(count_figure("odd_counts", table.odd_counts));
  figures.push_back(count_figure("odd_named_barriers", table.odd_named));
  figures.push_back(count_figure("never_read_out", table.never_read_out));
  figures.push_back(count_figure("released_in_flight", table.released_in_flight));

  figures.push_back(mbarriers_figure(table));
  std::set<std::uint32_t> counts = table.other_counts;
  std::vector<int> inits, steady;
  for (const Mbarrier& barrier : table.mbarriers) {
    counts.insert(barrier.counts.begin(), barrier.counts.end());
    append(inits, barrier.inits);
    append(steady, barrier.steady);
  }
  figures.push_back(words("mbarrier_counts", {counts_of(counts)}, std::move(inits)));
  figures.push_back(count_figure("steady_waits", steady));
  figures.push_back(named_figure(table));

  std::vector<std::string> parts;
  say(parts, table.bulk_commits, "commit");
  std::string waits;
  for (int i : table.bulk_waits) waits += " " + wait_of(kernel, i);
  if (!waits.empty()) parts.push_back("waits" + waits);
  std::vector<int> evidence = table.bulk_commits;
  append(evidence, table.bulk_waits);
  figures.push_back(words("bulk_groups", parts, std::move(evidence)));

  parts.clear();
  say(parts, table.acquires, "acquire");
  say(parts, table.releases, "release");
  say(parts, table.memory_fences, "memory fence");
  say(parts, table.proxy_fences, "proxy fence");
  evidence = table.acquires;
  for (const std::vector<int>* list : {&table.releases, &table.memory_fences, &table.proxy_fences})
    append(evidence, *list);
  figures.push_back(words("semaphores", parts, std::move(evidence)));

  parts.clear();
  evidence.clear();
  for (const auto& [place, uses] : table.tensor_maps) {
    parts.push_back(place == 0 ? "?" : hex(place));
    append(evidence, uses);
  }
  figures.push_back(words("tensor_maps", parts, std::move(evidence)));
  figures.push_back(count_figure("maps_only_fetched", only_fetched(kernel)));

  parts.clear();
  say(parts, table.grid_waits, "wait");
  say(parts, table.grid_launches, "launch");
  if (table.grid_launches.size() > 1) parts.back() = std::to_string(table.grid_launches.size()) + " launches";
  evidence = table.grid_waits;
  append(evidence, table.grid_launches);
  figures.push_back(words("grid_dependency", parts, std::move(evidence)));
  return figures;
}

Figure handovers_in(const Kernel& kernel, const std::vector<int>& blocks) {
  const auto inside = [&](int i) {
    return std::ranges::any_of(blocks, [&](int b) {
      const Block& block = kernel.cfg.blocks[static_cast<size_t>(b)];
      return block.begin <= i && i < block.end;
    });
  };
  std::vector<std::string> parts;
  std::vector<int> evidence;
  for (size_t m = 0; m < kernel.handovers.mbarriers.size(); ++m) {
    std::string text;
    for (size_t u = 0; u < uses_of(kernel.handovers.mbarriers[m]).size(); ++u) {
      std::vector<int> used = *uses_of(kernel.handovers.mbarriers[m])[u];
      std::erase_if(used, [&](int i) { return !inside(i); });
      if (!used.empty()) text += letters[u];
      if (used.size() > 1) text += std::to_string(used.size());
      append(evidence, used);
    }
    if (!text.empty()) parts.push_back(std::to_string(m) + text);
  }
  Figure figure = words("handovers", {}, std::move(evidence));
  if (!parts.empty()) figure.text = join(parts, " ");
  return figure;
}

std::string handover_text(const Kernel& kernel) {
  const Handovers& table = kernel.handovers;
  std::string text;
  for (const Mbarrier& barrier : table.mbarriers) {
    text += "  mbarrier at " + hex(barrier.address) + ", counts to " + counts_of(barrier.counts) + "\n";
    line(text, "arrive", places(kernel, barrier.arrivals));
    line(text, "announce what cp.async copies", places(kernel, barrier.announcements));
    line(text, "expect " + join(barrier.bytes, " or ") + " bytes", places(kernel, barrier.expectations));
    line(text, "TMA loads end here", waiters(kernel, barrier.loads));
    line(text, "wait (" + parities_of(kernel, barrier) + ")", waiters(kernel, barrier.waits));
  }
  if (!table.other_counts.empty())
    text += "  mbarriers that are made in a loop, or not used: count to " + counts_of(table.other_counts) + "\n";
  line(text, "uses of mbarriers whose address is not known", waiters(kernel, table.elsewhere));
  for (const NamedBarrier& barrier : table.named) {
    text += "  barrier " + id_of(barrier) + " for " + threads_of(barrier) + " threads\n";
    line(text, "meet", waiters(kernel, barrier.syncs));
    line(text, "arrive", waiters(kernel, barrier.arrivals));
  }
  if (!table.bulk_commits.empty()) text += "  groups of bulk copies\n";
  line(text, "commit", waiters(kernel, table.bulk_commits));
  for (int i : table.bulk_waits) {
    const std::string left = wait_of(kernel, i);
    line(text, "wait until " + left.substr(0, left.find('c')) + " are not " + (left.ends_with('c') ? "done" : "read"),
         waiters(kernel, {i}));
  }
  if (!table.acquires.empty() || !table.releases.empty()) text += "  semaphores in memory\n";
  line(text, "acquire", waiters(kernel, table.acquires));
  line(text, "release", waiters(kernel, table.releases));
  for (const auto& [place, uses] : table.tensor_maps) {
    text += "  tensor map at " + (place == 0 ? "an address that is not known" : "parameter byte " + hex(place)) + "\n";
    line(text, "used", waiters(kernel, uses));
  }
  if (!table.grid_waits.empty() || !table.grid_launches.empty()) text += "  other grids\n";
  line(text, "wait for the one before", waiters(kernel, table.grid_waits));
  line(text, "let the next one begin", waiters(kernel, table.grid_launches));
  return text.empty() ? "" : "hand-overs\n" + text;
}

}  // namespace sass
