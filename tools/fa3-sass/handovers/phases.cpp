#include "phases.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "../input/text.h"
#include "../listing/kinds.h"
#include "../listing/operands.h"
#include "../listing/steady.h"
#include "../listing/sync.h"

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

bool same(const Operand& a, const Operand& b) { return a.kind == b.kind && a.index == b.index; }

// All registers and predicates that an instruction reads, or may read: also those of addresses, and its guard.
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

// What a condition depends on.
struct Origins {
  std::set<int> loads;      // in this turn of the loop
  std::set<int> earlier;    // in turns before
  bool carried = false;     // on what the loop hands on from turn to turn
  bool followed = true;     // to the end
};

class PhaseFinder {
 public:
  PhaseFinder(const Listing& listing, const Cfg& cfg, const std::vector<MbarrierPlace>& waits,
         const std::vector<MbarrierPlace>& arrivals)
      : listing_(listing), cfg_(cfg), waits_(waits), arrivals_(arrivals), block_of_(listing.code.size(), -1) {
    for (int b : cfg.order)
      for (int i = block(b).begin; i < block(b).end; ++i) block_of_[static_cast<size_t>(i)] = b;
  }

  std::vector<int> run() {
    std::set<int> result;
    for (const MbarrierPlace& wait : waits_)
      if (wait.known && wait.one_address && is_left_out(wait)) result.insert(wait.instruction);
    return {result.begin(), result.end()};
  }

 private:
  using Blocks = std::vector<bool>;  // by number

  const Instruction& code(int i) const { return listing_.code[static_cast<size_t>(i)]; }
  const Block& block(int b) const { return cfg_.blocks[static_cast<size_t>(b)]; }
  int block_of(int i) const { return block_of_[static_cast<size_t>(i)]; }
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

  // Blocks of the loop that are come to from some blocks in the same turn without entering a closed one. The first ones
  // are open.
  Blocks forward(const Loop& loop, const std::vector<int>& from, const Blocks& closed) const {
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

  // Blocks that are not closed from which the turn comes to its end through none that is closed.
  Blocks to_the_end(const Loop& loop, const Blocks& closed) const {
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

  // A wait at the loop's beginning that spins has the same header.
  std::vector<int> ends_of_turn(const Loop& loop) const {
    std::vector<int> result;
    for (int b : block(loop.header).predecessors)
      if (loop.contains(b) && !tries_again(b)) result.push_back(b);
    return result;
  }
  bool tries_again(int b) const {
    const Operand guard = guard_of(code(block(b).end - 1));
    for (int i = block(b).begin; i < block(b).end; ++i)
      if (waits_for_mbarrier(code(i)) && guard.inverted && same(operand_of(code(i).operands[0]), guard)) return true;
    return false;
  }

  // The last writes of a register before instruction `before` of a block, on any way within the turn; and whether the
  // turn's beginning is come to. A guarded write may leave what was there.
  void writes_before(const Loop& loop, int b, int before, const Operand& wanted, std::set<int>& found,
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
  bool is_written(const Loop& loop, const Operand& wanted) const {
    for (int b : loop.blocks)
      for (int i = block(b).begin; i < block(b).end; ++i)
        if (may_write(code(i), wanted)) return true;
    return false;
  }

  // Follows a value back. `turns` says whether also through turns before.
  void follow(const Loop& loop, int b, int before, const Operand& wanted, bool turns, bool earlier, Origins& to,
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
  Origins origins(const Loop& loop, int branch, bool turns) const {
    Origins result;
    std::set<std::tuple<int, int, int, bool>> seen;
    for (const Operand& source : read_by(code(branch)))
      follow(loop, block_of(branch), branch, source, turns, false, result, seen);
    return result;
  }

  // Whether lanes may have different values of what an instruction reads: followed through the whole kernel, and
  // through addresses of what is loaded.
  bool depends_on_lane(int instruction) const {
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
    const std::vector<Operand> x = operands_of(i);
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
      const std::vector<Operand> x = operands_of(made);
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

  // Within a turn of the outermost loop round both, or in code without one: whether there is a way from one to another.
  bool leads_to(const Loop& loop, int from, int to) const {
    const int a = block_of(from), b = block_of(to);
    if (!loop.contains(a) || !loop.contains(b)) return false;
    if (a == b && from < to) return true;
    std::vector<int> begin;
    for (int next : block(a).successors)
      if (loop.contains(next) && next != loop.header) begin.push_back(next);
    return forward(loop, begin, Blocks(cfg_.blocks.size(), false))[static_cast<size_t>(b)];
  }
  // Whether every way through a turn to the second one goes through the first.
  bool precedes(const Loop& loop, int first, int second) const {
    const int a = block_of(first), b = block_of(second);
    if (a == b) return first < second;
    if (a == loop.header) return true;
    Blocks closed(cfg_.blocks.size(), false);
    closed[static_cast<size_t>(a)] = true;
    return !forward(loop, {loop.header}, closed)[static_cast<size_t>(b)];
  }

  // Who arrives where behind a wait for the barrier's phase, or behind a wait for such an arrival.
  std::vector<News> news_of(const Loop& loop, const MbarrierPlace& wait) const {
    std::map<const MbarrierPlace*, int> known;
    const auto learn = [&](const MbarrierPlace& arrival, int behind) {
      const auto [entry, fresh] = known.try_emplace(&arrival, behind);
      if (!fresh && entry->second <= behind) return false;
      entry->second = behind;
      return true;
    };
    const auto others = [&](const MbarrierPlace& place) { return !loop.contains(block_of(place.instruction)); };
    for (const MbarrierPlace& other : waits_) {
      if (!others(other) || !meet(other, wait)) continue;
      const Loop* round = outermost_loop(listing_, cfg_, other.instruction);
      for (const MbarrierPlace& arrival : arrivals_)
        if (others(arrival) && (!round || leads_to(*round, other.instruction, arrival.instruction))) learn(arrival, 0);
    }
    for (bool more = true; more;) {
      more = false;
      const std::map<const MbarrierPlace*, int> before = known;
      for (const MbarrierPlace& other : waits_) {
        if (!others(other)) continue;
        for (const auto& [arrival, behind] : before) {
          if (!meet(other, *arrival)) continue;
          // A wait that is for 1 at first does not hold its first turn up.
          const int later = behind + (other.parity == 1);
          const Loop* round = outermost_loop(listing_, cfg_, other.instruction);
          if (later > 1) continue;
          for (const MbarrierPlace& next : arrivals_)
            if (others(next) && (!round || (round->contains(block_of(next.instruction)) &&
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

  const Listing& listing_;
  const Cfg& cfg_;
  const std::vector<MbarrierPlace>&waits_, &arrivals_;
  std::vector<int> block_of_;
};

}  // namespace

std::vector<int> waits_left_out(const Listing& listing, const Cfg& cfg, const std::vector<MbarrierPlace>& waits,
                                const std::vector<MbarrierPlace>& arrivals) {
  return PhaseFinder(listing, cfg, waits, arrivals).run();
}

}  // namespace sass
