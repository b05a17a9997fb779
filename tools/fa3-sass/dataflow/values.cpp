#include "values.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "../listing/operands.h"
#include "../system/text.h"
#include "steady.h"

namespace sass {
namespace {

using Word = std::uint32_t;

void add(Values& to, Word value) {
  Word* const end = to.values + to.count;
  Word* const at = std::lower_bound(to.values, end, value);
  if (at != end && *at == value) return;
  if (to.count == Values::most) {
    to.runtime = true;
    return;
  }
  std::copy_backward(at, end, end + 1);
  *at = value;
  ++to.count;
}

void join(Values& to, const Values& other) {
  to.runtime |= other.runtime;
  for (int k = 0; k < other.count; ++k) add(to, other.values[k]);
}

Values constant(Word value) {
  Values result;
  add(result, value);
  return result;
}

Values not_known() {
  Values result = constant(0);
  result.runtime = true;
  return result;
}

// The bits of a number of 16 bits, as HFMA2 has them: ptxas makes constants of 32 bits with it. Such constants are
// exact.
Word half_bits(double value) {
  const Word sign = std::signbit(value) ? 0x8000 : 0;
  value = std::fabs(value);
  if (value == 0) return sign;
  if (!(value < 65536)) return sign | 0x7c00;  // infinity
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // value = fraction * 2^exponent, fraction in [0.5, 1)
  if (exponent < -13) return sign | static_cast<Word>(std::ldexp(value, 24));
  return sign | static_cast<Word>(exponent + 14) << 10 | (static_cast<Word>(std::ldexp(fraction, 11)) & 0x3ff);
}

Word logic(Word a, Word b, Word c, Word table) {
  Word result = 0;
  for (unsigned bits = 0; bits < 8; ++bits)
    if (table >> bits & 1)
      result |= (bits & 4 ? a : ~a) & (bits & 2 ? b : ~b) & (bits & 1 ? c : ~c);
  return result;
}

Word permuted(Word a, Word selector, Word c) {
  const std::uint64_t bytes = std::uint64_t{c} << 32 | a;
  Word result = 0;
  for (unsigned k = 0; k < 4; ++k) result |= static_cast<Word>(bytes >> 8 * (selector >> 4 * k & 7) & 255) << 8 * k;
  return result;
}

// Of lanes, and behind them uniform ones.
constexpr size_t registers = 256 + 64;
size_t place(const Operand& operand, int part) {
  const bool uniform = operand.kind == Operand::Kind::uniform_register;
  return static_cast<size_t>(std::min(operand.index + part, uniform ? 63 : 255) + (uniform ? 256 : 0));
}

class State {
 public:
  bool reached = false;

  // What an instruction with this guard reads.
  Values at(const Operand& operand, const Operand& guard, int part = 0) const {
    if (operand.kind == Operand::Kind::number) return constant(part == 0 ? signed_(operand, operand.value) : 0);
    if (!operand.is_register()) return not_known();
    const Values& held = held_at(place(operand, part), guard);
    Values result;
    result.runtime = held.runtime;
    for (int k = 0; k < held.count; ++k) add(result, signed_(operand, held.values[k]));
    return result;
  }
  // What one with this guard writes.
  void set(const Operand& operand, const Values& value, const Operand& guard, int part = 0) {
    if (!operand.is_register()) return;
    const size_t at = place(operand, part);
    Values& target = registers_[at];
    auto both = find(at);
    if (guard.index == true_predicate) {
      if (both != choices_.end()) choices_.erase(both);
      target = value;
      return;
    }
    if (both == choices_.end()) both = choices_.insert(both, {at, guard, target, target});
    else if (!same(both->predicate, guard)) *both = {at, guard, target, target};
    (guard.inverted ? both->if_false : both->if_true) = value;
    target = both->if_true;
    join(target, both->if_false);
  }
  // Of predicates that an instruction may write, nothing is told any more by what they were before.
  void forget_predicates(const Instruction& i) {
    std::erase_if(choices_, [&](const Choice& choice) { return i.is("CALL") || may_write(i, choice.predicate); });
  }
  void forget() {
    reached = true;
    for (Values& value : registers_) value = not_known();
  }
  void forget_several() {
    const auto forget_if_several = [](Values& value) {
      if (value.count > 1) value = not_known();
    };
    std::ranges::for_each(registers_, forget_if_several);
    for (Choice& choice : choices_) {
      forget_if_several(choice.if_true);
      forget_if_several(choice.if_false);
    }
  }
  void join_with(const State& other) {
    if (!reached) {
      *this = other;
      return;
    }
    for (size_t r = 0; r < registers_.size(); ++r) join(registers_[r], other.registers_[r]);
    std::erase_if(choices_, [&](Choice& choice) {
      const auto there = other.find(choice.place);
      if (there == other.choices_.end() || !same(there->predicate, choice.predicate)) return true;
      join(choice.if_true, there->if_true);
      join(choice.if_false, there->if_false);
      return false;
    });
  }

