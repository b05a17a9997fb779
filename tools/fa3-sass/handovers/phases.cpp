#include "phases.h"

#include <algorithm>
#include <map>
#include <set>

#include "../dataflow/steady.h"
#include "../listing/kinds.h"
#include "../listing/operands.h"
#include "../listing/sync.h"
#include "turn_flow.h"

namespace sass {
namespace {

class PhaseFinder : TurnFlow {
 public:
  PhaseFinder(const Listing& listing, const Cfg& cfg, const std::vector<MbarrierPlace>& waits,
         const std::vector<MbarrierPlace>& arrivals)
      : TurnFlow(listing, cfg), waits_(waits), arrivals_(arrivals) {}

  std::vector<int> run() {
    std::set<int> result;
    for (const MbarrierPlace& wait : waits_)
      if (wait.known && wait.one_address && is_left_out(wait)) result.insert(wait.instruction);
    return {result.begin(), result.end()};
  }

 private:
  static bool meet(const MbarrierPlace& a, const MbarrierPlace& b) {
    return !a.known || !b.known || (a.address < b.end && b.address < a.end);
  }

  // The innermost loop round an instruction that does more than spin; null if there is none.
  const Loop* loop_of(int instruction) const {
    const Loop* found = nullptr;
    for (const Loop& loop : cfg_.loops)
      if (loop.contains(block_of(instruction)) && works(loop) && (!found || loop.blocks.size() < found->blocks.size()))
        found = &loop;
    return found;
  }
  bool works(const Loop& loop) const {
    const auto does = [](const Instruction& i) {
      const Kind kind = kind_of(i);
      return kind == Kind::wgmma || kind == Kind::mbarrier_arrive || kind == Kind::tma_load ||
             kind == Kind::tma_store || kind == Kind::barrier;
    };
    return std::ranges::any_of(loop.blocks, [&](int b) {
      for (int i = block(b).begin; i < block(b).end; ++i)
        if (does(code(i))) return true;
      return false;
    });
  }

  // Whether an operand is the lowest bit of a number, perhaps in another place, that each turn of the loop adds 1 to.
  bool goes_on(const Loop& loop, const MbarrierPlace& wait) const {
    int b = block_of(wait.instruction), before = wait.instruction;
    Operand wanted = operand_of(code(wait.instruction).operands.back());
    for (int steps = 0; steps < 16 && wanted.is_register(); ++steps) {
      std::set<int> found;
      bool at_header = false;
      writes_before(loop, b, before, wanted, found, at_header);
      if (found.empty()) return at_header && is_counted(loop, wanted);
      if (at_header || found.size() > 1) return false;
      const int i = *found.begin();
      const Instruction& made = code(i);
      const std::vector<Operand> sources = read_by(made);
      const bool low_bit = (made.is("SHF") || made.is("USHF")) ? made.has("L")
                           : (made.is("LOP3") || made.is("ULOP3"))
                               ? made.operands.size() > 4 && made.operands[2] == "0x1" && made.operands[4] == "0xc0"
                               : made.is("MOV") || made.is("UMOV") || made.is("R2UR") || is_move(made);
      if (!low_bit || sources.size() != 1 || guard_of(made).index != true_predicate) return false;
      wanted = sources[0];
      b = block_of(i);
      before = i;
    }
    return false;
  }
  // "IMAD.U32 R2, RZ, RZ, UR4", "IMAD.SHL.U32 R2, R4, 0x80000000, RZ"
  static bool is_move(const Instruction& i) {
    if (!i.is("IMAD") && !i.is("UIMAD")) return false;
    const std::vector<Operand>& x = operands_of(i);
    if (x.size() != 4) return false;
    const auto is_number = [](const Operand& o, std::uint32_t value) {
      return o.kind == Operand::Kind::number && o.value == value;
    };
    return (is_number(x[1], 0) && is_number(x[2], 0)) || (is_number(x[2], 0x80000000u) && is_number(x[3], 0));
  }

