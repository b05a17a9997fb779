#include "renaming.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace sass {
namespace {

// All register files in a row: general, uniform, predicates, uniform predicates, convergence barriers.
struct File {
  const char* prefix;
  int first, size;
};
constexpr File files[] = {{"UR", 256, 256}, {"UP", 520, 8}, {"R", 0, 256}, {"P", 512, 8}, {"B", 528, 16}};
constexpr int registers = 544;

// Which register of `after` holds what a register of `before` holds. Lost: another value is there by now.
constexpr int unknown = -1, lost = -2;
using State = std::array<int, registers>;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

// The registers named in a text, in order. RZ and PT are constants, not registers.
std::vector<int> named(std::string_view text) {
  std::vector<int> result;
  for (size_t i = 0; i < text.size();) {
    if (!is_word(text[i])) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_word(text[end])) ++end;
    for (const File& file : files) {
      const std::string_view prefix = file.prefix;
      if (text.substr(i, prefix.size()) != prefix) continue;
      size_t at = i + prefix.size();
      int value = 0;
      const size_t digits = at;
      while (at < end && at < digits + 3 && std::isdigit(static_cast<unsigned char>(text[at])))
        value = value * 10 + text[at++] - '0';
      if (at > digits && (at == end || text[at] == '.') && value < file.size) result.push_back(file.first + value);
      break;
    }
    i = end;
  }
  return result;
}

bool is_predicate(const std::string& operand) {
  return operand == "PT" || operand == "UPT" ||
         (operand.size() == 2 && operand[0] == 'P' && operand[1] >= '0' && operand[1] <= '7') ||
         (operand.size() == 3 && operand.substr(0, 2) == "UP" && operand[2] >= '0' && operand[2] <= '7');
}

bool is_register(const std::string& operand) {
  return operand[0] == 'R' || (operand[0] == 'U' && operand.size() > 1 && operand[1] == 'R');
}

// How many of the leading operands are written: "R2, P0" with a carry, "P0, PT" of a comparison, "PT, R2" of a shuffle.
size_t written_operands(const Instruction& i) {
  static const char* const nothing[] = {"ST",  "STS", "STG",  "STL",   "STSM",  "RED",  "REDG", "BAR",  "BRA", "BRX",
                                        "JMP", "JMX", "EXIT", "WARPSYNC", "BSYNC", "CALL", "RET",  "NANOSLEEP"};
  if (i.operands.empty()) return 0;
  for (const char* name : nothing)
    if (i.is(name)) return 0;
  if (i.opcode.starts_with("UTMA") || i.opcode.starts_with("UBLK")) return 0;
  const std::string& first = i.operands[0];
  if (!is_predicate(first) && !is_register(first)) return i.is("BSSY") ? 1 : 0;
  if (i.operands.size() == 1) return 1;
  const std::string& second = i.operands[1];
  if (is_register(first)) return is_predicate(second) && !i.is("P2R") ? 2 : 1;
  const bool compares = i.opcode.find("SETP") != std::string::npos || i.opcode.find("PLOP3") != std::string::npos;
  return compares ? (is_predicate(second) ? 2 : 1) : is_register(second) && !i.is("R2P") ? 2 : 1;
}

int width(const Instruction& i, int number) {
  if (number < 256) return std::max(1, destination(i).count);
  return number < 512 && (i.has("64") || i.has("WIDE")) ? 2 : 1;
}

struct Effect {
  std::vector<int> reads, writes;  // registers, as they stand in the text
};

Effect effect_of(const Instruction& i) {
  Effect effect;
  effect.reads = named(i.guard);
  const size_t written = written_operands(i);
  for (size_t k = 0; k < i.operands.size(); ++k)
    for (int number : named(i.operands[k])) (k < written ? effect.writes : effect.reads).push_back(number);
  return effect;
}

class Comparison {
 public:
  Comparison(const Kernel& before, const Kernel& after, const Matching& matching, const std::vector<bool>& unsure)
      : before_(before), after_(after), matching_(matching), unsure_(unsure) {
    for (const Instruction& i : before.listing.code) effects_before_.push_back(effect_of(i));
    for (const Instruction& i : after.listing.code) effects_after_.push_back(effect_of(i));
  }