 private:
  // A register that guarded instructions have written: what it holds where the predicate is true, and where it is not.
  struct Choice {
    size_t place;
    Operand predicate;
    Values if_true, if_false;
  };
  static bool same(const Operand& a, const Operand& b) { return a.kind == b.kind && a.index == b.index; }

  std::vector<Choice>::const_iterator find(size_t place) const {
    return std::ranges::find(choices_, place, &Choice::place);
  }
  std::vector<Choice>::iterator find(size_t place) { return std::ranges::find(choices_, place, &Choice::place); }

  const Values& held_at(size_t place, const Operand& guard) const {
    const auto both = guard.index == true_predicate ? choices_.end() : find(place);
    if (both == choices_.end() || !same(both->predicate, guard)) return registers_[place];
    return guard.inverted ? both->if_false : both->if_true;
  }
  static Word signed_(const Operand& operand, Word value) {
    return operand.inverted ? ~value : operand.negative ? 0 - value : value;
  }

  std::array<Values, registers> registers_{};
  std::vector<Choice> choices_;
};

// Every combination of the operands' values.
Values combine(const State& state, const std::vector<Operand>& x, const Operand& guard,
               const std::function<Word(const Word*)>& function) {
  std::vector<Values> inputs;
  for (const Operand& operand : x) inputs.push_back(state.at(operand, guard));
  Values result;
  for (const Values& input : inputs) result.runtime |= input.runtime;
  std::vector<Word> words(inputs.size());
  const std::function<void(size_t)> each = [&](size_t k) {
    if (k == inputs.size()) return add(result, function(words.data()));
    for (int v = 0; v < inputs[k].count; ++v) {
      words[k] = inputs[k].values[v];
      each(k + 1);
    }
  };
  each(0);
  return result;
}

Values sum_of(const Values& x, const Values& y) {
  Values sum;
  sum.runtime = x.runtime || y.runtime;
  for (int a = 0; a < x.count; ++a)
    for (int b = 0; b < y.count; ++b) add(sum, x.values[a] + y.values[b]);
  return sum;
}

// IMAD.WIDE, with all 64 bits of the product.
std::uint64_t product_and_sum(const Word* w, bool has_sign) {
  const std::uint64_t a = w[0], b = w[1];
  const std::int64_t signed_a = static_cast<std::int32_t>(w[0]), signed_b = static_cast<std::int32_t>(w[1]);
  return (has_sign ? static_cast<std::uint64_t>(signed_a * signed_b) : a * b) + w[2];
}

// SHF
Word shifted(const Word* w, bool left, bool high, bool keeps_sign) {
  const Word shift = w[1] & 31;
  const std::uint64_t both = std::uint64_t{w[2]} << 32 | w[0];
  if (left) return high ? static_cast<Word>(both << shift >> 32) : w[0] << shift;
  if (high && keeps_sign) return static_cast<Word>(static_cast<std::int32_t>(w[2]) >> shift);
  return high ? w[2] >> shift : static_cast<Word>(both >> shift);
}

// Registers on which operands depend.
class Needed {
 public:
  // By any instruction of the listing that writes one of them, those that it reads are needed, too.
  Needed(const Listing& listing, const std::vector<std::vector<Operand>>& wanted) {
    for (const std::vector<Operand>& operands : wanted) add(operands);
    for (size_t before = 0; before != registers_.count();) {
      before = registers_.count();
      for (auto i = listing.code.rbegin(); i != listing.code.rend(); ++i)
        if (written_by(*i)) add(operands_of(*i));
    }
  }
  bool written_by(const Instruction& i) const {
    const Operand* to = register_written(i);
    const int parts = std::max(2, destination(i).count);
    for (int part = 0; to && part < parts; ++part)
      if (registers_.test(place(*to, part))) return true;
    return false;
  }