  // Whether each way through a turn adds 1 to a register, or flips its lowest bit, and does nothing else to it.
  bool is_counted(const Loop& loop, const Operand& counter) const {
    std::set<int> found;
    for (int end : ends_of_turn(loop)) {
      bool at_header = false;
      writes_before(loop, end, block(end).end, counter, found, at_header);
      if (at_header) return false;
    }
    return std::ranges::all_of(found, [&](int i) {
      const Instruction& made = code(i);
      const std::vector<Operand>& x = operands_of(made);
      const bool adds = (made.is("IADD3") || made.is("VIADD") || made.is("UIADD3")) && !made.has("X");
      const bool flips = (made.is("LOP3") || made.is("ULOP3")) && x.size() > 4 && made.operands[4] == "0x3c";
      if ((!adds && !flips) || guard_of(made).index != true_predicate || x.size() < 3 || !same(x[1], counter) ||
          x[1].negative || x[2].kind != Operand::Kind::number || x[2].value % 2 != 1)
        return false;
      if (x.size() > 3 && (x[3].kind != Operand::Kind::number || x[3].value != 0)) return false;
      std::set<int> before;
      bool at_header = false;
      writes_before(loop, block_of(i), i, counter, before, at_header);
      return at_header && before.empty();
    });
  }

  // An arrival that says that the barrier's phase is over, and how many turns ago that may have been.
  struct News {
    const MbarrierPlace* arrival;
    int behind;
  };

  // Who arrives where behind a wait for the barrier's phase, or behind a wait for such an arrival.
  std::vector<News> news_of(const Loop& loop, const MbarrierPlace& wait) const {
    std::map<const MbarrierPlace*, int> known;
    const auto learn = [&](const MbarrierPlace& arrival, int behind) {
      const auto [entry, fresh] = known.try_emplace(&arrival, behind);
      if (!fresh && entry->second <= behind) return false;
      entry->second = behind;
      return true;
    };
    const auto outside_loop = [&](const MbarrierPlace& place) { return !loop.contains(block_of(place.instruction)); };
    for (const MbarrierPlace& other : waits_) {
      if (!outside_loop(other) || !meet(other, wait)) continue;
      const Loop* round = outermost_loop(listing_, cfg_, other.instruction);
      for (const MbarrierPlace& arrival : arrivals_)
        if (outside_loop(arrival) && (!round || leads_to(*round, other.instruction, arrival.instruction)))
          learn(arrival, 0);
    }
    for (bool more = true; more;) {
      more = false;
      const std::map<const MbarrierPlace*, int> before = known;
      for (const MbarrierPlace& other : waits_) {
        if (!outside_loop(other)) continue;
        for (const auto& [arrival, behind] : before) {
          if (!meet(other, *arrival)) continue;
          // A wait that is for 1 at first does not hold its first turn up.
          const int later = behind + (other.parity == 1);
          const Loop* round = outermost_loop(listing_, cfg_, other.instruction);
          if (later > 1) continue;
          for (const MbarrierPlace& next : arrivals_)
            if (outside_loop(next) && (!round || (round->contains(block_of(next.instruction)) &&
                                                  precedes(*round, other.instruction, next.instruction))))
              more |= learn(next, later);
        }
      }
    }
    std::vector<News> result;
    for (const auto& [arrival, behind] : known) result.push_back({arrival, behind});
    return result;
  }

  // Named barriers at which threads meet that never come to this loop.
  bool meets_others(const Loop& loop, int i) const {
    const Instruction& barrier = code(i);
    if (!barrier.is("BAR") || barrier.has("ARV") || barrier.operands.empty()) return false;
    const Operand id = operand_of(barrier.operands[0]);
    if (id.kind != Operand::Kind::number) return true;
    for (int b : cfg_.order) {
      if (loop.contains(b)) continue;
      for (int k = block(b).begin; k < block(b).end; ++k) {
        if (!code(k).is("BAR") || code(k).operands.empty()) continue;
        const Operand other = operand_of(code(k).operands[0]);
        if (other.kind != Operand::Kind::number || other.value == id.value) return true;
      }
    }
    return false;
  }

