#include "mbarriers.h"

#include <algorithm>
#include <iterator>

#include "../dataflow/steady.h"
#include "../dataflow/values.h"
#include "../listing/sync.h"
#include "../loops/kernel.h"
#include "../system/text.h"
#include "phases.h"

namespace sass {
namespace {

// An mbarrier begins with this less the arrivals that it counts to, twice.
constexpr std::uint32_t full_count = 0x100000;

// A place that uses an mbarrier: the address when it is come to first, and whether it may be another one later.
struct Use {
  int instruction = 0;
  std::uint32_t address = 0, end = 0;  // the barriers that it may be at
  bool known = false, varies = false;
  bool guessed = false;  // known only if there is such a barrier: a register of the address is not known
};

std::string_view init_count(const Instruction& i) { return last_operand(i); }

// "[UR8]" -> 8; -1 if it is none.
int uniform_register(std::string_view text) {
  if (text.size() < 3 || text.front() != '[') return -1;
  const Operand operand = operand_of(text.substr(1, text.find_first_of("]+") - 1));
  return operand.kind == Operand::Kind::uniform_register ? operand.index : -1;
}

// The register behind the one that a load by TMA is given its destination in: the address of its mbarrier.
int barrier_register(const Instruction& i) {
  const int destination = uniform_register(first_operand(i));
  return destination < 0 ? -1 : destination + 1;
}
std::string_view barrier_operand(const Instruction& i) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> made;
    for (int r = 0; r < 65; ++r) made.push_back("UR" + std::to_string(r));
    return made;
  }();
  const int r = barrier_register(i);
  return r < 0 ? std::string_view() : std::string_view(names[static_cast<size_t>(std::min(r, 64))]);
}
class Mbarriers {
 public:
  Mbarriers(const Kernel& kernel, Handovers& result)
      : kernel_(kernel), listing_(kernel.listing), cfg_(kernel.cfg), result_(result) {}

  void run() {
    find_mbarriers();
    find_steady_waits();
    find_waits_left_out();
  }

 private:
  const Instruction& code(int i) const { return listing_.code[static_cast<size_t>(i)]; }

  template <typename Wanted>
  std::vector<int> where(Wanted wanted) const {
    std::vector<int> found;
    for (int b : cfg_.order)
      for (int i = cfg_.blocks[static_cast<size_t>(b)].begin; i < cfg_.blocks[static_cast<size_t>(b)].end; ++i)
        if (wanted(code(i))) found.push_back(i);
    std::ranges::sort(found);
    return found;
  }

  // Shared memory begins at a multiple of 1024. What is added to it in a register and is less than `index` is the index
  // of a barrier in its ring, which need not begin with the first.
  static constexpr std::uint32_t unit = 1024, index = 128;

  std::vector<Use> uses(const std::vector<int>& instructions, std::string_view (*operand)(const Instruction&)) const {
    std::vector<Use> result;
    const auto values = operand_values(listing_, cfg_, instructions, operand, Meeting::unknown);
    for (size_t u = 0; u < instructions.size(); ++u) {
      Use use;
      use.instruction = instructions[u];
      const std::string_view text = operand(code(use.instruction));
      const std::uint32_t constant = constant_part(text);
      const std::uint32_t base = values[u].count == 1 ? values[u].values[0] - constant : 0;
      const Loop* loop = outermost_loop(listing_, cfg_, use.instruction);
      use.varies =
          values[u].runtime || (loop && !is_steady(listing_, cfg_, *loop, use.instruction, text));
      use.known = base >= unit || constant >= index;
      if (base < unit) use.varies = use.guessed = true;
      const bool with_index = use.varies && constant != 0 && base % unit < index;
      use.address = constant + (base < unit ? unit : with_index ? base / unit * unit : base);
      result.push_back(use);
    }
    return result;
  }

