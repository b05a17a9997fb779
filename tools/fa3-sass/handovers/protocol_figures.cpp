// The protocol between warps as figures, for rules and for JSON.
#include "protocol.h"

#include <algorithm>
#include <map>
#include <set>

#include "../dataflow/repeated.h"
#include "../dataflow/spins.h"
#include "../dataflow/steady.h"
#include "../dataflow/values.h"
#include "../listing/kinds.h"
#include "../listing/operands.h"
#include "../listing/sync.h"
#include "../loops/kernel.h"

namespace sass {
namespace {

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
  const std::vector<int> executed = where(kernel, blocks, waits_for_mbarrier);
  for (size_t w = 0; w < protocol.waits.size(); ++w) {
    if (!std::ranges::binary_search(executed, protocol.waits[w])) continue;
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
//
// A ring may be read in unrolled turns, [UR7+0x282e0] and [UR7+0x282e8], while those who arrive add an index to the
// constant of the first mbarrier. So an arrival whose address differs from turn to turn counts for the mbarriers
// behind its constant, too, as far as the wait has copies at each of them, of the same register, and with one parity or
// at mbarriers that count to as many arrivals.
std::vector<int> never_arrived(const Kernel& kernel, const std::vector<int>& waits, const std::vector<int>& arriving) {
  constexpr std::uint32_t largest_array = 1024;
  const auto offset = [&](int i) { return offset_of(kernel.listing.code[static_cast<size_t>(i)]); };
  struct Address {
    std::uint32_t folded, whole;
    bool same(const Address& other) const {
      return folded == other.folded || whole == other.whole || folded == other.whole || whole == other.folded;
    }
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
  // Of waits with the same constant, some of whose addresses are not known, one tells for all.
  std::set<int> arrived_at;
  std::set<std::uint32_t> arrays;
  std::map<int, std::uint32_t> base;  // what is added to the constants of waits
  for (size_t u = 0; u < left.size(); ++u) {
    base[left[u]] = awaited[u].whole - offset(left[u]);
    if (std::ranges::none_of(arrivals, [&](const Address& arrival) { return arrival.same(awaited[u]); })) continue;
    arrived_at.insert(left[u]);
    if (offset(left[u]) != 0) arrays.insert(offset(left[u]));
  }
  std::erase_if(left, [&](int i) { return arrived_at.count(i) > 0 || arrays.count(offset(i)) > 0; });

  const auto code = [&](int i) -> const Instruction& { return kernel.listing.code[static_cast<size_t>(i)]; };
  const auto without_constant = [&](int i) {
    const std::string_view address = address_operand(code(i));
    return address.substr(0, address.rfind('+'));
  };
  std::set<std::uint32_t> rings;
  for (size_t u = 0; u < arriving.size() && !left.empty(); ++u) {
    const Loop* loop = outermost_loop(kernel.listing, kernel.cfg, arriving[u]);
    if (addresses[u].runtime ||
        (loop && !is_steady(kernel.listing, kernel.cfg, *loop, arriving[u], address_operand(code(arriving[u])))))
      rings.insert({arrivals[u].whole, offset(arriving[u])});
  }
  const auto counts_at = [&](std::uint32_t address) {
    const auto found = std::ranges::find(kernel.handovers.mbarriers, address, &Mbarrier::address);
    return found == kernel.handovers.mbarriers.end() ? std::set<std::uint32_t>() : found->counts;
  };
  const auto has_copy_at = [&](std::uint32_t place, int wait) {
    const std::set<std::uint32_t> counts = counts_at(place + base[wait]);
    const bool counts_alike = counts.size() == 1 && counts == counts_at(offset(wait) + base[wait]);
    return std::ranges::any_of(waits, [&](int other) {
      return offset(other) == place && without_constant(other) == without_constant(wait) &&
             (counts_alike || last_operand(code(other)) == last_operand(code(wait)));
    });
  };
  std::erase_if(left, [&](int i) {
    constexpr std::uint32_t mbarrier = 8;
    for (std::uint32_t place = offset(i); place > mbarrier; place -= mbarrier) {
      if (!has_copy_at(place, i)) return false;
      if (rings.count(place) || rings.count(place + base[i])) return true;
    }
    return false;
  });
  return left;
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
    int count = best[rank];
    for (int i = block.begin; i < block.end; ++i) count += wanted(kernel.listing.code[static_cast<size_t>(i)]);
    for (int next : block.successors) {
      if (!loop.contains(next)) continue;
      const int to = kernel.cfg.rank[static_cast<size_t>(next)];
      if (next == loop.header) whole = std::max(whole, count);
      else if (to > rank) best[to] = best.count(to) ? std::max(best[to], count) : count;
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
      std::string step_operands;
      if (at(step).text.find(".tnspA") != std::string::npos) step_operands += "A";
      if (at(step).text.find(".tnspB") != std::string::npos) step_operands += "B";
      if (step == gemm.steps.front()) operands = step_operands;
      else if (step_operands != operands) operands = "in some steps";
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