 private:
  void add(const std::vector<Operand>& operands) {
    for (const Operand& operand : operands)
      for (int part = 0; operand.is_register() && part < 2; ++part) registers_.set(place(operand, part));
  }

  std::bitset<registers> registers_;
};

void write_registers(State& state, const Instruction& i) {
  const Operand guard = guard_of(i), to = *register_written(i);
  std::vector<Operand> from;  // without predicates
  for (const Operand& operand : operands_of(i))
    if (!operand.is_predicate()) from.push_back(operand);
  from.erase(from.begin());  // what it writes
  // "UIADD3" counts as IADD3: the uniform datapath has the same instructions.
  std::string_view name = i.mnemonic();
  if (to.kind == Operand::Kind::uniform_register && name.starts_with("U")) name.remove_prefix(1);
  const auto is = [&](const char* wanted) { return name == wanted; };
  const auto set = [&](const Values& value, int part = 0) { state.set(to, value, guard, part); };
  const auto at = [&](const Operand& operand, int part = 0) { return state.at(operand, guard, part); };
  const auto result = [&](const std::function<Word(const Word*)>& function, size_t count) {
    if (from.size() < count) return set(not_known());
    set(combine(state, {from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count)}, guard, function));
  };

  if ((is("MOV") || is("R2UR")) && !from.empty()) return set(at(from[0]));
  // Addresses are those of the thread block's own shared memory.
  if ((i.is("S2R") || i.is("S2UR")) && i.operands.back() == "SR_CgaCtaId") return set(constant(0));
  if (i.is("CS2R")) {
    set(at(from.empty() ? Operand{} : from[0]));
    if (!i.has("32")) set(at(from.empty() ? Operand{} : from[0]), 1);
    return;
  }
  if (is("IADD3") && i.has("64") && from.size() > 2) {
    for (int part = 0; part < 2; ++part) {
      Values sum = constant(0);
      for (const Operand& operand : from) sum = sum_of(sum, at(operand, part));
      set(sum, part);
    }
    return;
  }
  if (is("IADD3")) return result([](const Word* w) { return w[0] + w[1] + w[2]; }, 3);
  if (is("VIADD")) return result([](const Word* w) { return w[0] + w[1]; }, 2);
  if (is("IMAD") && (i.has("WIDE") || i.has("HI")) && from.size() > 2) {
    const bool has_sign = !i.has("U32");
    const auto product = [has_sign](const Word* w) { return product_and_sum(w, has_sign); };
    if (i.has("WIDE")) result([&](const Word* w) { return static_cast<Word>(product(w)); }, 3);
    const Values high = combine(state, {from.begin(), from.begin() + 3}, guard,
                                [&](const Word* w) { return static_cast<Word>(product(w) >> 32); });
    return set(high, i.has("WIDE") ? 1 : 0);
  }
  if (is("IMAD")) return result([](const Word* w) { return w[0] * w[1] + w[2]; }, 3);
  if (is("LOP3") && from.size() > 3 && from[3].kind == Operand::Kind::number) {
    const Word table = from[3].value;
    return result([table](const Word* w) { return logic(w[0], w[1], w[2], table); }, 3);
  }
  if (is("SHF") && from.size() > 2) {
    const bool left = i.has("L"), high = i.has("HI"), keeps_sign = i.has("S32") && !left;
    return result([=](const Word* w) { return shifted(w, left, high, keeps_sign); }, 3);
  }
  if (is("LEA") && i.has("HI") && from.size() > 3)
    return result(
        [](const Word* w) {
          return static_cast<Word>((std::uint64_t{w[2]} << 32 | w[0]) << (w[3] & 31) >> 32) + w[1];
        },
        4);
  if (is("LEA")) return result([](const Word* w) { return (w[0] << (w[2] & 31)) + w[1]; }, 3);
  if (is("PRMT")) return result([](const Word* w) { return permuted(w[0], w[1], w[2]); }, 3);
  if (is("SEL") && from.size() > 1) {  // either of the two: predicates are not followed
    Values either = at(from[0]);
    join(either, at(from[1]));
    return set(either);
  }
  if (i.is("HFMA2") && i.operands.size() > 4 && i.operands[1].ends_with("RZ") && i.operands[2] == "RZ")
    return set(constant(half_bits(std::strtod(i.operands[3].c_str(), nullptr)) << 16 |
                        half_bits(std::strtod(i.operands[4].c_str(), nullptr))));