  // "R4+UR39+0x38000" -> 0x38000
  static std::uint32_t constant_part(std::string_view operand) {
    const Operand last = operand_of(split(operand, '+').back());
    return last.kind == Operand::Kind::number ? last.value : 0;
  }

  // Loads find their barrier in a register, which ptxas may fill lane by lane: "@P3 R2UR UR9, R3".
  std::vector<Use> load_uses(const std::vector<int>& loads) const {
    constexpr int far = 40;
    std::vector<int> plain, moves;
    std::map<int, std::vector<int>> loads_of;
    for (int i : loads) {
      const Operand wanted = operand_of(barrier_operand(code(i)));
      int made = i - 1;
      while (made > i - far && made >= 0 && !code(made).is("BRA") && !writes(code(made), wanted)) --made;
      if (made >= 0 && code(made).is("R2UR") && !code(made).guard.empty() && writes(code(made), wanted)) {
        if (loads_of[made].empty()) moves.push_back(made);
        loads_of[made].push_back(i);
      } else {
        plain.push_back(i);
      }
    }
    std::vector<Use> result = uses(plain, barrier_operand);
    std::ranges::sort(moves);
    for (const Use& move : uses(moves, last_operand))
      for (int i : loads_of[move.instruction]) {
        result.push_back(move);
        result.back().instruction = i;
      }
    return result;
  }

  static bool meet(const Use& a, const Use& b) { return a.address < b.end && b.address < a.end; }

  // Those of `some` at whose barriers none of `others` is; nothing if it cannot be said.
  static std::vector<int> alone(const std::vector<Use>& some, const std::vector<Use>& excluded) {
    std::vector<int> result;
    if (std::ranges::any_of(excluded, [](const Use& u) { return !u.known; })) return result;
    for (const Use& use : some)
      if (use.known && std::ranges::none_of(excluded, [&](const Use& other) { return meet(use, other); }))
        result.push_back(use.instruction);
    return result;
  }

  // The barrier at an address, or the ring that has it.
  Mbarrier* at(std::uint32_t address) {
    Mbarrier* found = nullptr;
    for (Mbarrier& barrier : result_.mbarriers)
      if (barrier.address <= address) found = &barrier;
    return found;
  }

  // For how many arrivals each barrier is made. `starts` are the addresses of those that are used.
  void note_counts(const std::vector<int>& inits, const std::vector<Use>& init, const std::set<std::uint32_t>& starts) {
    const auto counts = operand_values(listing_, cfg_, inits, init_count, Meeting::all);
    for (size_t k = 0; k < init.size(); ++k) {
      // In a loop it cannot be said which barrier has which count.
      Mbarrier* barrier = init[k].known && !in_any_loop(inits[k]) ? at(init[k].address) : nullptr;
      std::set<std::uint32_t>& to = barrier ? barrier->counts : result_.other_counts;
      for (int v = 0; v < counts[k].count; ++v) {
        const std::uint32_t count = full_count - counts[k].values[v] / 2;
        if (!counts[k].runtime && count < full_count / 2) to.insert(count);
      }
      if (barrier) barrier->inits.push_back(inits[k]);
      // One that nobody is seen to use harms nobody.
      if (counts[k].count == 1 && !counts[k].runtime && counts[k].values[0] == 2 * full_count && init[k].known &&
          starts.contains(init[k].address))
        result_.odd_counts.push_back(inits[k]);
    }
  }
  void note_uses(std::vector<int> Mbarrier::*to, const std::vector<Use>& list) {
    for (const Use& use : list)
      if (use.known) (at(use.address)->*to).push_back(use.instruction);
  }
  void note_bytes(const std::vector<int>& expecting, const std::vector<Use>& expectation) {
    const auto bytes = operand_values(listing_, cfg_, expecting, last_operand, Meeting::all);
    for (size_t k = 0; k < expectation.size(); ++k)
      if (expectation[k].known)
        for (int v = 0; v < bytes[k].count; ++v)
          at(expectation[k].address)
              ->bytes.insert(bytes[k].runtime ? "runtime" : std::to_string(bytes[k].values[v]));
  }
  void note_waits(const std::vector<Use>& wait) {
    for (size_t w = 0; w < wait.size(); ++w) {
      if (!wait[w].known) continue;
      at(wait[w].address)->waits.push_back(wait[w].instruction);
      at(wait[w].address)->parities.push_back(kernel_.protocol.parities[w]);
    }
  }

