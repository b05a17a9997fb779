#include "lanes.h"

#include <array>
#include <bit>
#include <cstdint>

#include "../listing/operands.h"

namespace sass {
namespace {

// What is known of a register: the same in all lanes; another in each lane, by its low five bits or somehow; nothing.
enum class Across : std::uint8_t { uniform, low_bits, distinct, unknown };

// Of a predicate: does it single out one lane where it is true, and where it is false?
struct Choice {
  bool if_true = false, if_false = false;
  bool operator==(const Choice&) const = default;
};

struct State {
  bool reached = false, one_lane = false;
  std::array<Across, 256> registers{};
  std::array<Choice, 8> predicates{}, uniform_predicates{};
  std::array<std::uint32_t, 256> zeros{}, single{};  // of a register, the bits set in no lane, and in one at most
  std::array<Choice, 256> not_zero{};                // of "the register is not 0"
  bool operator==(const State&) const = default;

  void join(const State& other) {
    if (!reached) {
      *this = other;
      return;
    }
    const bool was_one = one_lane;
    one_lane &= other.one_lane;
    for (size_t r = 0; r < registers.size(); ++r)
      if (registers[r] != other.registers[r]) registers[r] = Across::unknown;
    for (size_t r = 0; r < registers.size(); ++r) {
      zeros[r] &= other.zeros[r];
      single[r] &= other.single[r];
      const Choice &mine = not_zero[r], &there = other.not_zero[r];
      not_zero[r] = {mine.if_true && there.if_true, mine.if_false && there.if_false};
    }
    for (size_t p = 0; p < uniform_predicates.size(); ++p) {
      Choice& merged = uniform_predicates[p];
      const Choice& there = other.uniform_predicates[p];
      merged = {merged.if_true && there.if_true, merged.if_false && there.if_false};
    }
    for (size_t p = 0; p < predicates.size(); ++p) {
      // What a single lane brings from its way is of one lane, whatever it is.
      const Choice own = was_one && !one_lane ? Choice{true, true} : predicates[p];
      const Choice there = other.one_lane && !one_lane ? Choice{true, true} : other.predicates[p];
      predicates[p] = {own.if_true && there.if_true, own.if_false && there.if_false};
    }
  }
};

// An instruction with its operands read once: the states are computed several times.
struct Decoded {
  const Instruction* instruction = nullptr;
  std::vector<Operand> operands;
  Operand guard;
  Registers written;
};

Across across(const State& state, const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::lane_register: return state.registers[static_cast<size_t>(operand.index)];
    case Operand::Kind::uniform_register:
    case Operand::Kind::number: return Across::uniform;
    default: return Across::unknown;
  }
}

Choice choice(const State& state, const Operand& predicate) {
  if (predicate.kind != Operand::Kind::predicate || predicate.index == true_predicate) return {};
  const Choice found = state.predicates[static_cast<size_t>(predicate.index)];
  return predicate.inverted ? Choice{found.if_false, found.if_true} : found;
}

bool singles_out(const State& state, const Operand& predicate) { return choice(state, predicate).if_true; }

// Of a guard of TMA, which a warp issues once: whether it holds because of one lane, found by a vote.
bool voted_for_one(const State& state, const Operand& guard) {
  if (guard.kind != Operand::Kind::uniform_predicate || guard.index == true_predicate) return false;
  const Choice& found = state.uniform_predicates[static_cast<size_t>(guard.index)];
  return guard.inverted ? found.if_false : found.if_true;
}

// "VOTEU.ALL UP1, P0": where it is false, P0 is false in some lane; VOTEU.ANY: where it is true, P0 is in some.
void vote(State& state, const Instruction& i, const std::vector<Operand>& x, bool guarded) {
  const Choice voted = x.size() > 1 && !guarded ? choice(state, x[1]) : Choice{};
  if (!x.empty() && x[0].kind == Operand::Kind::uniform_predicate && x[0].index != true_predicate)
    state.uniform_predicates[static_cast<size_t>(x[0].index)] = {i.has("ANY") && voted.if_true,
                                                                 i.has("ALL") && voted.if_false};
}

bool has_low_bits(const Operand& operand) {
  return operand.kind == Operand::Kind::number && (operand.value & 31) == 31 && !operand.negative;
}

// A value that differs in each lane, plus or minus what is the same in all.
Across sum(const State& state, const std::vector<Operand>& operands, size_t first) {
  Across result = Across::uniform;
  for (size_t k = first; k < operands.size(); ++k) {
    if (operands[k].is_predicate()) continue;
    const Across next = across(state, operands[k]);
    if (next == Across::uniform) continue;
    if (result != Across::uniform) return Across::unknown;
    result = next;
  }
  return result;
}

Across value_of(const State& state, const Decoded& d) {
  const Instruction& i = *d.instruction;
  std::vector<Operand> x = d.operands;
  while (!x.empty() && x.front().is_predicate()) x.erase(x.begin());  // the register that is written comes first
  const auto at = [&](size_t k) { return k < x.size() ? across(state, x[k]) : Across::unknown; };
  const auto number = [&](size_t k) { return k < x.size() && x[k].kind == Operand::Kind::number; };
  if (i.is("S2R")) {
    const std::string& source = i.operands.back();
    if (source == "SR_TID.X" || source == "SR_LANEID") return Across::low_bits;
    return source.starts_with("SR_CTAID") || source.starts_with("SR_Cga") ? Across::uniform : Across::unknown;
  }
  if (i.is("MOV") || i.is("CS2R")) return at(1);
  if (i.is("SHFL")) {  // SHFL.BFLY PT, R3, R2, 0x1f, 0x1f
    if (i.has("IDX") && at(2) == Across::uniform) return Across::uniform;
    return i.has("BFLY") && number(2) ? at(1) : Across::unknown;
  }
  if (i.is("IADD3") || i.is("VIADD")) return sum(state, x, 1);
  if (i.is("IMAD") && x.size() > 3 && !i.has("WIDE") && !i.has("HI")) {
    if (number(1) && x[1].value == 0) return at(3);
    const Across product = at(1) == Across::uniform && at(2) == Across::uniform ? Across::uniform
                           : number(2) && x[2].value == 1                       ? at(1)
                           : number(2) && x[2].value != 0 && at(1) != Across::unknown ? Across::distinct
                                                                                      : Across::unknown;
    return at(3) == Across::uniform ? product : product == Across::uniform ? at(3) : Across::unknown;
  }
  if (i.is("SHF") && i.has("L") && !i.has("HI"))
    return at(1) == Across::uniform || at(1) == Across::unknown ? at(1)
           : number(2)                                          ? Across::distinct
                                                                : Across::unknown;
  if (i.is("LEA") && !i.has("HI")) {
    const Across shifted = at(1) == Across::low_bits ? Across::distinct : at(1);
    return at(2) == Across::uniform ? shifted : shifted == Across::uniform ? at(2) : Across::unknown;
  }
  if (i.is("LOP3") && x.size() > 4) {
    const std::uint32_t table = x[4].value;
    const bool both_uniform = at(1) == Across::uniform && at(2) == Across::uniform && at(3) == Across::uniform;
    if (both_uniform) return Across::uniform;
    if (table == 0xc0 && at(1) == Across::low_bits && has_low_bits(x[2])) return Across::low_bits;
    if (table == 0x3c && number(2)) return at(1);
  }
  for (size_t k = 1; k < x.size(); ++k)
    if (!x[k].is_predicate() && across(state, x[k]) != Across::uniform) return Across::unknown;
  return i.opcode.starts_with("LD") || i.is("ATOMG") || i.is("ATOMS") ? Across::unknown : Across::uniform;
}

// The comparison of two values alone.
Choice comparison(const State& state, const Decoded& d, size_t first) {
  if (first + 1 >= d.operands.size()) return {};
  const std::string_view how = first_modifier(*d.instruction);
  const Operand &left = d.operands[first], &right = d.operands[first + 1];
  if (left.kind == Operand::Kind::lane_register && right.kind == Operand::Kind::number && right.value == 0) {
    const Choice kept = state.not_zero[static_cast<size_t>(left.index)];
    if (how == "NE" && (kept.if_true || kept.if_false)) return kept;
    if (how == "EQ" && (kept.if_true || kept.if_false)) return {kept.if_false, kept.if_true};
  }
  const Across a = across(state, d.operands[first]), b = across(state, d.operands[first + 1]);
  const auto differs = [](Across x) { return x == Across::low_bits || x == Across::distinct; };
  if (!((differs(a) && b == Across::uniform) || (a == Across::uniform && differs(b)))) return {};
  return {how == "EQ", how == "NE"};
}

// Of a truth table of predicates, the output's choice: whenever it is true, some input singles a lane out.
Choice table_choice(std::uint32_t table, const std::array<Choice, 3>& inputs, const std::array<int, 3>& constants) {
  Choice result{true, true};
  for (unsigned bits = 0; bits < 8; ++bits) {
    bool possible = true, single = false;
    for (unsigned k = 0; k < 3; ++k) {
      const bool input = bits >> (2 - k) & 1;
      possible &= constants[k] < 0 || (constants[k] != 0) == input;
      single |= input ? inputs[k].if_true : inputs[k].if_false;
    }
    if (!possible) continue;
    if (!single) (table >> bits & 1 ? result.if_true : result.if_false) = false;
  }
  return result;
}

Choice combined(const Instruction& i, const Choice& compared, const Choice& with, bool with_true) {
  if (i.has("AND"))
    return {compared.if_true || with.if_true, with_true ? compared.if_false : compared.if_false && with.if_false};
  if (i.has("OR")) return {compared.if_true && with.if_true, compared.if_false || with.if_false};
  return {};
}

void set_predicate(State& state, const Operand& to, const Choice& value, bool guarded) {
  if (to.kind != Operand::Kind::predicate || to.index == true_predicate) return;
  Choice& target = state.predicates[static_cast<size_t>(to.index)];
  if (guarded) target = {target.if_true && value.if_true, target.if_false && value.if_false};
  else target = value;
}

void set_predicates(State& state, const Decoded& d, bool guarded) {
  const Instruction& i = *d.instruction;
  const std::vector<Operand>& x = d.operands;
  if (i.is("VOTEU")) return vote(state, i, x, guarded);
  for (size_t k = 0; k < 2 && k < x.size() && !i.is("BRA"); ++k)  // whatever else writes one
    if (x[k].kind == Operand::Kind::uniform_predicate && x[k].index != true_predicate)
      state.uniform_predicates[static_cast<size_t>(x[k].index)] = {};
  if (i.is("ISETP") && x.size() > 4) {
    const Choice value =
        combined(i, comparison(state, d, 2), choice(state, x[4]),
                 x[4].kind == Operand::Kind::predicate && x[4].index == true_predicate && !x[4].inverted);
    set_predicate(state, x[0], value, guarded);
    set_predicate(state, x[1], {}, guarded);
  } else if (i.is("LOP3") && x.size() > 5 && x[0].is_predicate()) {  // LOP3.LUT P0, RZ, R0, 0x1f, RZ, 0xc0, !PT
    // True if any bit is. If the low five bits of the thread's number always make bits of the result, they are all 0
    // where it is false: in one lane. Of the truth table, entry 4 a + 2 b + c is for bits a, b and c of the inputs.
    bool names_lane = false;
    for (unsigned lane = 0; lane < 3; ++lane)
      for (unsigned mask = 0; mask < 3; ++mask) {
        if (across(state, x[2 + lane]) != Across::low_bits || mask == lane || !has_low_bits(x[2 + mask])) continue;
        const unsigned both = 4u >> lane | 4u >> mask, third = 7 ^ both;
        names_lane |= (x[5].value >> both & 1) && (x[5].value >> (both | third) & 1);
      }
    const bool bit = x[2].kind == Operand::Kind::lane_register && x[3].kind == Operand::Kind::number &&
                     std::has_single_bit(x[3].value) && x[4].kind == Operand::Kind::number && x[4].value == 0;
    const bool kept = bit && x[5].value == 0xc0 && (state.single[static_cast<size_t>(x[2].index)] & x[3].value);
    set_predicate(state, x[0], {kept, names_lane}, guarded);
  } else if (i.is("PLOP3") && x.size() > 5) {  // PLOP3.LUT P0, PT, P1, P2, PT, 0x80, 0x0
    std::array<Choice, 3> inputs;
    std::array<int, 3> constants{-1, -1, -1};
    for (size_t k = 0; k < 3; ++k) {
      inputs[k] = choice(state, x[2 + k]);
      if (x[2 + k].index == true_predicate) constants[k] = !x[2 + k].inverted;
    }
    set_predicate(state, x[0], table_choice(x[5].value, inputs, constants), guarded);
    set_predicate(state, x[1], {}, guarded);
  } else if (i.is("ELECT") && !x.empty()) {
    set_predicate(state, x[0], {true, false}, guarded);
  } else {
    // Anything else that writes a predicate, among its first two operands; a vote's second is what is voted on.
    const bool reads_only = i.is("BRA") || i.is("BREAK") || i.is("EXIT") || i.is("BRX");
    const size_t count = reads_only ? 0 : i.is("VOTE") ? 1 : 2;
    for (size_t k = 0; k < count && k < x.size(); ++k) set_predicate(state, x[k], {}, guarded);
  }
}

// ptxas keeps predicates as bits of a register: "LOP3.LUT R14, R14, 0xffffffdf, RZ, 0xc0, !PT" clears one, and
// "@P0 LOP3.LUT R14, R14, 0x20, RZ, 0xfc, !PT" sets it where P0 is true.
void set_bits(State& state, const Decoded& d, size_t r) {
  const std::vector<Operand>& x = d.operands;
  const bool same = d.instruction->is("LOP3") && x.size() > 4 && x[0].kind == Operand::Kind::lane_register &&
                    x[1].kind == Operand::Kind::lane_register && x[0].index == x[1].index &&
                    x[2].kind == Operand::Kind::number;
  const bool guarded = d.guard.index != true_predicate;
  std::uint32_t &zeros = state.zeros[r], &single = state.single[r];
  if (same && x[4].value == 0xc0 && !guarded) {
    zeros |= ~x[2].value;
    single |= ~x[2].value;
  } else if (same && x[4].value == 0xfc) {
    single &= singles_out(state, d.guard) ? ~x[2].value | zeros : ~x[2].value;
    zeros &= ~x[2].value;
  } else if (!(same && x[4].value == 0xc0)) {
    zeros = single = 0;
  }
}

// "P2R R15, PR, RZ, 0x2" keeps P1 alone, and "ISETP.NE.AND P1, PT, R15, RZ, PT" brings it back.
Choice kept_predicate(const State& state, const Decoded& d) {
  const std::vector<Operand>& x = d.operands;
  const auto number = [&](size_t k) { return x[k].kind == Operand::Kind::number; };
  if (!d.instruction->is("P2R") || d.guard.index != true_predicate || x.size() != 4) return {};
  if (!number(2) || x[2].value != 0 || !number(3) || !std::has_single_bit(x[3].value) || x[3].value > 0x40) return {};
  return state.predicates[static_cast<size_t>(std::countr_zero(x[3].value))];
}

void step(State& state, const Decoded& d) {
  const bool guarded = d.guard.index != true_predicate;
  if (d.written.count > 0) {
    const Across value = d.written.count == 1 || d.instruction->is("CS2R") ? value_of(state, d) : Across::unknown;
    for (int r = d.written.first; r < d.written.first + d.written.count && r < 256; ++r) {
      Across& target = state.registers[static_cast<size_t>(r)];
      target = guarded && target != value ? Across::unknown : value;
      set_bits(state, d, static_cast<size_t>(r));
      state.not_zero[static_cast<size_t>(r)] = kept_predicate(state, d);
    }
  }
  set_predicates(state, d, guarded);
}

// The state behind a block's last instruction, on the way to `successor`.
State on_the_way(State state, const Decoded& last, const Cfg& cfg, int block, int successor) {
  const Instruction& i = *last.instruction;
  const bool branches = i.is("BRA") || i.is("EXIT");
  if (!branches || last.guard.kind != Operand::Kind::predicate || i.has("U") || i.has("DIV")) return state;
  const bool next = successor == block + 1;
  bool target = false;
  for (int to : i.targets) target |= cfg.blocks[static_cast<size_t>(successor)].begin == to;
  if (next == target) return state;
  // "@!P0 BRA P1, L" goes to L if both hold.
  const Operand* more = !last.operands.empty() && last.operands[0].kind == Operand::Kind::predicate ? &last.operands[0]
                                                                                                  : nullptr;
  const Choice guard = choice(state, last.guard), other = more ? choice(state, *more) : Choice{};
  if (target) state.one_lane |= guard.if_true || other.if_true;
  else if (last.guard.index == true_predicate) state.one_lane |= other.if_false;
  else state.one_lane |= guard.if_false && (!more || other.if_false);
  return state;
}

}  // namespace

