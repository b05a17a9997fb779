// The plan is the cheapest of a few candidates by a model that counts in block iterations, one K/V block of a tile.
//
// Without a mask all tiles are alike. They fill the multiprocessors wave by wave, and the last wave may leave some idle; its
// tiles are the ones to split, so that it becomes one wave of shorter items:
//  - either each tile into as many equal parts as fit that wave,
//  - or the blocks of all of them, end to end, into one equal unit for each multiprocessor. That leaves nothing idle,
//    but most units then hold parts of two tiles.
// Under a causal mask the tiles differ, and dynamic claims fill the gaps; so they are split only where there are few. With
// fewer tiles than multiprocessors all are split, into parts of the same length; with up to twice as many the longest are
// cut to what a multiprocessor has to do on average, where they would last much longer than that.
#include "schedule.h"

#include <algorithm>

namespace fa3 {
namespace {

// In block iterations: an item's own first and last steps, during which the tensor cores wait; writing a part and taking the
// ticket; reading a part again, which the last warp does for all parts. Fitted to times on an H200: where there is but one
// wave, a unit of two items and three parts lasts 14 blocks longer than its own (d 128), one item of two parts 11 (d 64). A
// last wave of many begins at a different time everywhere, which hides much of that.
struct Costs {
  int64_t item, write, read;
};
Costs costs(const Variant& v, bool one_wave) {
  const int64_t item = 1 + v.d / 64;
  return one_wave ? Costs{item, 4, 2} : Costs{item, v.d / 64, 1};
}

// Shorter parts are not worth their boundaries, and a warp counts its parts in eight bits and reads them one by one.
constexpr int64_t least_blocks = 4, most_parts = 32;

// Units for each multiprocessor, at most: bounds the workspace.
constexpr int64_t most_units = 2;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Plan {
  int64_t split_tiles, stride, unit_blocks;
  int64_t cost;
  int64_t cut = 0, cut_after = 0;
};

// Blocks of a tile, as in ptx/tile/schedule.cuh.
int64_t tile_blocks(const Problem& problem, const Selection& selection, int64_t q_block) {
  const Variant& v = selection.variant();
  int64_t keys = problem.seqlen_k;
  if (problem.causal) {
    const int64_t end = selection.q_origin + (q_block + 1) * v.Br;
    keys = std::min(keys, std::min(end, problem.seqlen_q) + problem.causal_offset);
  }
  return std::max<int64_t>(1, divide_up(std::max<int64_t>(keys, 0), v.Bc));
}

// `tiles` tiles of n blocks in one wave on G multiprocessors.
Plan cheapest_wave(int64_t tiles, int64_t n, int64_t G, const Costs& cost) {
  Plan best{0, 0, 0, n + cost.item};
  const auto consider = [&](int64_t stride, int64_t unit_blocks, int64_t total) {
    if (total < best.cost) best = {tiles, stride, unit_blocks, total};
  };
  for (int64_t parts = 2; parts <= std::min({most_parts, G / tiles, n / least_blocks}); ++parts) {
    const int64_t blocks = divide_up(n, parts), made = divide_up(n, blocks);
    consider(made * blocks, blocks, blocks + cost.item + cost.write + made * cost.read);
  }
  const int64_t blocks = divide_up(tiles * n, G), parts = divide_up(n, blocks) + 1;
  if (blocks < n && blocks >= least_blocks && parts <= most_parts)
    consider(n, blocks, blocks + 2 * (cost.item + cost.write) + parts * cost.read);
  return best;
}

Plan plan_full(const Problem& problem, const Selection& selection, int64_t G, int64_t& unsplit) {
  const Variant& v = selection.variant();
  const int64_t n = tile_blocks(problem, selection, 0), waves = selection.tiles / G;
  const Costs cost = costs(v, waves == 0);
  const int64_t tile = n + cost.item;
  unsplit = divide_up(selection.tiles, G) * tile;
  if (selection.tiles % G == 0) return {0, 0, 0, unsplit};
  // Among others, tiles with fewer rows are shorter, and spread the end of the last wave.
  const int64_t warpgroups = selection.batch_heads * divide_up(problem.seqlen_q, 64);
  if (selection.q_blocks > 1 && warpgroups < selection.tiles * v.warpgroups())
    unsplit = std::min(unsplit, warpgroups * tile / (v.warpgroups() * G) + tile / 2);
  Plan plan = cheapest_wave(selection.tiles % G, n, G, cost);
  plan.cost += waves * tile;
  return plan;
}

// One or two tiles for each multiprocessor, from the longest to the shortest.
Plan plan_cut(const Problem& problem, const Selection& selection, int64_t G, const Costs& cost, int64_t longest,
              int64_t sum, int64_t& unsplit) {
  const int64_t tiles = selection.tiles, heads = selection.batch_heads, q_blocks = selection.q_blocks;
  const auto length = [&](int64_t n) { return tile_blocks(problem, selection, q_blocks - 1 - n); };
  unsplit = std::max(longest + cost.item, (sum + tiles * cost.item) / G);
  Plan best{0, 0, 0, unsplit};
  if (selection.section_heads < heads) return best;  // the longest tiles are not the first ones
  for (int64_t n = 1; n < q_blocks && 2 * n * heads <= most_units * G; ++n) {
    const int64_t cut = length(n);  // the n longest of each head, to the length of the next
    if (cut < least_blocks) break;
    if (length(n - 1) - cut < 1) continue;
    // Either the first parts end last, or the work is spread, but for what the last items leave uneven. Simulated, that is
    // right to 5%, and anything less than a twelfth is as often a loss.
    const int64_t work = sum + tiles * cost.item + n * heads * (cost.item + 2 * (cost.write + cost.read));
    const int64_t total = std::max(cut + cost.item + cost.write + 2 * cost.read,
                                   work / G + (longest - cut) / 8 + (cost.item + cost.write) / 2);
    if (total < best.cost && 12 * total <= 11 * unsplit) best = {n * heads, 1, 1, total, cut};
  }
  // The second parts, which are half as long as the longest of them on average, go where whole tiles are that long.
  if (best.cut)
    for (int64_t n = best.split_tiles / heads; n < q_blocks && 2 * length(n) > longest - best.cut; ++n)
      best.cut_after += heads;
  return best;
}

Plan plan_causal(const Problem& problem, const Selection& selection, int64_t G, int64_t& unsplit) {
  const Costs cost = costs(selection.variant(), true);
  const int64_t tiles = selection.tiles, q_blocks = selection.q_blocks;
  const int64_t longest = tile_blocks(problem, selection, q_blocks - 1);
  Plan best{0, 0, 0, longest + cost.item};
  unsplit = best.cost;
  if (tiles >= 2 * G) return best;
  int64_t sum = 0;  // blocks of one head
  for (int64_t i = 0; i < q_blocks; ++i) sum += tile_blocks(problem, selection, i);
  sum *= selection.batch_heads;
  if (tiles >= G) return plan_cut(problem, selection, G, cost, longest, sum, unsplit);
  for (int64_t parts = 2; parts <= std::min({most_parts, most_units * G / tiles, longest / least_blocks}); ++parts) {
    const int64_t blocks = divide_up(longest, parts), made = divide_up(longest, blocks);
    const int64_t overhead = cost.item + cost.write + cost.read, items = sum / blocks + tiles / 2;
    // One wave lasts as long as its longest item, which may have to read all parts; several as long as they keep all
    // multiprocessors busy, and half an item more.
    const int64_t total = std::max(blocks + cost.item + cost.write + made * cost.read,
                                   divide_up(sum + items * overhead, G) + (items > G ? blocks / 2 : 0));
    if (total < best.cost) best = {tiles, made * blocks, blocks, total};
  }
  return best;
}

}  // namespace

Split plan_split(const Problem& problem, const Selection& selection, int multiprocessors) {
  const Split whole{selection.tiles, 0, Divisor::of(1), Divisor::of(1), 0, 0, 0};
  if (problem.empty() || !selection.variant().splits()) return whole;
  int64_t unsplit = 0;
  const Plan plan = problem.causal ? plan_causal(problem, selection, multiprocessors, unsplit)
                                   : plan_full(problem, selection, multiprocessors, unsplit);
  const int64_t line = plan.split_tiles * plan.stride;
  // Worth 1.25%: less than that, measured, is as often a loss. And places are counted in 32 bits.
  if (plan.split_tiles == 0 || plan.cost * 80 > unsplit * 79 || line > INT32_MAX - selection.tiles - plan.unit_blocks)
    return whole;
  const int64_t units = plan.cut ? 2 * plan.split_tiles : divide_up(line, plan.unit_blocks);
  return {static_cast<int32_t>(selection.tiles - plan.split_tiles),
          static_cast<int32_t>(plan.split_tiles),
          Divisor::of(static_cast<int32_t>(plan.stride)),
          Divisor::of(static_cast<int32_t>(plan.unit_blocks)),
          static_cast<int32_t>(units),
          static_cast<int32_t>(plan.cut),
          static_cast<int32_t>(plan.cut_after)};
}

int grid(const Split& split, int multiprocessors) { return std::min(split.items(), multiprocessors); }

WorkspaceLayout workspace_layout(const Variant& variant, const Split& split) {
  constexpr size_t head = FA3_FORWARD_WORKSPACE_BYTES, alignment = 64;
  static_assert(sizeof(Workspace) <= head && head % alignment == 0);
  if (split.tiles == 0) return {head, head, head};
  const size_t ticket_bytes = size_t(split.tiles) * variant.warpgroups() * sizeof(uint32_t);
  const size_t partials = (head + ticket_bytes + alignment - 1) / alignment * alignment;
  return {head, partials, partials + size_t(split.slots()) * (variant.Br / 16) * variant.partial_bytes()};
}

}  // namespace fa3