  void find_mbarriers() {
    const std::vector<int> inits = where(initialises_mbarrier);
    const std::vector<int> expecting = where(expects_bytes);
    const std::vector<int> loading = where(tma_load);
    std::vector<Use> init = uses(inits, address_operand);
    std::vector<Use> arrival = uses(where([](const Instruction& i) { return only_arrives(i) || i.is("ARRIVES"); }),
                                    address_operand);
    std::vector<Use> expectation = uses(expecting, address_operand);
    std::vector<Use> announcement = uses(where(announces_copies), address_operand);
    std::vector<Use> load = load_uses(loading);
    std::vector<Use> wait = uses(kernel_.protocol.waits, address_operand);

    // Where the address may vary it is that of a ring. A ring ends where the next one begins, which is sure where
    // somebody arrives and somebody waits.
    std::set<std::uint32_t> made, arrived, awaited;
    for (const Use& use : init)
      if (use.known && !use.guessed) made.insert(use.address);
    // An address for the cluster is put together, as by UPRMT, and may have lost the base of shared memory on the way:
    // a place where no barrier is made.
    for (std::vector<Use>* list : {&arrival, &expectation})
      for (Use& use : *list)
        if (code(use.instruction).has("RED") && !made.empty() && !made.contains(use.address)) use.known = false;
    const auto note = [&](std::vector<Use>& list, std::set<std::uint32_t>& starts) {
      for (const Use& use : list)
        if (use.known && !use.guessed) starts.insert(use.address);
    };
    note(arrival, arrived);
    note(expectation, arrived);
    note(wait, awaited);
    std::set<std::uint32_t> rings, starts = arrived;
    starts.insert(awaited.begin(), awaited.end());
    std::ranges::set_intersection(arrived, awaited, std::inserter(rings, rings.end()));
    for (std::vector<Use>* list : {&arrival, &announcement, &expectation, &wait, &load})
      for (Use& use : *list) {
        // A load has the whole address in a register, perhaps with an index.
        const auto next = starts.upper_bound(use.address);
        const bool near = next != starts.begin() && use.address - *std::prev(next) < index;
        if (list == &load) use.known = use.known && (near || made.count(use.address));
        else if (use.guessed) use.known = use.known && (starts.count(use.address) || made.count(use.address));
        if (!use.known) result_.elsewhere.push_back(use.instruction);
        else if (list != &load || !near) starts.insert(use.address);
      }
    std::ranges::sort(result_.elsewhere);
    // With those that spin, which are copies.
    every_wait_ = uses(where(waits_for_mbarrier), address_operand);
    for (Use& use : every_wait_)
      if (use.guessed) use.known = use.known && (starts.count(use.address) || made.count(use.address));
    constexpr std::uint32_t largest_ring = 1024;
    for (std::vector<Use>* list : {&arrival, &expectation, &load, &wait, &every_wait_})
      for (Use& use : *list) {
        const auto next = rings.upper_bound(use.address);
        use.end = !use.varies               ? use.address + 8
                  : next == rings.end()     ? use.address + largest_ring
                                            : std::min(*next, use.address + largest_ring);
      }

    for (std::uint32_t start : starts) {
      result_.mbarriers.emplace_back();
      result_.mbarriers.back().address = start;
    }
    note_counts(inits, init, starts);
    note_uses(&Mbarrier::arrivals, arrival);
    note_uses(&Mbarrier::expectations, expectation);
    note_uses(&Mbarrier::announcements, announcement);
    note_uses(&Mbarrier::loads, load);
    note_bytes(expecting, expectation);
    note_waits(wait);

    std::vector<Use> any_arrival = arrival;
    any_arrival.insert(any_arrival.end(), expectation.begin(), expectation.end());
    if (!wait.empty()) result_.never_awaited = alone(any_arrival, wait);
    if (!expectation.empty()) result_.unexpected_loads = alone(load, expectation);
    const bool others_fill = !where([](const Instruction& i) { return i.is("STAS") || i.is("UBLKCP"); }).empty();
    if (!load.empty() && !others_fill) result_.never_loaded = alone(expectation, load);
    // With a modifier it may be an arrival of another kind, as in a cluster.
    std::erase_if(result_.never_loaded, [&](int i) { return code(i).opcode != "SYNCS.ARRIVE.TRANS64"; });
    wait_ = std::move(wait);
    arrival_ = std::move(any_arrival);
  }

