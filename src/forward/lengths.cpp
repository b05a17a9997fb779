#include "forward/lengths.h"

#include <algorithm>

#include "forward/cost.h"
#include "forward/tiles.h"
#include "integers.h"

namespace fa3 {
namespace {

// With a constant unit a part has so many keys. Its K/V blocks then take about ten times as long as what it writes and
// reads.
constexpr int64_t constant_keys = 4096;

int64_t tiles_of_head(const ForwardProblem& problem, const ForwardRow& row, const PackedTotals& totals, int64_t each) {
  const int64_t total = totals.q < 0 ? -1 : packing_of(problem, row).rows(totals.q);
  return most_tiles(problem.batch, rows_of(problem, row), total, row.Br, each);
}

// Those of the planner for calls of one length (candidate.cpp), for the longest sequence.
RowCosts costs_for(const ForwardProblem& problem, const ForwardRow& row) {
  RowCosts costs = costs_of(row);
  const int64_t warpgroups = divide_up(rows_of(problem, row), 64);
  for (Costs* c : {&costs.together, &costs.behind}) {
    if (warpgroups < row.warpgroups())
      c->block = narrow(block_time(row, c->block, std::max<int64_t>(warpgroups, 1)));
    if (row.has(Trait::shares_keys) && divide_up(problem.seqlen_k, row.Bc) < least_turns(row)) c->piece += short_turns;
  }
  return costs;
}

// A single consumer is done with few rows sooner.
int32_t stored_rows(const ForwardProblem& problem, const ForwardRow& row) {
  return narrow(row.warpgroups() == 1 ? std::min<int64_t>(rows_of(problem, row), 64) : 0);
}

}  // namespace

bool plan_lengths_params(const ForwardProblem& problem, const ForwardRow& row, int multiprocessors,
                         const Lengths& lengths, const PackedTotals& totals, const Window& window,
                         bool batch_invariant, PlanLengthsParams& p) {
  if (std::max(problem.seqlen_q, totals.q) > most_packed_rows || rows_of(problem, row) > max_seqlen ||
      std::max(problem.seqlen_k, totals.k) > most_packed_rows || problem.batch > max_tiles)
    return false;
  const bool packs = row.packs_heads();
  const int64_t blocks = divide_up(problem.seqlen_k, row.Bc), unit = std::max<int64_t>(1, constant_keys / row.Bc);
  Cuts cuts;
  int64_t each = 1;
  if (problem.chunk > 0) {
    cuts.chunk = narrow(std::min<int64_t>(problem.chunk, most_packed_rows));
    each = most_chunks(problem.seqlen_q, problem.seqlen_k, cuts.chunk);
  } else if (batch_invariant) {
    cuts.period = narrow(unit * row.Bc);
    each = most_periods(problem.seqlen_q, (window.left >= 0) + (window.right >= 0), cuts.period);
  }
  if (problem.batch > max_tiles / each) return false;
  cuts.each = narrow(each);
  const int64_t heads = heads_of(problem, row), tiles = tiles_of_head(problem, row, totals, each);
  // In chunks of positions rows see the keys of a chunk at most: with a constant unit none is split.
  const bool may_split = row.has(Trait::splits) && !(batch_invariant && cuts.chunk);
  const int64_t parts = !may_split ? 1 : packs ? Listed::most_packed_parts : Listed::most_parts;
  int64_t slots = most_slots(multiprocessors, heads);
  if (batch_invariant) slots = most_constant_slots(tiles, problem.seqlen_k, row.Bc, unit, parts);
  slots = parts == 1 ? 0 : std::min(slots, tiles * parts);
  int64_t pieces;
  if (__builtin_mul_overflow(most_entries(tiles, slots), heads, &pieces) || pieces > max_tiles) return false;
  const RowCosts costs = costs_for(problem, row);
  p = {};
  p.lengths = lengths;
  p.window = window;
  p.cuts = cuts;
  p.sequences = Divisor::of(narrow(std::max<int64_t>(problem.batch * each, 1)));
  p.most_each = INT32_MAX / p.sequences;
  p.total_q = narrow(std::max<int64_t>(totals.q, 0));
  p.total_k = narrow(std::max<int64_t>(totals.k, 0));
  p.packing = packing_of(problem, row);
  p.Br = Divisor::of(row.Br), p.Bc = Divisor::of(row.Bc);
  const int64_t warpgroups = std::clamp<int64_t>(divide_up(rows_of(problem, row), 64), 1, row.warpgroups());
  for (int64_t n = 1; n <= 4; ++n)
    p.weight[n - 1] = static_cast<uint8_t>(64 * block_time(row, 1200, std::min(n, warpgroups)) /
                                           block_time(row, 1200, warpgroups));
  p.heads = narrow(heads);
  p.multiprocessors = Divisor::of(multiprocessors);
  p.unit = narrow(batch_invariant ? unit : 0);
  p.least_unit = packs ? 1 : 2;
  p.most_parts = narrow(parts);
  p.most_tiles = narrow(tiles);
  p.most_slots = narrow(slots);
  p.together = costs.together, p.behind = costs.behind;
  p.many = narrow(std::min<int64_t>(balanced * multiprocessors, INT32_MAX));
  if (problem.seqlen_k < short_keys) p.among = costs.among + 6 * stored_rows(problem, row);
  // Few queries wait for K and V, which the heads that share them read from memory once (under_way in candidate.cpp).
  if (problem.seqlen_q <= most_packed_queries && !row.is_8bit()) {
    const int64_t bytes = packs ? row.stage_bytes() : row.stage_bytes() / problem.heads_per_kv() * 9 / 8;
    const int64_t all_blocks = totals.k < 0 ? blocks * problem.batch : divide_up(totals.k, row.Bc);
    const double all_bytes = static_cast<double>(all_blocks) * row.stage_bytes() * static_cast<double>(problem.heads_kv);
    const auto at_least = [](Costs& costs, int64_t time) { costs.block = std::max(costs.block, narrow(time)); };
    at_least(p.together, memory_time(bytes, 1, all_bytes));
    at_least(p.behind, memory_time(bytes, multiprocessors, all_bytes));
    p.memory_each = narrow(bytes * 1024 / (fit_cache(all_bytes) ? of_cache : of_memory));
  }
  p.read_length = packs ? 0 : 16 * p.behind.read / p.behind.block;
  p.packed_rows = narrow(packs ? std::min<int64_t>(rows_of(problem, row), 64) : 0);
  return true;
}

}  // namespace fa3
