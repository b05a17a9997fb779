#include "handovers.h"

#include <algorithm>

#include "../dataflow/steady.h"
#include "../dataflow/values.h"
#include "../listing/sync.h"
#include "../loops/kernel.h"
#include "../system/text.h"
#include "mbarriers.h"

namespace sass {
namespace {

std::string_view second_operand(const Instruction& i) {
  return i.operands.size() < 2 ? std::string_view() : std::string_view(i.operands[1]);
}

// The tensor map of a TMA instruction: "[UR8], [UR16]" -> UR16; of one that fetches the map alone: "[UR16]".
std::string_view map_operand(const Instruction& i) {
  if (!i.is("UTMALDG") && !i.is("UTMASTG") && !i.is("UTMAREDG") && !i.is("UTMACCTL")) return {};
  const std::string_view operand = i.is("UTMACCTL") ? first_operand(i) : second_operand(i);
  return operand.size() > 2 && operand.front() == '[' ? operand.substr(1, operand.size() - 2) : std::string_view();
}

class HandoverFinder {
 public:
  explicit HandoverFinder(const Kernel& kernel) : kernel_(kernel), listing_(kernel.listing), cfg_(kernel.cfg) {}

  Handovers run() {
    for (int b : cfg_.order)
      for (int i = block(b).begin; i < block(b).end; ++i) order_.push_back(i);
    std::ranges::sort(order_);
    find_mbarriers(kernel_, result_);
    find_named();
    find_memory();
    return std::move(result_);
  }

 private:
  const Instruction& code(int i) const { return listing_.code[static_cast<size_t>(i)]; }
  const Block& block(int b) const { return cfg_.blocks[static_cast<size_t>(b)]; }

  template <typename Wanted>
  std::vector<int> where(Wanted wanted) const {
    std::vector<int> found;
    for (int i : order_)
      if (wanted(code(i))) found.push_back(i);
    return found;
  }

  bool in_loop(int i) const { return outermost_loop(listing_, cfg_, i) != nullptr; }

  // "BAR.SYNC.DEFER_BLOCKING R6, 0x80": the barrier's number, and how many threads meet there.
  void find_named() {
    const std::vector<int> all = where([](const Instruction& i) {
      return i.is("BAR") && !i.operands.empty() && (i.has("SYNC") || i.has("ARV") || i.has("RED"));
    });
    // The number comes behind a predicate in BAR.RED.
    const auto id_operand = [](const Instruction& i) { return first_operand(i); };
    const auto ids = operand_values(listing_, cfg_, all, id_operand, Meeting::unknown);
    std::map<std::pair<int, int>, NamedBarrier> found;
    for (size_t k = 0; k < all.size(); ++k) {
      const Instruction& i = code(all[k]);
      const Operand id = operand_of(i.operands[0]);
      NamedBarrier barrier;
      if (id.kind == Operand::Kind::number) barrier.id = static_cast<int>(id.value);
      else if (ids[k].count == 1 && !ids[k].runtime && !in_loop(all[k]))
        barrier.id = static_cast<int>(ids[k].values[0]);
      if (i.operands.size() > 1) {
        const Operand threads = operand_of(i.operands[1]);
        barrier.threads = threads.kind == Operand::Kind::number ? static_cast<int>(threads.value)
                                                                : NamedBarrier::unknown;
      }
      NamedBarrier& entry = found.try_emplace({barrier.id, barrier.threads}, barrier).first->second;
      (i.has("ARV") ? entry.arrivals : entry.syncs).push_back(all[k]);
    }
    for (auto& [key, barrier] : found) result_.named.push_back(std::move(barrier));
    find_odd_named();
  }

  void find_odd_named() {
    bool any_sync_unknown = false;
    for (const NamedBarrier& barrier : result_.named)
      any_sync_unknown |= barrier.id == NamedBarrier::unknown && !barrier.syncs.empty();
    const int most = kernel_.record.max_threads;
    const auto blame = [&](const NamedBarrier& barrier) {
      for (const std::vector<int>* list : {&barrier.syncs, &barrier.arrivals})
        result_.odd_named.insert(result_.odd_named.end(), list->begin(), list->end());
    };
    for (const NamedBarrier& barrier : result_.named) {
      const bool impossible = barrier.threads >= 0 && (barrier.threads % 32 != 0 || barrier.threads == 0 ||
                                                       (most > 0 && barrier.threads > most));
      // The same barrier may count to one number of threads first, and then, when these have met, to another one. Who
      // arrives must find a user that waits for as many.
      const auto meets = [&](const NamedBarrier& other) {
        return !other.syncs.empty() && other.id == barrier.id &&
               (other.threads == barrier.threads || other.threads < 0 || barrier.threads < 0);
      };
      const bool met = any_sync_unknown || barrier.id == NamedBarrier::unknown ||
                       std::ranges::any_of(result_.named, meets);
      if (impossible || !met) blame(barrier);
    }
    std::ranges::sort(result_.odd_named);
  }