  int block_of(int i) const {
    for (int b : cfg_.order)
      if (cfg_.blocks[static_cast<size_t>(b)].begin <= i && i < cfg_.blocks[static_cast<size_t>(b)].end) return b;
    return 0;
  }
  bool in_any_loop(int i) const {
    return std::ranges::any_of(cfg_.loops, [&](const Loop& loop) { return loop.contains(block_of(i)); });
  }
  bool in_loop(int i) const { return outermost_loop(listing_, cfg_, i) != nullptr; }

  void find_steady_waits() {
    std::vector<const Use*> fixed;
    for (const Use& wait : wait_) {
      const Loop* loop = outermost_loop(listing_, cfg_, wait.instruction);
      if (!loop || !is_steady(listing_, cfg_, *loop, wait.instruction, last_operand(code(wait.instruction)))) continue;
      if (wait.known)
        for (Mbarrier& barrier : result_.mbarriers)
          if (std::ranges::count(barrier.waits, wait.instruction)) barrier.steady.push_back(wait.instruction);
      // A wait for what has come once is allowed in every turn: phases must go on.
      const bool goes_on = std::ranges::any_of(
          arrival_, [&](const Use& a) { return a.known && meet(a, wait) && in_loop(a.instruction); });
      if (wait.known && !wait.varies && goes_on) fixed.push_back(&wait);
    }
    // One that flags allow once, as first_piece would, has others that do flip.
    for (const Use* wait : fixed)
      if (std::ranges::all_of(wait_, [&](const Use& other) {
            return other.known && (!meet(other, *wait) || std::ranges::count(fixed, &other) > 0);
          }))
        result_.parity_never_flips.push_back(wait->instruction);
  }

  void find_waits_left_out() {
    const auto places = [](const std::vector<Use>& uses) {
      std::vector<MbarrierPlace> result;
      for (const Use& use : uses)
        result.push_back({use.instruction, use.address, use.end, use.known, use.known && !use.varies, -1});
      return result;
    };
    std::vector<MbarrierPlace> waits = places(every_wait_);
    std::vector<int> instructions;
    for (const Use& use : every_wait_) instructions.push_back(use.instruction);
    const auto parities = operand_values(listing_, cfg_, instructions, last_operand, Meeting::unknown);
    for (size_t w = 0; w < waits.size(); ++w)
      if (parities[w].count == 1) waits[w].parity = parities[w].values[0] != 0;
    const std::vector<int> left_out = waits_left_out(listing_, cfg_, waits, places(arrival_));
    std::ranges::set_intersection(left_out, kernel_.protocol.waits, std::back_inserter(result_.left_out));
  }

  const Kernel& kernel_;
  const Listing& listing_;
  const Cfg& cfg_;
  std::vector<Use> wait_, every_wait_, arrival_;
  Handovers& result_;
};

}  // namespace

void find_mbarriers(const Kernel& kernel, Handovers& handovers) { Mbarriers(kernel, handovers).run(); }

}  // namespace sass
