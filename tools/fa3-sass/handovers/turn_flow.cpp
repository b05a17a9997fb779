#include "turn_flow.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "../dataflow/steady.h"
#include "../listing/sync.h"
#include "../system/text.h"

namespace sass {
namespace {

bool is_load(const Instruction& i) {
  return i.is("LDS") || i.is("LDG") || i.is("LD") || i.is("LDL") || i.is("ATOM") || i.is("ATOMG") || i.is("ATOMS");
}
bool differs_between_lanes(const Instruction& i) {
  const auto names_lanes = [](const std::string& operand) {
    return operand.starts_with("SR_TID") || operand.starts_with("SR_LANEID") || operand.starts_with("SR_LANEMASK") ||
           operand.starts_with("SR_EQMASK") || operand.starts_with("SR_LTMASK");
  };
  return i.is("ELECT") || std::ranges::any_of(i.operands, names_lanes);
}

}  // namespace

bool same(const Operand& a, const Operand& b) { return a.kind == b.kind && a.index == b.index; }

std::vector<Operand> read_by(const Instruction& i) {
  std::vector<Operand> result;
  const bool wide = i.has("64"), wide_sum = i.has("WIDE");  // of the latter only what is added has two registers
  const auto add = [&](const Operand& operand, bool two) {
    if (!operand.is_register() && (!operand.is_predicate() || operand.index == true_predicate)) return;
    result.push_back(operand);
    if (!two || !operand.is_register()) return;
    result.push_back(operand);
    ++result.back().index;
  };
  add(guard_of(i), false);
  for (size_t k = 0; k < i.operands.size(); ++k) {
    std::string text = i.operands[k];
    const bool address = text.find('[') != std::string::npos;
    for (char& c : text)
      if (c == '[' || c == ']' || c == '|') c = '+';
    for (std::string_view part : split(text, '+')) {
      const Operand operand = operand_of(part);
      // What is written is not read, but for predicates, which may stand second and be read.
      if (!address && k == 0 && (operand.is_register() || operand.is_predicate()) && !i.is("BRA")) continue;
      if (!address && k == 1 && operand.is_register() && writes(i, operand) &&
          operand_of(i.operands[0]).is_predicate())
        continue;
      add(operand, wide || (wide_sum && k == 3) || part.find(".64") != std::string_view::npos);
    }
  }
  return result;
}

TurnFlow::TurnFlow(const Listing& listing, const Cfg& cfg)
    : listing_(listing), cfg_(cfg), block_of_(listing.code.size(), -1) {
  for (int b : cfg.order)
    for (int i = block(b).begin; i < block(b).end; ++i) block_of_[static_cast<size_t>(i)] = b;
}

TurnFlow::Blocks TurnFlow::forward(const Loop& loop, const std::vector<int>& from, const Blocks& closed) const {
  Blocks seen(cfg_.blocks.size(), false);
  std::vector<int> work = from;
  for (int b : from) seen[static_cast<size_t>(b)] = true;
  while (!work.empty()) {
    const int b = work.back();
    work.pop_back();
    for (int next : block(b).successors)
      if (loop.contains(next) && next != loop.header && !seen[static_cast<size_t>(next)] &&
          !closed[static_cast<size_t>(next)]) {
        seen[static_cast<size_t>(next)] = true;
        work.push_back(next);
      }
  }
  return seen;
}

TurnFlow::Blocks TurnFlow::to_the_end(const Loop& loop, const Blocks& closed) const {
  Blocks seen(cfg_.blocks.size(), false);
  std::vector<int> work;
  const auto add = [&](int b) {
    if (!loop.contains(b) || closed[static_cast<size_t>(b)] || seen[static_cast<size_t>(b)]) return;
    seen[static_cast<size_t>(b)] = true;
    work.push_back(b);
  };
  for (int b : ends_of_turn(loop)) add(b);
  while (!work.empty()) {
    const int b = work.back();
    work.pop_back();
    if (b != loop.header)
      for (int before : block(b).predecessors) add(before);
  }
  return seen;
}

std::vector<int> TurnFlow::ends_of_turn(const Loop& loop) const {
  std::vector<int> result;
  for (int b : block(loop.header).predecessors)
    if (loop.contains(b) && !tries_again(b)) result.push_back(b);
  return result;
}

bool TurnFlow::tries_again(int b) const {
  const Operand guard = guard_of(code(block(b).end - 1));
  for (int i = block(b).begin; i < block(b).end; ++i)
    if (waits_for_mbarrier(code(i)) && guard.inverted && same(operand_of(code(i).operands[0]), guard)) return true;
  return false;
}

void TurnFlow::writes_before(const Loop& loop, int b, int before, const Operand& wanted, std::set<int>& found,
                   bool& at_header) const {
  std::set<int> seen;
  std::vector<std::pair<int, int>> work{{b, before}};
  while (!work.empty()) {
    const auto [at, end] = work.back();
    work.pop_back();
    bool written = false;
    for (int i = end - 1; i >= block(at).begin && !written; --i)
      if (may_write(code(i), wanted)) {
        found.insert(i);
        written = guard_of(code(i)).index == true_predicate;
      }
    if (written) continue;
    if (at == loop.header) {
      at_header = true;
      continue;
    }
    for (int p : block(at).predecessors)
      if (loop.contains(p) && seen.insert(p).second) work.emplace_back(p, block(p).end);
  }
}

bool TurnFlow::is_written(const Loop& loop, const Operand& wanted) const {
  for (int b : loop.blocks)
    for (int i = block(b).begin; i < block(b).end; ++i)
      if (may_write(code(i), wanted)) return true;
  return false;
}

void TurnFlow::follow(const Loop& loop, int b, int before, const Operand& wanted, bool turns, bool earlier, Origins& to,
            std::set<std::tuple<int, int, int, bool>>& seen) const {
  if (!seen.emplace(before, static_cast<int>(wanted.kind), wanted.index, earlier).second) return;
  std::set<int> found;
  bool at_header = false;
  writes_before(loop, b, before, wanted, found, at_header);
  if (at_header && is_written(loop, wanted)) {
    to.carried = true;
    if (turns)
      for (int end : ends_of_turn(loop)) follow(loop, end, block(end).end, wanted, turns, true, to, seen);
  }
  for (int i : found) {
    const Instruction& made = code(i);
    if (is_load(made)) {
      (earlier ? to.earlier : to.loads).insert(i);
      continue;
    }
    // The result of a wait, or of a function.
    if (waits_for_mbarrier(made) || made.is("CALL") || made.is("R2P")) to.followed = false;
    for (const Operand& source : read_by(made)) follow(loop, block_of(i), i, source, turns, earlier, to, seen);
  }
}

Origins TurnFlow::origins(const Loop& loop, int branch, bool turns) const {
  Origins result;
  std::set<std::tuple<int, int, int, bool>> seen;
  for (const Operand& source : read_by(code(branch)))
    follow(loop, block_of(branch), branch, source, turns, false, result, seen);
  return result;
}

bool TurnFlow::depends_on_lane(int instruction) const {
  std::vector<int> work{instruction};
  std::set<int> met{instruction};
  while (!work.empty()) {
    const int i = work.back();
    work.pop_back();
    if (differs_between_lanes(code(i))) return true;
    for (const Operand& wanted : read_by(code(i))) {
      std::vector<std::pair<int, int>> ways{{block_of(i), i}};
      std::set<int> passed;
      while (!ways.empty()) {
        const auto [at, end] = ways.back();
        ways.pop_back();
        bool written = false;
        for (int k = end - 1; k >= block(at).begin && !written; --k)
          if (may_write(code(k), wanted)) {
            if (met.insert(k).second) work.push_back(k);
            written = guard_of(code(k)).index == true_predicate;
          }
        if (!written)
          for (int p : block(at).predecessors)
            if (passed.insert(p).second) ways.emplace_back(p, block(p).end);
      }
    }
  }
  return false;
}

bool TurnFlow::leads_to(const Loop& loop, int from, int to) const {
  const int a = block_of(from), b = block_of(to);
  if (!loop.contains(a) || !loop.contains(b)) return false;
  if (a == b && from < to) return true;
  std::vector<int> begin;
  for (int next : block(a).successors)
    if (loop.contains(next) && next != loop.header) begin.push_back(next);
  return forward(loop, begin, Blocks(cfg_.blocks.size(), false))[static_cast<size_t>(b)];
}

bool TurnFlow::precedes(const Loop& loop, int first, int second) const {
  const int a = block_of(first), b = block_of(second);
  if (a == b) return first < second;
  if (a == loop.header) return true;
  Blocks closed(cfg_.blocks.size(), false);
  closed[static_cast<size_t>(a)] = true;
  return !forward(loop, {loop.header}, closed)[static_cast<size_t>(b)];
}

}  // namespace sass
