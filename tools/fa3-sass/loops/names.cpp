#include "names.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "../listing/operands.h"

namespace sass {
namespace {

// Follows the data: for each register, the GEMMs its value comes from, and those it comes from by way of exp2. Scores
// are what reaches exp2; what multiplies exp2 of the scores is P V or P^T dO; a GEMM whose result meets P on the way
// into another GEMM is dP, and that other one is dK or dQ.
class Naming {
 public:
  Naming(const Listing& listing, Turn& turn) : listing_(listing), turn_(turn) {}

  void run() {
    find_guards();
    const size_t count = std::min<size_t>(turn_.gemms.size(), 32);
    for (int round = 0; round < (turn_.cyclic ? 3 : 1); ++round)
      for (int position = 0; position < turn_.size(); ++position) step(position);
    for (size_t g = 0; g < count; ++g)
      for (size_t from = 0; from < count; ++from)
        turn_.gemms[from].feeds |= from != g && (operand_[g].raw & bit(from));
    if (scores_ == 0) return;
    uint32_t dP = 0;
    for (size_t g = 0; g < count; ++g) {
      const uint32_t rest = operand_[g].raw & ~scores_;
      if (operand_[g].exped & scores_) dP |= rest;
    }
    if (dP == 0)  // P and dS went through shared memory: what meets P in arithmetic and starts from zero is dP
      for (size_t g = 0; g < count; ++g)
        if (turn_.gemms[g].zero && turn_.gemms[g].register_steps.empty() && (met_ & ~scores_ & bit(g))) dP |= bit(g);
    if (dP == 0)  // P alone did: what reaches an operand in registers without being a score is dP
      for (size_t g = 0; g < count; ++g)
        for (size_t from = 0; from < count; ++from)
          if (from != g && turn_.gemms[from].zero && (operand_[g].raw & ~scores_ & bit(from))) dP |= bit(from);
    std::vector<Gemm*> sums;
    for (size_t g = 0; g < count; ++g) {
      Gemm& gemm = turn_.gemms[g];
      if (scores_ & bit(g)) gemm.name = dP ? "S" : "QK";
      else if (dP & bit(g)) gemm.name = "dP";
      else if (dP == 0) gemm.name = "PV";
      else if (gemm.zero) gemm.name = "dQ";
      else if (!gemm.register_steps.empty()) gemm.name = operand_[g].raw & dP ? "dK" : "dV";
      else sums.push_back(&gemm);
    }
    if (dP != 0) name_sums(sums);
  }

 private:
  struct Origin {
    uint32_t raw = 0, exped = 0;
    void add(const Origin& other) {
      raw |= other.raw;
      exped |= other.exped;
    }
  };
  static uint32_t bit(size_t gemm) { return 1u << gemm; }

  bool has(const char* name) const {
    return std::any_of(turn_.gemms.begin(), turn_.gemms.end(), [&](const Gemm& gemm) { return gemm.name == name; });
  }

  // `sums` read P or dS from shared memory, which the data flow does not see. dV comes first, for P is there first;
  // each may have several accumulators.
  void name_sums(const std::vector<Gemm*>& sums) {
    const bool dV = has("dV"), dK = has("dK");
    const auto shape_differs = [&](const Gemm* sum) { return sum->shape != sums.front()->shape; };
    const auto other = std::find_if(sums.begin(), sums.end(), shape_differs);
    const auto half = sums.begin() + static_cast<std::ptrdiff_t>((sums.size() + 1) / 2);
    const auto first_dK = dV ? sums.begin() : dK ? sums.end() : other != sums.end() ? other : half;
    for (auto sum = sums.begin(); sum != sums.end(); ++sum) (*sum)->name = sum < first_dK ? "dV" : "dK";
    // Who sums up only one gradient, with dP, has blocks of queries: dK would come with dV.
    if (const bool one_dV = has("dV"), one_dK = has("dK"); one_dV != one_dK && (one_dK || sums.size() == 1))
      for (Gemm& gemm : turn_.gemms)
        if (gemm.name == (one_dV ? "dV" : "dK")) gemm.name = "dQ";
  }

  const Instruction& at(int position) const {
    return listing_.code[static_cast<size_t>(turn_.code[static_cast<size_t>(position)])];
  }

