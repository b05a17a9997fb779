#include "first_turn.h"

#include <algorithm>

#include "../listing/operands.h"
#include "values.h"

namespace sass {
namespace {

struct Comparison {
  int place = -1;  // of the instruction
  int block = 0;   // that ends with the branch
  Operand counter, number;
  int equal = -1;  // the block that follows where both are equal
};

bool same(const Operand& a, const Operand& b) { return a.kind == b.kind && a.index == b.index; }

// Of a comparison the operand that counts: the first one, or behind RZ, which stands there beside a uniform register.
size_t place_of_counter(const std::vector<Operand>& x) { return x[2].is_register() ? 2 : 3; }

// The comparison that says where the block's last branch goes; `place` is -1 if it is not one for equality with a
// number.
Comparison comparison_in(const Listing& listing, const Cfg& cfg, const Loop& loop, int block) {
  const Block& b = cfg.blocks[static_cast<size_t>(block)];
  const Instruction& last = listing.code[static_cast<size_t>(b.end) - 1];
  const Operand guard = guard_of(last);
  if (!last.is("BRA") || guard.index == true_predicate || b.successors.size() != 2 || last.operands.size() != 1 ||
      !loop.contains(b.successors[0]) || !loop.contains(b.successors[1]))
    return {};
  for (int i = b.end - 2; i >= b.begin; --i) {
    const Instruction& instruction = listing.code[static_cast<size_t>(i)];
    const std::vector<Operand>& x = operands_of(instruction);
    const bool writes = !x.empty() && (same(x[0], guard) || (x.size() > 1 && same(x[1], guard)));
    if (!writes) continue;
    const std::string_view how = first_modifier(instruction);
    const bool plain = (instruction.is("ISETP") || instruction.is("UISETP")) && instruction.has("AND") &&
                       x.size() > 4 && same(x[0], guard) && guard_of(instruction).index == true_predicate &&
                       x[4].index == true_predicate && !x[4].inverted && (how == "EQ" || how == "NE");
    if (!plain) return {};
    const size_t counter = place_of_counter(x);
    Comparison found{i, block, x[counter], x[5 - counter], -1};
    if (!found.counter.is_register() || found.number.kind != Operand::Kind::number) return {};
    for (const int next : b.successors) {
      const bool target = std::ranges::count(last.targets, cfg.blocks[static_cast<size_t>(next)].begin) > 0;
      const bool holds = target != guard.inverted;  // the predicate, on this way
      if (holds == (how == "EQ")) found.equal = next;
    }
    return found.equal >= 0 ? found : Comparison{};
  }
  return {};
}

// Whether the loop adds a number to the counter at one place, and writes it nowhere else.
bool counts(const Listing& listing, const Cfg& cfg, const Loop& loop, const Operand& counter) {
  int additions = 0;
  for (const int block : loop.blocks) {
    const Block& b = cfg.blocks[static_cast<size_t>(block)];
    for (int i = b.begin; i < b.end; ++i) {
      const Instruction& instruction = listing.code[static_cast<size_t>(i)];
      const std::vector<Operand>& x = operands_of(instruction);
      if (counter.kind == Operand::Kind::lane_register) {
        if (!destination(instruction).overlaps({counter.index, 1})) continue;
      } else if (x.empty() || x[0].kind != counter.kind ||
                 (x[0].index != counter.index && !(instruction.has("64") && x[0].index + 1 == counter.index))) {
        continue;
      }
      const bool adds = (instruction.is("VIADD") || instruction.is("IADD3") || instruction.is("UIADD3")) &&
                        x.size() > 2 && same(x[0], counter) && same(x[1], counter) && !x[1].negative &&
                        x[2].kind == Operand::Kind::number && x[2].value != 0 &&
                        (x.size() == 3 || (x[3].kind == Operand::Kind::number && x[3].value == 0));
      if (!adds || guard_of(instruction).index != true_predicate) return false;
      ++additions;
    }
  }
  return additions == 1;
}

std::string_view compared(const Instruction& i) { return i.operands[place_of_counter(operands_of(i))]; }

}  // namespace

std::set<std::pair<int, int>> first_turn_only(const Listing& listing, const Cfg& cfg, const Loop& loop) {
  std::vector<Comparison> comparisons;
  for (const int block : loop.blocks)
    if (const Comparison found = comparison_in(listing, cfg, loop, block);
        found.place >= 0 && counts(listing, cfg, loop, found.counter))
      comparisons.push_back(found);
  std::ranges::sort(comparisons, {}, &Comparison::place);
  std::vector<int> places;
  for (const Comparison& comparison : comparisons) places.push_back(comparison.place);
  const std::vector<Values> values = operand_values(listing, cfg, places, compared, Meeting::unknown);
  std::set<std::pair<int, int>> result;
  for (size_t c = 0; c < comparisons.size(); ++c)
    if (values[c].count == 1 && !values[c].runtime && values[c].values[0] == comparisons[c].number.value)
      result.emplace(comparisons[c].block, comparisons[c].equal);
  return result;
}

}  // namespace sass