  // Bulk copies, semaphores, tensor maps, and other grids.
  void find_memory() {
    const auto next_is = [&](int i, const char* name) {
      return i + 1 < static_cast<int>(listing_.code.size()) && code(i + 1).is(name);
    };
    result_.bulk_commits = where([](const Instruction& i) { return i.is("UTMACMDFLUSH"); });
    // Groups of cp.async, which are older, are waited for by the same instruction.
    const bool other_groups = !where([](const Instruction& i) { return i.is("LDGDEPBAR"); }).empty();
    // Other scoreboards are those of instructions whose results come late.
    if (!other_groups && !result_.bulk_commits.empty())
      result_.bulk_waits = where(
          [](const Instruction& i) { return i.is("DEPBAR") && i.operands.size() > 1 && i.operands[0] == "SB0"; });
    for (int i : result_.bulk_waits)
      if (next_is(i, "CCTL")) result_.complete_waits.push_back(i);
    const auto strong = [](const Instruction& i) { return i.has("STRONG") && (i.has("GPU") || i.has("SYS")); };
    result_.acquires = where([&](const Instruction& i) { return strong(i) && (i.is("LDG") || i.is("LD")); });
    std::erase_if(result_.acquires, [&](int i) { return !next_is(i, "CCTL"); });
    const auto memory_fence = [](const Instruction& i) { return i.is("MEMBAR") && (i.has("GPU") || i.has("SYS")); };
    result_.memory_fences = where(memory_fence);
    result_.proxy_fences = where([](const Instruction& i) { return proxy_fence(i); });
    for (int i : where(strong)) {
      const Instruction& change = code(i);
      if (!change.is("STG") && !change.is("ST") && !change.is("RED") && !change.is("REDG") && !change.is("ATOMG") &&
          !change.is("ATOM"))
        continue;
      bool fenced = false;
      for (int k = i - 1; k >= 0 && k > i - 12 && !code(k).is("BRA"); --k)
        fenced |= memory_fence(code(k));
      if (fenced) result_.releases.push_back(i);
    }
    const std::vector<int> mapped = where([](const Instruction& i) { return !map_operand(i).empty(); });
    const auto maps = operand_values(listing_, cfg_, mapped, map_operand, Meeting::unknown);
    for (size_t k = 0; k < mapped.size(); ++k)
      result_.tensor_maps[maps[k].count == 1 ? maps[k].values[0] : 0].push_back(mapped[k]);
    result_.grid_waits = where([](const Instruction& i) { return i.is("ACQBULK"); });
    result_.grid_launches = where([](const Instruction& i) { return i.is("PREEXIT"); });
    if (!other_groups) {
      find_never_read_out();
      find_released_in_flight();
    }
  }

  // Blocks that are reached from a block on ways that lead forward.
  std::vector<bool> reached_from(int b) const {
    std::vector<bool> reached(cfg_.blocks.size(), false);
    reached[static_cast<size_t>(b)] = true;
    for (int at : cfg_.order)
      for (int next : block(at).successors)
        if (reached[static_cast<size_t>(at)] &&
            cfg_.rank[static_cast<size_t>(next)] > cfg_.rank[static_cast<size_t>(at)])
          reached[static_cast<size_t>(next)] = true;
    return reached;
  }
  int block_of(int i) const {
    for (int b : cfg_.order)
      if (block(b).begin <= i && i < block(b).end) return b;
    return 0;
  }

  // A commit in a loop that writes shared memory again, and waits for no group. What is stored last need not be waited
  // for by a kernel that ends.
  void find_never_read_out() {
    for (int commit : result_.bulk_commits) {
      const Loop* loop = outermost_loop(listing_, cfg_, commit);
      if (!loop) continue;
      bool written = false, waits = false;
      for (int b : loop->blocks)
        for (int i = block(b).begin; i < block(b).end; ++i) {
          written |= code(i).is("STS") || code(i).is("STSM") || tma_load(code(i));
          waits |= std::ranges::count(result_.bulk_waits, i) > 0;
        }
      if (written && !waits) result_.never_read_out.push_back(commit);
    }
  }

  // A release that is come to from a bulk reduction with no complete wait on any way between.
  void find_released_in_flight() {
    const std::vector<int> reductions =
        where([](const Instruction& i) { return i.is("UBLKRED") || i.is("UTMAREDG"); });
    if (reductions.empty()) return;
    for (int release : result_.releases) {
      const int last = block_of(release);
      std::vector<int> before;  // the reductions that it may follow
      bool waited = false;
      for (int reduction : reductions) {
        const int first = block_of(reduction);
        const std::vector<bool> reached = reached_from(first);
        if (!reached[static_cast<size_t>(last)] || (first == last && reduction > release)) continue;
        before.push_back(reduction);
        for (int wait : result_.complete_waits) {
          const int b = block_of(wait);
          waited |= reached[static_cast<size_t>(b)] && reached_from(b)[static_cast<size_t>(last)] &&
                    (b != first || wait > reduction) && (b != last || wait < release);
        }
      }
      if (!before.empty() && !waited) result_.released_in_flight.push_back(release);
    }
  }

  const Kernel& kernel_;
  const Listing& listing_;
  const Cfg& cfg_;
  std::vector<int> order_;
  Handovers result_;
};

}  // namespace

Handovers handovers_of(const Kernel& kernel) { return HandoverFinder(kernel).run(); }

}  // namespace sass
