#include "protocol.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernel.h"
#include "kinds.h"
#include "lanes.h"
#include "operands.h"
#include "repeated.h"
#include "sync.h"
#include "text.h"
#include "values.h"

namespace sass {
namespace {

// The constant part of an address in shared memory: arrays of mbarriers have one each. "[R4+UR39+0x38000]" -> 0x38000
std::uint32_t offset_of(const Instruction& i) {
  for (const std::string& operand : i.operands) {
    if (operand.empty() || operand[0] != '[') continue;
    const std::vector<std::string_view> parts = split(std::string_view(operand).substr(1, operand.size() - 2), '+');
    const Operand last = operand_of(parts.back());
    return last.kind == Operand::Kind::number ? last.value : 0;
  }
  return 0;
}

class Follower {
 public:
  explicit Follower(const Kernel& kernel) : kernel_(kernel), listing_(kernel.listing), cfg_(kernel.cfg) {}

  Protocol run() {
    result_.one_lane = by_one_lane(listing_, cfg_);
    find_scopes();
    find_groups();
    find_waits();
    find_unfenced();
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

  // The block that a wait leads to as long as the barrier's phase is not over; -1 if the wait's result decides nothing.
  int not_yet(int wait, int b) const {
    const Operand result = operand_of(code(wait).operands.front());
    const int end = block(b).end - 1;
    for (int i = wait + 1; i < end; ++i)
      for (size_t k = 0; k < 2 && k < code(i).operands.size(); ++k) {
        const Operand written = operand_of(code(i).operands[k]);
        if (written.kind == result.kind && written.index == result.index && !code(i).is("BAR")) return -1;
      }
    return end == wait ? -1 : way_if_not(result, b);
  }

  // Where a block's last branch leads if the predicate is false; -1 if it does not depend on it.
  int way_if_not(const Operand& result, int b) const {
    const Instruction& last = code(block(b).end - 1);
    const Operand guard = guard_of(last);
    if (guard.index != result.index || guard.kind != result.kind) return -1;
    // The phase is over, and so is the thread: then what follows is the way of those that wait.
    if (last.is("EXIT") && !guard.inverted && block(b).successors.size() == 1) return block(b).successors.front();
    if (!last.is("BRA")) return -1;
    for (int next : block(b).successors) {
      const bool target = std::ranges::count(last.targets, block(next).begin) > 0;
      if (target == guard.inverted) return next;
    }
    return -1;
  }

  int wait_in(int b) const {
    for (int i = block(b).end - 1; i >= block(b).begin; --i)
      if (waits_for_mbarrier(code(i))) return i;
    return -1;
  }

  // Does the wait come back to itself, or to a copy of itself, until the phase is over?
  bool spins(int wait, int b, std::set<int>& copies) const {
    return not_yet(wait, b) < 0 ? is_peek(wait, b, copies) : comes_back(wait, b, copies);
  }

  // A look at a barrier ahead of time, whose result is kept: where it is tested, "not yet" leads to a wait that spins;
  // or it goes into other instructions, and is not followed. Where it is tested nowhere, nobody waits.
  bool is_peek(int wait, int b, std::set<int>& copies) const {
    const Operand result = operand_of(code(wait).operands.front());
    std::set<int> seen;
    std::vector<std::pair<int, int>> work{{b, wait + 1}};
    bool tested = false;
    if (result.index == true_predicate) return false;  // the result is thrown away
    while (!work.empty()) {
      const auto [at, from] = work.back();
      work.pop_back();
      bool lost = false;
      for (int i = from; i < block(at).end && !lost; ++i) {
        const auto same = [&](const Operand& x) { return x.kind == result.kind && x.index == result.index; };
        const std::vector<Operand> x = operands_of(code(i));
        const bool ends = i == block(at).end - 1, branch = ends && (code(i).is("BRA") || code(i).is("EXIT"));
        const bool reads = std::ranges::any_of(x.begin() + (branch ? 0 : std::min<std::ptrdiff_t>(2, std::ssize(x))),
                                               x.end(), same);
        if (reads || code(i).is("P2R")) return true;
        if (same(guard_of(code(i)))) {
          if (!branch) return true;
          const int next = way_if_not(result, at);
          if (next < 0 || !comes_back(wait, next, copies)) return false;
          tested = lost = true;
        }
        lost |= !branch && std::any_of(x.begin(), x.begin() + std::min<std::ptrdiff_t>(2, std::ssize(x)), same);
      }
      for (int next : block(at).successors)
        if (!lost && seen.insert(next).second) work.push_back({next, block(next).begin});
    }
    return tested;
  }

  bool comes_back(int wait, int b, std::set<int>& copies) const {
    std::set<int> seen;
    const std::uint32_t barrier = offset_of(code(wait));
    while (seen.insert(b).second) {
      const int here = wait_in(b);
      if (here < 0) {  // on the way back
        if (block(b).successors.size() != 1) return false;
        b = block(b).successors.front();
        continue;
      }
      if (offset_of(code(here)) != barrier) return false;
      if (here != wait) copies.insert(here);
      b = not_yet(here, b);
      if (b < 0) return false;
    }
    return true;
  }

  void find_waits() {
    std::vector<int> all;
    std::set<int> copies;
    for (int b : cfg_.order)
      for (int i = block(b).begin; i < block(b).end; ++i)
        if (waits_for_mbarrier(code(i))) {
          all.push_back(i);
          if (!spins(i, b, copies)) result_.no_spin.push_back(i);
        }
    std::ranges::sort(all);
    std::ranges::sort(result_.no_spin);
    // A loop that spins on its own has no other wait that leads to it.
    for (int wait : all)
      if (!copies.count(wait)) result_.waits.push_back(wait);
    for (const Values& parity : operand_values(listing_, cfg_, result_.waits, last_operand, Meeting::unknown))
      result_.parities.push_back(parity.count == 1 ? parity.values[0] != 0 : -1);
  }

  // On any way to an instruction: shared memory that was written, by stmatrix or not, and mbarriers that were
  // initialised, with no fence since. `fresh` are those barriers until a fence, `initialised` also until a barrier of
  // the thread block. `own` are stores until a wait for an mbarrier: behind it, TMA stores what other threads handed
  // over.
  struct Dirty {
    bool stored = false, own = false, by_matrix = false, initialised = false, fresh = false;
    bool operator==(const Dirty&) const = default;
  };

  void step(Dirty& dirty, int i, bool note) {
    const Instruction& instruction = code(i);
    const bool store = tma_store(instruction), load = tma_load(instruction);
    const bool fault = (store && dirty.stored) || (only_arrives(instruction) && dirty.by_matrix) ||
                       (instruction.is("BAR") && dirty.initialised);
    if (fault && note) result_.unfenced.push_back(i);
    // Another thread may fence a barrier of the thread block later: what counts is TMA that arrives there.
    if (((store && dirty.own) || (load && dirty.fresh)) && note) result_.unfenced_tma.push_back(i);
    // What one lane writes is a message to other warps, not a tile.
    if (instruction.is("STSM") || (instruction.is("STS") && !result_.one_lane[static_cast<size_t>(i)]))
      dirty.stored = dirty.own = true;
    if (waits_for_mbarrier(instruction)) dirty.own = false;
    if (instruction.is("STSM")) dirty.by_matrix = true;
    if (proxy_fence(instruction)) dirty = {};
    if (instruction.is("BAR")) dirty.initialised = false;
    if (initialises_mbarrier(instruction)) dirty.initialised = dirty.fresh = true;
    if (instruction.is("NOP")) dirty.initialised = dirty.fresh = false;  // all that ptxas leaves of fence.mbarrier_init
  }

  void find_unfenced() {
    std::vector<Dirty> entry(cfg_.blocks.size());
    for (bool changed = true; changed;) {
      changed = false;
      for (int b : cfg_.order) {
        Dirty dirty = entry[static_cast<size_t>(b)];
        for (int i = block(b).begin; i < block(b).end; ++i) step(dirty, i, false);
        for (int next : block(b).successors) {
          Dirty& to = entry[static_cast<size_t>(next)];
          const Dirty joined{to.stored || dirty.stored, to.own || dirty.own, to.by_matrix || dirty.by_matrix,
                             to.initialised || dirty.initialised, to.fresh || dirty.fresh};
          changed |= joined != to;
          to = joined;
        }
      }
    }
    for (int b : cfg_.order) {
      Dirty dirty = entry[static_cast<size_t>(b)];
      for (int i = block(b).begin; i < block(b).end; ++i) step(dirty, i, true);
    }
    std::ranges::sort(result_.unfenced);
    std::ranges::sort(result_.unfenced_tma);
  }

  const Kernel& kernel_;
  const Listing& listing_;
  const Cfg& cfg_;
  Protocol result_;
};

Figure count(const char* name, std::vector<int> evidence) {
  const double value = static_cast<double>(evidence.size());
  return {name, false, value, {}, std::move(evidence), false};
}
Figure number_figure(const char* name, double value, std::vector<int> evidence = {}) {
  return {name, false, value, {}, std::move(evidence), false};
}
Figure words(const char* name, const std::vector<std::string>& parts, std::vector<int> evidence = {},
             const char* between = " ") {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return {name, true, 0, text.empty() ? "none" : text, std::move(evidence), false};
}

// The instructions of some blocks, in program order, for which `wanted` holds.
template <typename Wanted>
std::vector<int> where(const Kernel& kernel, const std::vector<int>& blocks, Wanted wanted) {
  std::vector<int> found;
  for (int b : blocks) {
    const Block& block = kernel.cfg.blocks[static_cast<size_t>(b)];
    for (int i = block.begin; i < block.end; ++i)
      if (wanted(kernel.listing.code[static_cast<size_t>(i)])) found.push_back(i);
  }
  std::ranges::sort(found);
  return found;
}

std::vector<int> reachable_blocks(const Kernel& kernel) {
  std::vector<int> blocks = kernel.cfg.order;
  std::ranges::sort(blocks);
  return blocks;
}

Figure parities(const Kernel& kernel, const std::vector<int>& blocks) {
  const Protocol& protocol = kernel.protocol;
  std::vector<int> waits;
  std::vector<std::string> parts;
  const std::vector<int> here = where(kernel, blocks, waits_for_mbarrier);
  for (size_t w = 0; w < protocol.waits.size(); ++w) {
    if (!std::ranges::binary_search(here, protocol.waits[w])) continue;
    waits.push_back(protocol.waits[w]);
    parts.push_back(protocol.parities[w] < 0 ? "?" : std::to_string(protocol.parities[w]));
  }
  return words("parities", parts, std::move(waits));
}

// For each arrival at an mbarrier, the WGMMA groups in flight there.
Figure releases(const Kernel& kernel, const std::vector<int>& blocks) {
  const std::vector<int> found = where(kernel, blocks, only_arrives);
  std::vector<std::string> parts;
  for (int i : found) parts.push_back(std::to_string(kernel.protocol.in_flight[static_cast<size_t>(i)]));
  return words("releases", parts, found);
}

Figure conversions(const Kernel& kernel, const std::vector<int>& instructions) {
  std::set<std::string> types;
  std::vector<int> found;
  for (int i : instructions) {
    const std::string& opcode = kernel.listing.code[static_cast<size_t>(i)].opcode;
    const size_t end = opcode.find(".PACK_AB");
    if (!opcode.starts_with("F2FP.") || end == std::string::npos) continue;
    types.insert(opcode.substr(5, end - 5));
    found.push_back(i);
  }
  return words("conversion_types", {types.begin(), types.end()}, std::move(found));
}

// The waits for barriers at which nothing arrives. A barrier, or array of barriers, is known by the constant part of
// its addresses; or, where the compiler puts a part of that into a register, by that and what of the register is more
// than an index. An arrival with no constant of its own, at an address that also depends on what is not known, may be
// at any of them: then nothing can be said. ptxas may split the same address in two ways, so the whole of what is known
// of it counts, too.
std::vector<int> never_arrived(const Kernel& kernel, const std::vector<int>& waits, const std::vector<int>& arriving) {
  constexpr std::uint32_t largest_array = 1024;
  const auto offset = [&](int i) { return offset_of(kernel.listing.code[static_cast<size_t>(i)]); };
  struct Address {
    std::uint32_t folded, whole;
    bool same(const Address& other) const { return folded == other.folded || whole == other.whole; }
  };
  const auto addresses_of = [&](const std::vector<int>& uses) {
    std::vector<Address> result;
    const auto values = operand_values(kernel.listing, kernel.cfg, uses, address_operand, Meeting::unknown);
    for (size_t u = 0; u < uses.size(); ++u) {
      const std::uint32_t base = values[u].count == 1 ? values[u].values[0] - offset(uses[u]) : 0;
      result.push_back({offset(uses[u]) + base / largest_array * largest_array, offset(uses[u]) + base});
    }
    return result;
  };
  std::set<std::uint32_t> offsets;
  for (int i : arriving) offsets.insert(offset(i));
  std::vector<int> left;
  for (int i : waits)
    if (!offsets.count(offset(i))) left.push_back(i);
  if (left.empty()) return left;
  const auto addresses = operand_values(kernel.listing, kernel.cfg, arriving, address_operand, Meeting::unknown);
  for (size_t u = 0; u < arriving.size(); ++u)
    if (offset(arriving[u]) == 0 && addresses[u].runtime) return {};
  const std::vector<Address> arrivals = addresses_of(arriving), awaited = addresses_of(left);
  std::vector<int> result;
  for (size_t u = 0; u < left.size(); ++u)
    if (std::ranges::none_of(arrivals, [&](const Address& arrival) { return arrival.same(awaited[u]); }))
      result.push_back(left[u]);
  return result;
}

// The most of something on any way round a loop, once round each loop inside.
double most(const Kernel& kernel, const Loop& loop, bool (*wanted)(const Instruction&)) {
  std::map<int, int> best;  // by rank
  std::vector<int> ranks;
  for (int b : loop.blocks) ranks.push_back(kernel.cfg.rank[static_cast<size_t>(b)]);
  std::ranges::sort(ranks);
  best[kernel.cfg.rank[static_cast<size_t>(loop.header)]] = 0;
  int whole = 0;
  for (int rank : ranks) {
    if (!best.count(rank)) continue;
    const Block& block = kernel.cfg.blocks[static_cast<size_t>(kernel.cfg.order[static_cast<size_t>(rank)])];
    int here = best[rank];
    for (int i = block.begin; i < block.end; ++i) here += wanted(kernel.listing.code[static_cast<size_t>(i)]);
    for (int next : block.successors) {
      if (!loop.contains(next)) continue;
      const int to = kernel.cfg.rank[static_cast<size_t>(next)];
      if (next == loop.header) whole = std::max(whole, here);
      else if (to > rank) best[to] = best.count(to) ? std::max(best[to], here) : here;
    }
  }
  return whole;
}

// Whether a GEMM's first WGMMA starts from zero, adds, or does what a predicate says.
std::string start_of(const Instruction& wgmma) {
  for (const std::string& text : wgmma.operands) {
    const Operand operand = operand_of(text);
    if (!operand.is_predicate()) continue;
    if (operand.index != true_predicate) return "overwrites or adds";
    if (operand.inverted) return "overwrites";
  }
  return "adds";
}

std::vector<std::string> by_gemm(const WgmmaLoop& loop, const std::vector<std::string>& what) {
  std::vector<std::string> result;
  for (size_t g = 0; g < what.size(); ++g) {
    const std::string entry = loop.turn.gemms[g].name + (what[g].empty() ? "" : " ") + what[g];
    if (!what[g].empty() && !std::ranges::count(result, entry)) result.push_back(entry);
  }
  std::ranges::sort(result);
  return result;
}

}  // namespace

const std::vector<std::string>& scopes() {
  static const std::vector<std::string> names{"prologue", "epilogue", "producer"};
  return names;
}

Protocol protocol_of(const Kernel& kernel) { return Follower(kernel).run(); }

Figures protocol_figures(const Kernel& kernel) {
  const Protocol& protocol = kernel.protocol;
  const std::vector<int> blocks = reachable_blocks(kernel);
  const auto count_of = [&](const char* name, bool (*wanted)(const Instruction&)) {
    return count(name, where(kernel, blocks, wanted));
  };

  Figures figures;
  figures.push_back(count_of("tma_loads", tma_load));
  figures.push_back(count_of("tma_stores", tma_store));
  std::vector<int> many = where(kernel, blocks, [](const Instruction& i) { return tma_load(i) || tma_store(i); });
  std::erase_if(many, [&](int i) { return bool{protocol.one_lane[static_cast<size_t>(i)]}; });
  figures.push_back(count("tma_by_many", many));
  figures.push_back(count("tma_repeated", repeated_tma(kernel.listing, kernel.cfg, protocol.one_lane)));
  figures.push_back(count("mbarrier_waits", protocol.waits));
  figures.push_back(count_of("mbarrier_arrives", arrives));
  figures.push_back(count("waits_without_spin", protocol.no_spin));
  figures.push_back(count("unfenced", protocol.unfenced));
  figures.push_back(count("unfenced_tma", protocol.unfenced_tma));

  const std::vector<int> arriving =
      where(kernel, blocks, [](const Instruction& i) { return arrives(i) || i.is("ARRIVES"); });
  figures.push_back(count("never_arrived", never_arrived(kernel, protocol.waits, arriving)));

  const std::vector<int> expecting = where(kernel, blocks, expects_bytes);
  std::vector<std::string> bytes;
  for (const Values& values : operand_values(kernel.listing, kernel.cfg, expecting, last_operand, Meeting::all)) {
    std::string either;
    for (int k = 0; k < values.count; ++k) either += (either.empty() ? "" : "/") + std::to_string(values.values[k]);
    bytes.push_back(values.runtime ? "runtime" : either);
  }
  const std::set<std::string> different(bytes.begin(), bytes.end());  // a loop may be unrolled
  figures.push_back(words("expected_bytes", {different.begin(), different.end()}, expecting, ", "));
  return figures;
}

Figures protocol_figures(const Kernel& kernel, const WgmmaLoop& loop) {
  const Protocol& protocol = kernel.protocol;
  const Turn& turn = loop.turn;
  Figures figures;
  const Loop none;
  const Loop& whole = kernel.cfg.loops.empty() ? none : kernel.cfg.loops[static_cast<size_t>(loop.loop)];
  figures.push_back(releases(kernel, whole.blocks));
  std::vector<int> many = where(kernel, whole.blocks, arrives);
  std::erase_if(many, [&](int i) { return bool{protocol.one_lane[static_cast<size_t>(i)]}; });
  figures.push_back(count("arrives_by_many", many));
  figures.push_back(parities(kernel, loop.path));
  const auto masks = [](const Instruction& i) { return kind_of(i) == Kind::mask; };
  figures.push_back(count("masks_anywhere", where(kernel, whole.blocks, masks)));
  const auto longest = [&](const char* name, bool (*wanted)(const Instruction&)) {
    figures.push_back(number_figure(name, whole.blocks.empty() ? 0 : most(kernel, whole, wanted)));
  };
  longest("longest_instructions", [](const Instruction&) { return true; });
  longest("most_exps", [](const Instruction& i) { return kind_of(i) == Kind::exp; });
  longest("most_multiplies", [](const Instruction& i) { return kind_of(i) == Kind::multiply; });

  std::vector<int> compares;
  std::vector<std::string> how;
  for (int i : turn.code) {
    const Instruction& instruction = kernel.listing.code[static_cast<size_t>(i)];
    if (!instruction.is("FSETP") || instruction.operands.size() < 4) continue;
    const bool constant = !operand_of(instruction.operands[2]).is_register() ||
                          !operand_of(instruction.operands[3]).is_register();
    how.push_back(std::string(first_modifier(instruction)) + (constant ? " constant" : ""));
    compares.push_back(i);
  }
  figures.push_back(words("compares", how, compares, ", "));

  std::vector<int> wgmmas;
  std::vector<std::string> starts, transposed;
  for (const Gemm& gemm : turn.gemms) {
    const auto at = [&](int step) -> const Instruction& {
      return kernel.listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(step % turn.size())])];
    };
    starts.push_back(start_of(at(gemm.steps.front())));
    std::string operands;
    for (int step : gemm.steps) {
      wgmmas.push_back(turn.code[static_cast<size_t>(step % turn.size())]);
      std::string here;
      if (at(step).text.find(".tnspA") != std::string::npos) here += "A";
      if (at(step).text.find(".tnspB") != std::string::npos) here += "B";
      if (step == gemm.steps.front()) operands = here;
      else if (here != operands) operands = "in some steps";
    }
    transposed.push_back(operands);
  }
  figures.push_back(words("accumulators", by_gemm(loop, starts), wgmmas, ", "));
  figures.push_back(words("transposed", by_gemm(loop, transposed), wgmmas, ", "));
  figures.push_back(conversions(kernel, turn.code));
  return figures;
}

