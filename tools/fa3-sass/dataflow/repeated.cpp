#include "repeated.h"

#include <algorithm>
#include <bitset>

#include "../listing/operands.h"

namespace sass {
namespace {

// What may differ from lane to lane: registers, and predicates behind them.
using Varying = std::bitset<256 + 8>;

bool is_tma(const Instruction& i) {
  return i.opcode.starts_with("UTMALDG") || i.opcode.starts_with("UTMASTG") || i.opcode.starts_with("UTMAREDG") ||
         i.opcode.starts_with("UBLK");
}

bool reads_varying(const Instruction& i, const Varying& varying) {
  for (const Registers& read : sources(i))
    for (int r = read.first; r < read.first + read.count && r < 256; ++r)
      if (varying[static_cast<size_t>(r)]) return true;
  const std::vector<Operand>& operands = operands_of(i);
  const auto varies = [&](const Operand& operand) {
    return operand.kind == Operand::Kind::predicate && varying[256 + static_cast<size_t>(operand.index)];
  };
  return varies(guard_of(i)) || std::ranges::any_of(operands, varies);
}

void step(Varying& varying, const Instruction& i) {
  bool result = reads_varying(i, varying);
  if (i.is("S2R"))
    result = i.operands.back().starts_with("SR_TID") || i.operands.back().starts_with("SR_LANE") ||
             i.operands.back().starts_with("SR_EQMASK") || i.operands.back().starts_with("SR_LT");
  if (i.is("ELECT")) result = true;
  if (i.is("VOTE")) result = false;  // the same in all lanes
  if (i.is("SHFL") && i.has("IDX")) result = false;
  const bool guarded = guard_of(i).index != true_predicate;
  const auto set = [&](size_t place) { varying[place] = result || (guarded && varying[place]); };
  const Registers written = destination(i);
  for (int r = written.first; r < written.first + written.count && r < 256; ++r) set(static_cast<size_t>(r));
  const std::vector<Operand>& x = operands_of(i);
  for (size_t k = 0; k < 2 && k < x.size() && !i.is("BRA") && !i.is("EXIT"); ++k)
    if (x[k].kind == Operand::Kind::predicate && x[k].index != true_predicate)
      set(256 + static_cast<size_t>(x[k].index));
}

// At the beginning of each block, on any way to it.
std::vector<Varying> varying_at(const Listing& listing, const Cfg& cfg) {
  std::vector<Varying> entry(cfg.blocks.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (const int block : cfg.order) {
      Varying varying = entry[static_cast<size_t>(block)];
      const Block& b = cfg.blocks[static_cast<size_t>(block)];
      for (int i = b.begin; i < b.end; ++i) step(varying, listing.code[static_cast<size_t>(i)]);
      for (const int next : b.successors) {
        const Varying joined = entry[static_cast<size_t>(next)] | varying;
        changed |= joined != entry[static_cast<size_t>(next)];
        entry[static_cast<size_t>(next)] = joined;
      }
    }
  }
  return entry;
}

}  // namespace

std::vector<int> repeated_tma(const Listing& listing, const Cfg& cfg, const std::vector<bool>& one_lane) {
  std::vector<int> found, blocks;  // where such loops are
  for (const int block : cfg.order) {
    const Block& b = cfg.blocks[static_cast<size_t>(block)];
    const Instruction& last = listing.code[static_cast<size_t>(b.end) - 1];
    if (!last.is("BRA") || !last.has("ANY") || std::ranges::count(b.successors, block) == 0) continue;
    bool elects = false, tma = false;
    for (int i = b.begin; i < b.end; ++i) {
      elects |= listing.code[static_cast<size_t>(i)].is("ELECT");
      tma |= is_tma(listing.code[static_cast<size_t>(i)]) && !one_lane[static_cast<size_t>(i)];
    }
    if (elects && tma) blocks.push_back(block);
  }
  if (blocks.empty()) return found;
  const std::vector<Varying> entry = varying_at(listing, cfg);
  for (const int block : blocks) {
    const Block& b = cfg.blocks[static_cast<size_t>(block)];
    Varying operands = entry[static_cast<size_t>(block)];
    for (size_t p = 256; p < operands.size(); ++p) operands[p] = false;  // which lane's turn it is
    bool meant = false;
    for (int i = b.begin; i < b.end; ++i) {
      const Instruction& instruction = listing.code[static_cast<size_t>(i)];
      meant |= instruction.is("R2UR") && reads_varying(instruction, operands);
    }
    for (int i = b.begin; i < b.end && !meant; ++i)
      if (is_tma(listing.code[static_cast<size_t>(i)])) found.push_back(i);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace sass