  bool is_left_out(const MbarrierPlace& wait) const {
    const Loop* const loop = loop_of(wait.instruction);
    if (!loop || guard_of(code(wait.instruction)).index != true_predicate || !goes_on(*loop, wait)) return false;
    for (const MbarrierPlace& arrival : arrivals_)
      if (meet(arrival, wait) && loop->contains(block_of(arrival.instruction))) return false;

    Blocks closed(cfg_.blocks.size(), false);  // by the waits for this barrier
    for (const MbarrierPlace& other : waits_)
      if (meet(other, wait)) closed[static_cast<size_t>(block_of(other.instruction))] = true;
    if (closed[static_cast<size_t>(loop->header)] || !leaves_out(*loop, closed, closed)) return false;

    Blocks early = closed, late = closed;  // and by what says the same
    const std::vector<News> news = news_of(*loop, wait);
    for (const MbarrierPlace& other : waits_) {
      const int b = block_of(other.instruction);
      if (!loop->contains(b)) continue;
      for (const News& known : news) {
        if (!meet(other, *known.arrival)) continue;
        const int behind = known.behind + (other.parity == 1);
        if (behind == 0) early[static_cast<size_t>(b)] = true;
        if (behind <= 1) late[static_cast<size_t>(b)] = true;
      }
    }
    for (int b : loop->blocks)
      for (int i = block(b).begin; i < block(b).end; ++i)
        if (meets_others(*loop, i) || code(i).is("CALL"))
          early[static_cast<size_t>(b)] = late[static_cast<size_t>(b)] = true;
    // In the next turn, up to the wait.
    if (late[static_cast<size_t>(loop->header)]) return false;
    late[static_cast<size_t>(block_of(wait.instruction))] = false;
    if (!forward(*loop, {loop->header}, late)[static_cast<size_t>(block_of(wait.instruction))]) return false;
    return leaves_out(*loop, closed, early);
  }

  // Whether what was loaded in a turn decides that it goes round the closed blocks, and nothing else.
  bool leaves_out(const Loop& loop, const Blocks& closed, const Blocks& open_ends) const {
    if (open_ends[static_cast<size_t>(loop.header)]) return false;
    const Blocks begun = forward(loop, {loop.header}, open_ends), ends = to_the_end(loop, open_ends);
    const Blocks ends_without = to_the_end(loop, closed);
    for (int b : loop.blocks) {
      if (!begun[static_cast<size_t>(b)] || !ends[static_cast<size_t>(b)] || block(b).successors.size() < 2) continue;
      std::vector<int> around;
      bool to_the_wait = false;
      for (int next : block(b).successors) {
        if (!loop.contains(next)) continue;
        if (next == loop.header ? !tries_again(b) : ends[static_cast<size_t>(next)]) around.push_back(next);
        else if (next != loop.header && !ends_without[static_cast<size_t>(next)]) to_the_wait = true;
      }
      if (around.empty() || !to_the_wait) continue;
      if (is_decided_anew(loop, block(b).end - 1, around)) return true;
    }
    return false;
  }

  bool is_decided_anew(const Loop& loop, int branch, const std::vector<int>& around) const {
    const Origins origin = origins(loop, branch, false);
    if (!origin.followed || origin.carried || origin.loads.empty() || depends_on_lane(branch)) return false;
    // The loop may end for the same reason.
    std::vector<int> begin;
    for (int b : around)
      if (b != loop.header) begin.push_back(b);
    const Blocks behind = forward(loop, begin, Blocks(cfg_.blocks.size(), false));
    const auto shares = [&](const std::set<int>& loads) {
      return std::ranges::any_of(loads, [&](int i) { return origin.loads.count(i) > 0; });
    };
    for (int b : loop.blocks) {
      const int last = block(b).end - 1;
      const bool ends = code(last).is("EXIT") || std::ranges::any_of(block(b).successors,
                                                                     [&](int next) { return !loop.contains(next); });
      if (!ends) continue;
      const Origins end = origins(loop, last, true);
      if (!end.followed || shares(end.earlier) || (behind[static_cast<size_t>(b)] && shares(end.loads))) return false;
    }
    return true;
  }

  const std::vector<MbarrierPlace>&waits_, &arrivals_;
};

}  // namespace

std::vector<int> waits_left_out(const Listing& listing, const Cfg& cfg, const std::vector<MbarrierPlace>& waits,
                                const std::vector<MbarrierPlace>& arrivals) {
  return PhaseFinder(listing, cfg, waits, arrivals).run();
}

}  // namespace sass