  const Registers written = destination(i);
  const int count = to.kind == Operand::Kind::uniform_register ? (i.has("64") ? 2 : 1) : written.count;
  for (int part = 0; part < count; ++part) set(not_known(), part);
}

}  // namespace

std::string_view first_operand(const Instruction& i) {
  return i.operands.empty() ? std::string_view() : std::string_view(i.operands.front());
}

std::string_view last_operand(const Instruction& i) {
  return i.operands.empty() ? std::string_view() : std::string_view(i.operands.back());
}

std::string_view address_operand(const Instruction& i) {
  for (const std::string_view operand : i.operands)
    if (operand.starts_with('[') && operand.ends_with(']')) return operand.substr(1, operand.size() - 2);
  return {};
}

std::vector<Values> operand_values(const Listing& listing, const Cfg& cfg, const std::vector<int>& wanted,
                                   std::string_view (*operand)(const Instruction&), Meeting meeting) {
  std::vector<Values> result(wanted.size());
  if (wanted.empty() || cfg.order.empty()) return result;
  std::vector<std::vector<Operand>> parts;  // two registers and a constant, at most
  for (int i : wanted) {
    parts.emplace_back();
    for (std::string_view part : split(operand(listing.code[static_cast<size_t>(i)]), '+'))
      if (parts.back().size() < 3) parts.back().push_back(operand_of(part));
  }
  const Needed needed(listing, parts);
  std::vector<State> entry(cfg.blocks.size());
  entry[static_cast<size_t>(cfg.order.front())].forget();
  for (int block : cfg.order) {
    State& state = entry[static_cast<size_t>(block)];
    if (meeting == Meeting::unknown) state.forget_several();
    const Block& b = cfg.blocks[static_cast<size_t>(block)];
    for (int i = b.begin; i < b.end; ++i) {
      const Instruction& instruction = listing.code[static_cast<size_t>(i)];
      const auto at = std::lower_bound(wanted.begin(), wanted.end(), i);
      if (at != wanted.end() && *at == i) {
        const size_t k = static_cast<size_t>(at - wanted.begin());
        const auto sum_of = [&](const Word* w) { return std::accumulate(w, w + parts[k].size(), Word{0}); };
        result[k] = combine(state, parts[k], guard_of(instruction), sum_of);
      }
      if (needed.written_by(instruction)) write_registers(state, instruction);
      state.forget_predicates(instruction);
    }
    for (int successor : b.successors)
      if (cfg.rank[static_cast<size_t>(successor)] > cfg.rank[static_cast<size_t>(block)])
        entry[static_cast<size_t>(successor)].join_with(state);
    state = {};
  }
  return result;
}

}  // namespace sass