Figures scope_figures(const Kernel& kernel, const std::string& scope) {
  const Protocol& protocol = kernel.protocol;
  std::vector<int> blocks;
  for (int b : reachable_blocks(kernel))
    if (protocol.scope[static_cast<size_t>(b)] == scope) blocks.push_back(b);
  const auto count_of = [&](const char* name, auto wanted) { return count(name, where(kernel, blocks, wanted)); };

  Figures figures;
  const std::vector<int> all = where(kernel, blocks, [](const Instruction&) { return true; });
  figures.push_back(number_figure("instructions", static_cast<double>(all.size())));
  figures.push_back(count_of("wgmmas", is_wgmma));
  const std::vector<int> waiting =
      where(kernel, blocks, [](const Instruction& i) { return kind_of(i) == Kind::wait; });
  std::vector<std::string> counts;
  for (int i : waiting) counts.push_back(std::to_string(wait_count(kernel.listing.code[static_cast<size_t>(i)])));
  figures.push_back(words("waits", counts, waiting));
  figures.push_back(count_of("exps", [](const Instruction& i) { return kind_of(i) == Kind::exp; }));
  figures.push_back(conversions(kernel, all));
  figures.push_back(count_of("tma_loads", tma_load));
  figures.push_back(count_of("tma_stores", tma_store));
  figures.push_back(count_of("fences", proxy_fence));
  Figure parity = parities(kernel, blocks);
  figures.push_back(count("mbarrier_waits", parity.evidence));
  figures.push_back(count_of("mbarrier_arrives", arrives));
  figures.push_back(std::move(parity));
  figures.push_back(releases(kernel, blocks));
  const std::vector<int> moves =
      where(kernel, blocks, [](const Instruction& i) { return i.is("USETMAXREG") && !i.operands.empty(); });
  std::set<std::string> budgets;
  for (int i : moves) {
    const Instruction& instruction = kernel.listing.code[static_cast<size_t>(i)];
    budgets.insert((instruction.has("TRY_ALLOC") ? "+" : "-") +
                   std::to_string(operand_of(instruction.operands.back()).value));
  }
  figures.push_back(words("setmaxnreg", {budgets.begin(), budgets.end()}, moves));
  return figures;
}

}  // namespace sass