  // What a branch tells of other instructions with the same guard, between writes of the predicate: where the turn goes
  // its way, they are executed, or they are not.
  void find_guards() {
    guards_.assign(static_cast<size_t>(turn_.size()), Guard::unknown);
    for (int position = 0; position + 1 < turn_.size(); ++position) {
      const Instruction& branch = at(position);
      const Operand guard = guard_of(branch);
      const int next = turn_.code[static_cast<size_t>(position) + 1];
      if (!branch.is("BRA") || branch.operands.size() != 1 || guard.index == true_predicate ||
          branch.targets.size() != 1 || branch.targets[0] == turn_.code[static_cast<size_t>(position)] + 1)
        continue;
      const bool holds = (next == branch.targets[0]) != guard.inverted;  // the predicate, on this way
      const auto tell = [&](int other) {
        const Instruction& i = at(other);
        if (const Operand other_guard = guard_of(i); other_guard.kind == guard.kind && other_guard.index == guard.index)
          guards_[static_cast<size_t>(other)] = holds != other_guard.inverted ? Guard::true_here : Guard::false_here;
      };
      for (int other = position - 1; other >= 0 && !may_write(at(other), guard); --other) tell(other);
      for (int other = position + 1; other < turn_.size(); ++other) {
        tell(other);
        if (may_write(at(other), guard)) break;
      }
    }
  }

  // Reads count, too: which of an instruction's predicates it writes depends on much.
  static bool may_write(const Instruction& i, const Operand& predicate) {
    if (i.is("R2P") || i.is("CALL")) return true;
    return std::ranges::any_of(operands_of(i), [&](const Operand& operand) {
      return operand.kind == predicate.kind && operand.index == predicate.index;
    });
  }

  void step(int position) {
    const Guard guard = guards_[static_cast<size_t>(position)];
    if (guard == Guard::false_here) return;
    const Instruction& i = at(position);
    const Kind kind = turn_.kinds[static_cast<size_t>(position)];
    const Registers written = destination(i);
    if (kind == Kind::wgmma) {
      const size_t g = gemm_index(position);
      if (g >= 32) return;
      if (a_in_registers(i)) operand_[g].add(origin(a_operand(i)));
      for (int r = written.first; r < written.first + written.count && r < 256; ++r)
        registers_[static_cast<size_t>(r)] = {bit(g), 0};
      return;
    }
    if (written.count == 0) return;
    Origin result;
    const bool loads = i.opcode.starts_with("LD");  // what it reads are addresses: its result does not come from them
    if (!loads)
      for (const Registers& read : sources(i)) result.add(origin(read));
    if (kind == Kind::exp) {
      scores_ |= result.raw;
      result = {0, result.raw | result.exped};
    } else if (kind == Kind::multiply && (result.exped & scores_)) {
      met_ |= result.raw;
    }
    // A guarded instruction may leave the old value.
    for (int r = written.first; r < written.first + written.count && r < 256; ++r) {
      Origin& target = registers_[static_cast<size_t>(r)];
      if (i.guard.empty() || guard == Guard::true_here) target = {};
      target.add(result);
    }
  }

  Origin origin(const Registers& read) const {
    Origin result;
    for (int r = read.first; r < read.first + read.count && r < 256; ++r)
      result.add(registers_[static_cast<size_t>(r)]);
    return result;
  }

  size_t gemm_index(int position) const {
    for (size_t g = 0; g < turn_.gemms.size(); ++g)
      for (int step : turn_.gemms[g].steps)
        if (step % turn_.size() == position) return g;
    return 32;
  }

  enum class Guard : char { unknown, true_here, false_here };

  const Listing& listing_;
  Turn& turn_;
  std::vector<Guard> guards_;  // of each position
  std::array<Origin, 256> registers_{};
  std::array<Origin, 32> operand_{};
  uint32_t scores_ = 0, met_ = 0;
};

bool any(const std::vector<Turn*>& turns, bool (*wanted)(const Gemm&)) {
  return std::any_of(turns.begin(), turns.end(),
                     [&](const Turn* turn) { return std::any_of(turn->gemms.begin(), turn->gemms.end(), wanted); });
}

}  // namespace

void name_gemms(const Listing& listing, Turn& turn) { Naming(listing, turn).run(); }

void name_across(const std::vector<Turn*>& turns) {
  const bool forward = any(turns, [](const Gemm& g) { return g.name == "QK"; });
  // Beside a loop with exponentials, one that has none and makes an operand of a product: dS of dP, for dK.
  const bool split = forward && any(turns, [](const Gemm& g) { return g.name == "GEMM" && g.zero && g.feeds; });
  const bool backward = split || any(turns, [](const Gemm& g) { return g.name == "dP"; });
  for (Turn* turn : turns)
    for (Gemm& gemm : turn->gemms) {
      if (split && gemm.name == "QK") gemm.name = "S";
      else if (split && gemm.name == "PV") gemm.name = "dV";
      else if (split && gemm.name == "GEMM") gemm.name = gemm.feeds ? "dP" : gemm.zero ? "dQ" : "dK";
      else if (gemm.name != "GEMM") continue;
      else if (backward && gemm.zero) gemm.name = "dQ";  // of a warpgroup without exponentials
      else if (forward && !backward && !gemm.zero) gemm.name = "PV";
    }
}

}  // namespace sass
