#include "spins.h"

#include <algorithm>
#include <set>

#include "../listing/operands.h"
#include "../listing/sync.h"
#include "../system/text.h"
#include "values.h"

namespace sass {
namespace {

class Finder {
 public:
  Finder(const Listing& listing, const Cfg& cfg) : listing_(listing), cfg_(cfg) {}

  Spins run() {
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
    return std::move(result_);
  }

 private:
  const Instruction& code(int i) const { return listing_.code[static_cast<size_t>(i)]; }
  const Block& block(int b) const { return cfg_.blocks[static_cast<size_t>(b)]; }

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
        const std::vector<Operand>& x = operands_of(code(i));
        const bool ends = i == block(at).end - 1, branch = ends && (code(i).is("BRA") || code(i).is("EXIT"));
        // At most two predicates are written, and the last operand never is: "VOTE.ALL P0, P0".
        const std::ptrdiff_t written = std::clamp<std::ptrdiff_t>(std::ssize(x) - 1, 0, 2);
        const bool reads = std::ranges::any_of(x.begin() + (branch ? 0 : written), x.end(), same);
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
      const int copy = wait_in(b);
      if (copy < 0) {  // on the way back
        if (block(b).successors.size() != 1) return false;
        b = block(b).successors.front();
        continue;
      }
      if (offset_of(code(copy)) != barrier) return false;
      if (copy != wait) copies.insert(copy);
      b = not_yet(copy, b);
      if (b < 0) return false;
    }
    return true;
  }

  const Listing& listing_;
  const Cfg& cfg_;
  Spins result_;
};

}  // namespace

std::uint32_t offset_of(const Instruction& i) {
  for (const std::string& operand : i.operands) {
    if (operand.empty() || operand[0] != '[') continue;
    const std::vector<std::string_view> parts = split(std::string_view(operand).substr(1, operand.size() - 2), '+');
    const Operand last = operand_of(parts.back());
    return last.kind == Operand::Kind::number ? last.value : 0;
  }
  return 0;
}

Spins spins_of(const Listing& listing, const Cfg& cfg) { return Finder(listing, cfg).run(); }

}  // namespace sass
