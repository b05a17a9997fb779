#include "forward/plan/planned.h"

#include <algorithm>

#include "forward/plan/cost.h"
#include "forward/plan/estimate.h"
#include "forward/plan/tiles.h"
#include "integers.h"

namespace fa3 {
namespace {

// With a constant unit a part has so many keys. Its K/V blocks then take about ten times as long as what it writes and
// reads.
constexpr int64_t constant_keys = 4096;

// Of 50 MB of L2 cache, what K and V may take whose tiles follow each other. Measured on an H200, sequences of 256 to
// 1024: with 64 MB a call takes 1.2 to 1.5 times as long.
constexpr int64_t section_bytes = 40 << 20;

int64_t tiles_of_head(const Candidate& candidate, int64_t each) {
  const ForwardProblem& problem = candidate.problem;
  const int64_t total = problem.total_q < 0 ? -1 : candidate.packing().rows(problem.total_q);
  return most_tiles(problem.batch, candidate.rows(), total, candidate.row.Br, each);
}

// The most keys that the rows of a tile see, and the most periods of so many keys, counted from key 0, in which they
// lie.
int64_t most_keys(const Candidate& candidate) {
  const ForwardProblem& problem = candidate.problem;
  const Window& window = problem.window;
  if (problem.chunk > 0) return std::min(problem.seqlen_k, problem.chunk);
  if (window.left < 0 || window.right < 0) return problem.seqlen_k;
  const int64_t queries = std::max(1, candidate.row.Br >> candidate.packing().shift);
  return std::min(problem.seqlen_k, int64_t{window.left} + window.right + queries);
}
int64_t most_periods_of_tile(const ForwardProblem& problem, int64_t keys, int64_t period) {
  const int64_t all = divide_up(problem.seqlen_k, period);
  return keys == 0 ? 0 : std::min(all, divide_up(keys - 1, period) + 1);
}

// With a constant unit, under a causal mask: the slots that a sequence needs at most. Its rows are cut into up to
// `each` sequences, whose tiles see `units` units, one less, and so on, the last ones first. Those that see one have no
// slots.
int64_t most_causal_slots(int64_t tiles, int64_t each, int64_t units, int64_t most_parts) {
  const int64_t split = std::min(each, units - 1), full = std::clamp<int64_t>(units - most_parts + 1, 0, split);
  return tiles * (full * most_parts + (split - full) * (2 * units - full - split + 1) / 2);
}

// Those of the planner for calls of one length (estimate.cpp), for the longest sequence.
RowCosts costs_for(const Candidate& candidate) {
  const auto& [problem, row] = candidate;
  RowCosts costs = costs_of(row);
  const int64_t warpgroups = divide_up(candidate.rows(), 64);
  for (Costs* c : {&costs.together, &costs.behind}) {
    if (warpgroups < row.warpgroups())
      c->block = narrow(block_time(row, c->block, std::max<int64_t>(warpgroups, 1)));
    if (row.has(Trait::shares_keys) && divide_up(problem.seqlen_k, row.Bc) < least_turns(row)) c->piece += short_turns;
  }
  return costs;
}

// Those that share the pieces: multiprocessors, or clusters of them.
int takers_of(const ForwardRow& row, int multiprocessors) {
  return std::max(1, multiprocessors / row.cluster_blocks());
}

// A single consumer is done with few rows sooner.
int32_t stored_rows(const Candidate& candidate) {
  return narrow(candidate.row.warpgroups() == 1 ? std::min<int64_t>(candidate.rows(), 64) : 0);
}

// What the numbers of tiles, parts and slots may be at most, whatever the lengths are.
struct Bounds {
  Cuts cuts;
  int64_t unit;  // constant, in K/V blocks
  int64_t least_unit, parts, tiles, slots;
};

// Returns false if there are more cut sequences than can be counted.
bool find_cuts(const Candidate& candidate, Bounds& bounds) {
  const auto& [problem, row] = candidate;
  const Window& window = problem.window;
  int64_t each = 1;
  bounds.unit = std::max<int64_t>(1, constant_keys / row.Bc);
  if (problem.chunk > 0) {
    bounds.cuts.chunk = narrow(std::min<int64_t>(problem.chunk, most_packed_rows));
    each = most_chunks(problem.seqlen_q, problem.seqlen_k, bounds.cuts.chunk);
  } else if (problem.batch_invariant) {
    bounds.cuts.period = narrow(bounds.unit * row.Bc);
    each = most_periods(problem.seqlen_q, (window.left >= 0) + (window.right >= 0), bounds.cuts.period);
  }
  if (problem.batch > max_tiles / each) return false;
  bounds.cuts.each = narrow(each);
  return true;
}

// Returns false if there may be more than the kernels can count.
bool find_bounds(const Candidate& candidate, int multiprocessors, Bounds& bounds) {
  const auto& [problem, row] = candidate;
  if (std::max(problem.seqlen_q, problem.total_q) > most_packed_rows || candidate.rows() > max_seqlen ||
      std::max(problem.seqlen_k, problem.total_k) > most_packed_rows || problem.batch > max_tiles ||
      !find_cuts(candidate, bounds))
    return false;
  const Window& window = problem.window;
  const int64_t each = bounds.cuts.each, heads = candidate.heads(), tiles = tiles_of_head(candidate, each);
  // In chunks of positions rows see the keys of a chunk at most: with a constant unit none is split.
  const bool packs = row.packs_heads(), may_split = row.has(Trait::splits) && !(problem.batch_invariant &&
                                                                               bounds.cuts.chunk);
  const int64_t parts = !may_split ? 1 : packs ? Listed::most_packed_parts : Listed::most_parts;
  const int64_t least_unit = packs ? 1 : 2, keys = most_keys(candidate);
  int64_t slots = most_slots(multiprocessors, heads, tiles, most_periods_of_tile(problem, keys, row.Bc), least_unit,
                             parts);
  if (problem.batch_invariant) {
    const int64_t period = bounds.unit * row.Bc, tiles_each = most_tiles(1, candidate.rows(), -1, row.Br, each);
    const int64_t units = most_periods_of_tile(problem, keys, period);
    slots = most_constant_slots(tiles, tiles_each, units, problem.total_k, period, parts);
    if (slots > 0 && window.bottom_right && window.right == 0 && window.left < 0) {
      const int64_t tiles_of_unit = divide_up(candidate.packing().rows(period), row.Br);
      slots = std::min(slots, problem.batch * most_causal_slots(tiles_of_unit, each, units, parts));
    }
  }
  bounds.least_unit = least_unit, bounds.parts = parts, bounds.tiles = tiles, bounds.slots = slots;
  // Kernels count pieces, and rows of slots, in int32.
  int64_t pieces;
  return !__builtin_mul_overflow(most_entries(tiles, slots), heads, &pieces) && pieces <= max_tiles &&
         slots * heads * row.Br <= INT32_MAX;
}

// Few queries wait for K and V, which the heads that share them read from memory once (under_way in estimate.cpp).
void wait_for_memory(const Candidate& candidate, int all_multiprocessors, PlanForwardParams& p) {
  const auto& [problem, row] = candidate;
  if (problem.seqlen_q > most_packed_queries || row.is_8bit()) return;
  const int64_t bytes = row.packs_heads() ? row.loaded_bytes() : row.loaded_bytes() / problem.heads_per_kv() * 9 / 8;
  const int64_t blocks = problem.total_k < 0 ? divide_up(problem.seqlen_k, row.Bc) * problem.batch
                                             : divide_up(problem.total_k, row.Bc);
  const auto stages = static_cast<double>(blocks) * static_cast<double>(problem.heads_kv);
  const MemoryRates rates =
      rates_of(assumed_card(all_multiprocessors), stages * row.loaded_bytes(), row.has(Trait::shares_keys));
  const auto at_least = [](Costs& costs, int64_t time) { costs.block = std::max(costs.block, narrow(time)); };
  at_least(p.together, rates.time(bytes, 1));
  at_least(p.behind, rates.time(bytes, int32_t{p.multiprocessors}));
  p.memory_each = narrow(bytes * 1024 / rates.for_all);
}

}  // namespace

bool plan_forward_params(const Candidate& candidate, int all_multiprocessors, PlanForwardParams& p) {
  const auto& [problem, row] = candidate;
  const int multiprocessors = takers_of(row, all_multiprocessors);
  Bounds bounds{};
  if (!find_bounds(candidate, multiprocessors, bounds)) return false;
  const RowCosts costs = costs_for(candidate);
  const bool packs = row.packs_heads();
  p = {};
  p.lengths = problem.lengths;
  p.window = problem.window;
  p.cuts = bounds.cuts;
  p.sequences = Divisor::of(narrow(problem.batch * bounds.cuts.each));
  p.most_each = INT32_MAX / p.sequences;
  p.total_q = narrow(std::max<int64_t>(problem.total_q, 0));
  p.total_k = narrow(std::max<int64_t>(problem.total_k, 0));
  p.packing = candidate.packing();
  p.Br = Divisor::of(row.Br), p.Bc = Divisor::of(row.Bc);
  const int64_t warpgroups = std::clamp<int64_t>(divide_up(candidate.rows(), 64), 1, row.warpgroups());
  for (int64_t n = 1; n <= 4; ++n)
    p.weight[n - 1] = static_cast<uint8_t>(64 * block_time(row, 1200, std::min(n, warpgroups)) /
                                           block_time(row, 1200, warpgroups));
  p.heads = narrow(candidate.heads());
  p.multiprocessors = Divisor::of(multiprocessors);
  p.unit = narrow(problem.batch_invariant ? bounds.unit : 0);
  p.least_unit = narrow(bounds.least_unit);
  p.most_parts = narrow(bounds.parts);
  p.most_tiles = narrow(bounds.tiles);
  p.most_slots = narrow(bounds.slots);
  p.together = costs.together, p.behind = costs.behind;
  p.many = narrow(std::min<int64_t>(balanced * multiprocessors, INT32_MAX));
  if (problem.seqlen_k < short_keys) p.among = costs.among + 6 * stored_rows(candidate);
  wait_for_memory(candidate, all_multiprocessors, p);
  p.section_keys = narrow(section_bytes / (problem.heads_kv * (row.row_bytes() + row.v_row_bytes())));
  p.section_rows = narrow(row.Br * (packs ? 1 : problem.heads_per_kv()));
  p.write_length = 16 * p.behind.write / p.behind.block;
  p.read_length = packs ? 0 : 16 * p.behind.read / p.behind.block;
  p.packed_rows = narrow(packs ? std::min<int64_t>(candidate.rows(), 64) : 0);
  return true;
}

namespace {

// How long the call is predicted to take if all sequences are of the average length, the host's best guess: their tiles
// share the multiprocessors evenly, and where these are more, each tile may become several parts. The last tile of a
// sequence may leave warpgroups without rows, and takes less time then.
int64_t average_time(const Candidate& candidate, const PlanForwardParams& p) {
  const ForwardProblem& problem = candidate.problem;
  const ForwardRow& row = candidate.row;
  const auto average = [&](int64_t total, int64_t most) {  // of batched tensors the host knows the most only
    return total < 0 ? most : std::min(most, divide_up(total, problem.batch));
  };
  int64_t q = average(problem.total_q, problem.seqlen_q), k = average(problem.total_k, problem.seqlen_k);
  int64_t sequences = problem.batch;
  if (problem.chunk > 0) {
    sequences *= divide_up(q, problem.chunk);
    q = std::min(q, problem.chunk), k = std::min(k, problem.chunk);
  }
  const Lengths lengths{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, narrow(q), narrow(k)};
  const Visible seen = visible_of(sequence_at(lengths, 0, 0, p.window, 0), true, true, p.packing);
  const auto blocks_of_tile = [&](int64_t q_block) {
    const Blocks blocks = tile_blocks(seen, narrow(q_block * row.Br), row.Br, row.Bc);
    return blocks.end - blocks.begin;
  };
  const int64_t q_blocks = divide_up(seen.rows(), row.Br), tiles = sequences * q_blocks * p.heads;
  const int64_t blocks = (blocks_of_tile((q_blocks - 1) / 2) + blocks_of_tile(q_blocks / 2) + 1) / 2;
  const int64_t last_warpgroups = divide_up(seen.rows() - (q_blocks - 1) * row.Br, 64);
  const int64_t weight = (64 * (q_blocks - 1) + p.weight[last_warpgroups - 1]) / q_blocks;

  const int64_t multiprocessors = int32_t{p.multiprocessors};
  const auto time_in = [&](int64_t parts) {
    const int64_t pieces = tiles * parts, busy = std::min(pieces, multiprocessors);
    Costs costs = costs_of(p, narrow(std::min<int64_t>(pieces, INT32_MAX)));
    costs.block = narrow(std::max(costs.block * weight / 64, busy * p.memory_each / 1024));
    const int64_t piece = parts == 1 ? costs.whole(blocks) : costs.part(divide_up(blocks, parts));
    if (pieces > multiprocessors) return launch_time + in_turn(pieces, piece) / multiprocessors + piece / 2;
    if (parts == 1) return launch_time + piece;
    return launch_time + piece + (p.packed_rows ? combine_time(parts, p.packed_rows, parts) : costs.read_all(parts));
  };
  int64_t best = time_in(1);
  const int64_t most = p.most_slots == 0 ? 1 : std::min<int64_t>(p.most_parts, multiprocessors / tiles);
  for (int64_t parts = 2; parts <= std::min(most, blocks >> p.least_unit); ++parts)
    best = std::min(best, time_in(parts));
  return best;
}

// Behind the device's plan come tickets for all tiles that may be split, and slots.
WorkspaceLayout workspace_of(const Candidate& candidate, const PlanForwardParams& p) {
  return place_parts(candidate, FA3_FORWARD_WORKSPACE_BYTES + static_cast<size_t>(plan_bytes(p)),
                     int64_t{p.most_slots / 2} * p.heads, int64_t{p.most_slots} * p.heads);
}

}  // namespace

void plan_planned_row(const Candidate& candidate, int multiprocessors, RowPlan& plan) {
  PlanForwardParams params;
  plan_forward_params(candidate, multiprocessors, params);  // which fit() has seen to be possible
  const int32_t pieces = narrow(most_entries(params.most_tiles, params.most_slots)) * params.heads;
  plan.row = candidate.number();
  plan.tiles = {};
  plan.tiles.q_blocks = params.most_tiles;
  plan.tiles.batch_heads = params.heads;
  plan.tiles.heads = Divisor::of(params.heads);
  plan.pieces = {0, pieces, 0, 1, Divisor::of(1)};
  plan.slots = params.most_slots * params.heads;
  plan.whole_us = plan.predicted_us = static_cast<double>(average_time(candidate, params)) / 1e3;
  plan.workspace = workspace_of(candidate, params);
}

}  // namespace fa3