  std::vector<Rewired> run() {
    const size_t blocks = before_.cfg.blocks.size();
    State nothing;
    nothing.fill(unknown);
    std::vector<State> entry(blocks, nothing);
    std::vector<bool> seen(blocks, false);
    seen[0] = true;
    for (bool changed = true; changed;) {
      changed = false;
      for (int b : before_.cfg.order) {
        if (!seen[static_cast<size_t>(b)]) continue;
        State state = entry[static_cast<size_t>(b)];
        pass(b, state, nullptr);
        for (int successor : before_.cfg.blocks[static_cast<size_t>(b)].successors) {
          const size_t to = static_cast<size_t>(successor);
          changed |= seen[to] ? meet(entry[to], state) : (entry[to] = state, true);
          seen[to] = true;
        }
      }
    }
    std::vector<Rewired> found;
    for (size_t b = 0; b < blocks; ++b) pass(static_cast<int>(b), entry[b], &found);
    return found;
  }

 private:
  // What holds on both ways. Contradiction is something else than ignorance: who reads such a register is wrong on one.
  static bool meet(State& state, const State& other) {
    bool changed = false;
    for (size_t r = 0; r < state.size(); ++r) {
      const int both = state[r] == other[r] ? state[r] : state[r] == unknown || other[r] == unknown ? unknown : lost;
      changed |= both != state[r];
      state[r] = both;
    }
    return changed;
  }

  bool sure(int i) const { return matching_[static_cast<size_t>(i)] >= 0 && !unsure_[static_cast<size_t>(i)]; }

  bool same_values(int i, int other, State& state) const {
    const Instruction& instruction = before_.listing.code[static_cast<size_t>(i)];
    const Effect& mine = effects_before_[static_cast<size_t>(i)];
    const Effect& counterpart = effects_after_[static_cast<size_t>(other)];
    bool same = mine.reads.size() == counterpart.reads.size() && mine.writes.size() == counterpart.writes.size();
    for (size_t k = 0; k < std::min(mine.reads.size(), counterpart.reads.size()); ++k) {
      int& held = state[static_cast<size_t>(mine.reads[k])];
      // Under a predicate the way on which a register was lost may be the one on which it is not read.
      if (held == lost ? instruction.guard.empty() : held != unknown && held != counterpart.reads[k]) same = false;
      held = counterpart.reads[k];
    }
    for (size_t k = 0; k < std::min(mine.writes.size(), counterpart.writes.size()); ++k) {
      const int count = width(instruction, mine.writes[k]);
      for (int n = 0; n < count; ++n) {
        const int to = mine.writes[k] + n, now = counterpart.writes[k] + n;
        if (to >= registers) break;
        if (instruction.guard.empty())
          for (int& held : state)
            if (held == now) held = lost;
        state[static_cast<size_t>(to)] = now;
      }
    }
    return same;
  }

  bool same_places(int i, int other) const {
    const Instruction& mine = before_.listing.code[static_cast<size_t>(i)];
    const Instruction& counterpart = after_.listing.code[static_cast<size_t>(other)];
    if (mine.targets.size() != counterpart.targets.size()) return false;
    for (size_t t = 0; t < mine.targets.size(); ++t)
      if (sure(mine.targets[t]) && matching_[static_cast<size_t>(mine.targets[t])] != counterpart.targets[t])
        return false;
    return true;
  }

  // Whether control that runs on behind `i` does so in both.
  bool same_next(const Block& block, int i, int other) const {
    const int next = i + 1;
    if (next >= static_cast<int>(before_.listing.code.size()) || !sure(next)) return true;
    bool runs_on = next < block.end;
    for (int s : block.successors) {
      const auto& targets = before_.listing.code[static_cast<size_t>(i)].targets;
      runs_on |= before_.cfg.blocks[static_cast<size_t>(s)].begin == next && std::ranges::count(targets, next) == 0;
    }
    return !runs_on || matching_[static_cast<size_t>(next)] == other + 1;
  }

  void pass(int number, State& state, std::vector<Rewired>* found) const {
    const Block& block = before_.cfg.blocks[static_cast<size_t>(number)];
    for (int i = block.begin; i < block.end; ++i) {
      if (!sure(i)) {
        state.fill(unknown);
        continue;
      }
      const int other = matching_[static_cast<size_t>(i)];
      const bool same = same_values(i, other, state);
      if (!found) continue;
      if (!same) found->push_back({i, Rewired::Way::value});
      else if (!same_places(i, other) || !same_next(block, i, other)) found->push_back({i, Rewired::Way::place});
    }
  }

  const Kernel& before_;
  const Kernel& after_;
  const Matching& matching_;
  const std::vector<bool>& unsure_;
  std::vector<Effect> effects_before_, effects_after_;
};

}  // namespace

std::vector<Rewired> rewired(const Kernel& before, const Kernel& after, const Matching& matching,
                             const std::vector<bool>& unsure) {
  return Comparison(before, after, matching, unsure).run();
}

}  // namespace sass
