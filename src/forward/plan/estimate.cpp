#include "forward/plan/estimate.h"

#include <algorithm>

#include "integers.h"

namespace fa3 {
namespace {

// More tiles than that are not simulated one by one.
constexpr int64_t most_simulated = 16;

// With so few different tiles many multiprocessors are free at the same times.
constexpr int64_t few_lengths = 8;

MemoryRates rates_for(const Candidate& candidate, const Card& card) {
  const auto& [problem, row] = candidate;
  const int64_t blocks = divide_up(problem.seqlen_k, row.Bc);
  const auto heads = static_cast<double>(problem.batch) * static_cast<double>(problem.heads_kv);
  return rates_of(card, static_cast<double>(blocks * row.loaded_bytes()) * heads,
                  row.has(Trait::shares_keys) && blocks >= least_turns(row));
}

}  // namespace

int64_t in_turn(int64_t count, int64_t time) {
  // The most tiles on few multiprocessors would take longer than can be counted: then it is 29 years, and sums of ten
  // such times can be.
  int64_t all;
  return __builtin_mul_overflow(count, time, &all) ? most_time : std::min(all, most_time);
}

bool depends_on_card(const ForwardProblem& problem) {
  return !problem.planned && dtype_of(problem.q.dtype) != Dtype::e4m3 &&
         (problem.causal || problem.seqlen_q <= most_packed_queries);
}

Estimate::Estimate(const Candidate& candidate, const Card& card)
    : Candidate(candidate), multiprocessors(card.multiprocessors), seen(visible()), tiles(tiles_of(candidate, card)),
      keys_per_block(Divisor::of(row.Bc)), packs_heads(row.packs_heads()),
      waits_for_memory(problem.seqlen_q <= most_packed_queries && !row.is_8bit()),
      same_length(!problem.causal || (packs_heads && tiles.q_blocks == 1)),
      mixes_lengths(fa3::mixes_lengths(candidate, tiles.q_blocks, multiprocessors)),
      longest(blocks(problem.causal ? tiles.q_blocks - 1 : 0)), grain(divide_up(longest, Listed::most_grains)),
      rates(rates_for(candidate, card)),
      loaded_bytes(row.loaded_bytes() / (packs_heads ? 1 : problem.heads_per_kv())), costs(costs_of(row)) {
  if (waits_for_memory) costs = on_card(costs, row, card);
  const int64_t per_head = rows(), warpgroups = divide_up(per_head, 64);
  const bool is_short = longest * row.Bc < short_keys;
  if (warpgroups < row.warpgroups()) {
    const auto shorten = [&](Costs& c) { c.block = static_cast<int32_t>(block_time(row, c.block, warpgroups)); };
    // A single wave of short tiles waits for each step of the first of its warpgroups, however many there are.
    if (!is_short) shorten(costs.together);
    shorten(costs.behind);
  }
  if (is_short && tiles.count() > balanced * multiprocessors) {
    // A single consumer is done with few rows sooner.
    const bool is_alone = packs_heads && row.warpgroups() == 1;
    const auto stored = static_cast<int32_t>(is_alone ? std::min<int64_t>(per_head, 64) : 0);
    costs.behind.piece = costs.among + 6 * stored;
  }
  if (row.has(Trait::shares_keys) && longest < least_turns(row))
    for (Costs* c : {&costs.together, &costs.behind}) c->piece += short_turns;
}

Costs Estimate::under_way(Costs alone, int64_t pieces) const {
  if (!waits_for_memory) return alone;
  const int64_t time = rates.time(loaded_bytes, std::min(pieces, multiprocessors));
  // Some multiprocessors have to wait longer, which plans without packed heads take into account here only.
  alone.block = std::max(alone.block, static_cast<int32_t>(packs_heads ? time : time * 9 / 8));
  return alone;
}

int64_t Estimate::late(const Costs& costs_alone, int64_t pieces, int64_t time) const {
  const int64_t alone = under_way(costs_alone, 1).block, block = under_way(costs_alone, pieces).block;
  if (rates.cached || block <= alone || pieces >= multiprocessors) return 0;
  if (7 * block < 9 * alone) return time / 8;
  return time / 16 * (multiprocessors - pieces) / multiprocessors;
}

int64_t Estimate::whole_time(bool roughly, int64_t latest) const {
  if (same_length && packs_heads) {
    const int64_t waves = tiles.count() / multiprocessors, last = tiles.count() % multiprocessors;
    const Costs busy = under_way(costs.behind, waves ? multiprocessors : last);
    const int64_t tile = busy.whole(longest), behind = last ? under_way(costs.behind, last).whole(longest) : 0;
    // After several waves multiprocessors are at different places; a second one makes up for the first.
    int64_t end = 0;
    if (waves <= 1) end = late(costs.behind, last, behind);
    else if (busy.block > costs.behind.block) end = tile / 16;
    return launch_time + in_turn(waves, tile) + behind + end;
  }
  const Costs& together_or_behind = tiles.count() <= multiprocessors ? costs.together : costs.behind;
  const Costs busy = under_way(together_or_behind, multiprocessors);
  if (same_length) {
    const int64_t waves = tiles.count() / multiprocessors, last = tiles.count() % multiprocessors;
    const int64_t tile = busy.whole(longest);
    const int64_t time = launch_time + in_turn(waves, tile) +
                         (last ? under_way(together_or_behind, last).whole(longest) : 0);
    // Among others, tiles with fewer rows are shorter, and spread the end of the last wave.
    const int64_t partial = divide_up(rows(), 64) % row.warpgroups();
    if (tiles.count() <= multiprocessors || tiles.q_blocks == 1 || partial == 0) return time;
    const int64_t per_head = in_turn(tiles.q_blocks - 1, tile) + block_time(row, tile, partial);
    const double all = static_cast<double>(per_head) * tiles.batch_heads / static_cast<double>(multiprocessors);
    if (all >= static_cast<double>(most_time)) return time;
    return std::min(time, launch_time + static_cast<int64_t>(all) + tile / 2);
  }
  if (tiles.count() > (roughly ? enough_tiles : most_simulated) * multiprocessors)
    return launch_time + in_turn(divide_up(tiles.count(), multiprocessors), busy.whole((longest + blocks(0)) / 2));
  if (tiles.count() <= multiprocessors) return launch_time + busy.whole(longest);
  // With the last ones from the longest to the shortest, tiles end as if all were.
  const bool is_one_section = mixes_lengths || tiles.q_blocks == 1;
  const int64_t section = is_one_section ? tiles.batch_heads : tiles.section_heads;
  const int64_t last = tiles.count() >= enough_tiles * multiprocessors ? latest : INT64_MAX;
  const auto end_of = [&](auto simulation) {
    for (int64_t first = 0; first < tiles.batch_heads; first += section)
      for (int64_t n = 0; n < tiles.q_blocks && simulation.end() <= last; ++n)
        simulation.add(busy.whole(length(n)), std::min(section, tiles.batch_heads - first));
    return launch_time + simulation.end();
  };
  return section < many_alike && tiles.q_blocks > few_lengths ? end_of(SingleSimulation(multiprocessors))
                                                              : end_of(Simulation(multiprocessors));
}

int64_t Estimate::least_time() const {
  const Costs& cheaper = costs.behind.block < costs.together.block ? costs.behind : costs.together;
  const int64_t block = under_way(cheaper, multiprocessors).block, heads = tiles.batch_heads;
  if (tiles.count() > most_simulated * multiprocessors) return launch_time;  // their time is estimated only
  int64_t blocks_of_head = 0;
  if (!same_length)
    for (int64_t n = 0; n < tiles.q_blocks; ++n) blocks_of_head += length(n);
  else if (tiles.q_blocks == 1) blocks_of_head = longest;
  else  // the last tile may have fewer rows
    blocks_of_head = longest * divide_up(rows(), 64) / row.warpgroups();
  return launch_time + in_turn(blocks_of_head, in_turn(heads, block)) / multiprocessors;
}

}  // namespace fa3
