#include "steady.h"

#include <algorithm>
#include <set>
#include <vector>

#include "../listing/kinds.h"
#include "../system/text.h"

namespace sass {
namespace {

// Results that depend on the operands alone, or on the thread's place in the grid.
bool is_pure(const Instruction& i) {
  static const char* const names[] = {"MOV",  "UMOV",   "IMAD", "UIMAD", "IADD3", "UIADD3", "VIADD", "LOP3", "ULOP3",
                                      "SHF",  "USHF",   "LEA",  "ULEA",  "PRMT",  "UPRMT",  "R2UR",  "S2R",  "S2UR",
                                      "CS2R", "HFMA2", "LDC",  "ULDC"};
  return std::ranges::any_of(names, [&](const char* name) { return i.is(name); });
}

class Slice {
 public:
  Slice(const Listing& listing, const Cfg& cfg, const Loop& loop) : listing_(listing), cfg_(cfg), loop_(loop) {}

  bool steady(int block, int i, const Operand& operand) {
    if (!operand.is_register()) return operand.kind == Operand::Kind::number;
    std::set<int> definitions;
    bool at_header = false;
    find(block, i, operand, definitions, at_header);
    if (definitions.empty()) return true;
    const int definition = *definitions.begin();
    const Instruction& made = listing_.code[static_cast<size_t>(definition)];
    // Made further on in the turn before, or in one of several ways: not surely the same.
    if (definitions.size() > 1 || at_header || !made.guard.empty() || !is_pure(made)) return false;
    if (!under_way_.insert(definition).second) return false;
    bool result = true;
    bool first = true;
    for (const std::string& text : made.operands) {
      const Operand source = operand_of(text);
      if (first) {
        first = source.is_predicate();
        continue;
      }
      if (source.is_predicate()) result &= source.index == true_predicate;
      else if (source.is_register()) result &= steady(block_of(definition), definition, source);
      else if (text.starts_with("c[")) result &= text.find('R') == std::string::npos;
    }
    under_way_.erase(definition);
    return result;
  }

  int block_of(int i) const {
    for (int b : loop_.blocks)
      if (cfg_.blocks[static_cast<size_t>(b)].begin <= i && i < cfg_.blocks[static_cast<size_t>(b)].end) return b;
    return -1;
  }

 private:
  // What writes the register last before instruction i, on any way within the loop.
  void find(int block, int i, const Operand& wanted, std::set<int>& definitions, bool& at_header) const {
    std::set<int> seen;
    std::vector<std::pair<int, int>> work{{block, i}};
    while (!work.empty()) {
      const auto [b, before] = work.back();
      work.pop_back();
      const Block& visited = cfg_.blocks[static_cast<size_t>(b)];
      bool found = false;
      for (int k = before - 1; k >= visited.begin && !found; --k)
        if (writes(listing_.code[static_cast<size_t>(k)], wanted)) {
          definitions.insert(k);
          found = true;
        }
      if (found) continue;
      at_header |= b == loop_.header;
      for (int p : visited.predecessors)
        if (loop_.contains(p) && seen.insert(p).second) work.emplace_back(p, cfg_.blocks[static_cast<size_t>(p)].end);
    }
  }

  const Listing& listing_;
  const Cfg& cfg_;
  const Loop& loop_;
  std::set<int> under_way_;
};

}  // namespace

bool writes(const Instruction& i, const Operand& wanted) {
  if (wanted.kind == Operand::Kind::lane_register) {
    const Registers written = destination(i);
    return written.count > 0 && written.first <= wanted.index && wanted.index < written.first + written.count;
  }
  const Operand* to = register_written(i);
  if (!to || to->kind != Operand::Kind::uniform_register) return false;
  const int count = i.has("64") || i.has("WIDE") ? 2 : 1;
  return to->index <= wanted.index && wanted.index < to->index + count;
}

bool may_write(const Instruction& i, const Operand& wanted) {
  if (wanted.is_register()) return writes(i, wanted);
  if (i.is("BRA") || i.is("EXIT") || i.operands.empty()) return false;
  if (i.is("R2P")) return wanted.kind == Operand::Kind::predicate;
  const std::vector<Operand>& x = operands_of(i);
  const auto names = [&](size_t k) { return k < x.size() && x[k].kind == wanted.kind && x[k].index == wanted.index; };
  if (names(0)) return true;
  const bool first = x[0].is_predicate();
  if ((i.is("VOTE") || i.is("VOTEU")) && first) return false;
  return names(1) || (!first && x.size() > 1 && x[1].is_predicate() && names(2));
}

const Loop* outermost_loop(const Listing& listing, const Cfg& cfg, int instruction) {
  for (const Loop& loop : cfg.loops) {
    bool inside = false, works = false;
    for (int b : loop.blocks) {
      const Block& block = cfg.blocks[static_cast<size_t>(b)];
      inside |= block.begin <= instruction && instruction < block.end;
      for (int i = block.begin; i < block.end && !works; ++i) {
        const Kind kind = kind_of(listing.code[static_cast<size_t>(i)]);
        works = kind == Kind::wgmma || kind == Kind::mbarrier_arrive || kind == Kind::tma_load ||
                kind == Kind::tma_store || kind == Kind::barrier;
      }
    }
    if (inside && works) return &loop;
  }
  return nullptr;
}

bool is_steady(const Listing& listing, const Cfg& cfg, const Loop& loop, int instruction, std::string_view operand) {
  Slice slice(listing, cfg, loop);
  const int block = slice.block_of(instruction);
  for (std::string_view part : split(operand, '+'))
    if (!slice.steady(block, instruction, operand_of(part))) return false;
  return true;
}

}  // namespace sass