std::vector<bool> by_one_lane(const Listing& listing, const Cfg& cfg) {
  std::vector<Decoded> code;
  code.reserve(listing.code.size());
  for (const Instruction& i : listing.code) code.push_back({&i, operands_of(i), guard_of(i), destination(i)});

  std::vector<State> entry(cfg.blocks.size());
  if (!cfg.order.empty()) {
    entry[static_cast<size_t>(cfg.order.front())].reached = true;
    entry[static_cast<size_t>(cfg.order.front())].registers.fill(Across::unknown);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (int block : cfg.order) {
      State state = entry[static_cast<size_t>(block)];
      if (!state.reached) continue;
      const Block& b = cfg.blocks[static_cast<size_t>(block)];
      for (int i = b.begin; i < b.end; ++i) step(state, code[static_cast<size_t>(i)]);
      const Instruction& last = listing.code[static_cast<size_t>(b.end) - 1];
      for (int successor : b.successors) {
        // The label is where the warp goes on behind ENDCOLLECTIVE.
        if (last.is("WARPSYNC") && last.has("COLLECTIVE") && successor != block + 1) continue;
        State& next = entry[static_cast<size_t>(successor)];
        State joined = next;
        joined.join(on_the_way(state, code[static_cast<size_t>(b.end) - 1], cfg, block, successor));
        if (joined == next) continue;
        next = joined;
        changed = true;
      }
    }
  }

  std::vector<bool> result(listing.code.size(), false);
  for (int block : cfg.order) {
    State state = entry[static_cast<size_t>(block)];
    const Block& b = cfg.blocks[static_cast<size_t>(block)];
    // TMA is issued once for a warp. Where the lane that ELECT chooses shall do it, ptxas may drop the condition; for
    // several lanes it makes a loop, in which ELECT has a guard.
    bool elected = false;
    for (int i = b.begin; i < b.end; ++i) {
      const Decoded& d = code[static_cast<size_t>(i)];
      elected |= d.instruction->is("ELECT") && d.guard.index == true_predicate;
      const bool tma = d.instruction->opcode.starts_with("UTMA") || d.instruction->opcode.starts_with("UBLK");
      result[static_cast<size_t>(i)] = state.one_lane || singles_out(state, d.guard) ||
                                       (tma && (elected || voted_for_one(state, d.guard)));
      step(state, d);
    }
  }
  return result;
}

}  // namespace sass
