// The plan is the cheapest of a few candidates by a model that counts in block iterations, one K/V block of a tile.
//
// Without a mask all tiles are alike. They fill the multiprocessors wave by wave, and the last wave may leave some idle; its
// tiles are the ones to split, so that it becomes one wave of shorter items:
//  - either each tile into as many equal parts as fit that wave,
//  - or the blocks of all of them, end to end, into one equal unit for each multiprocessor. That leaves nothing idle,
//    but most units then hold parts of two tiles.
// Under a causal mask the tiles differ, and dynamic claims fill the gaps; so they are split only where there are few: into
// parts of the same length, or the longest cut to what a multiprocessor has to do on average, where they would last much
// longer than that.
//
// Where there are few, fwdsmall's tiles may also fit the machine better than fwd's: the same model decides.
#include "schedule.h"

#include <algorithm>

namespace fa3 {
namespace {

// In block iterations: an item's own first and last steps, during which the tensor cores wait; leaving a part in the
// workspace; reading a part from there. Fitted to times on an H200. A last wave of many begins at a different time everywhere,
// which hides much of the exchange.
struct Costs {
  int64_t item, write, read;

  // What the last of so many parts reads: one of two, as it has its own in registers, but all of more (tile/combine.cuh).
  int64_t read_all(int64_t parts) const { return (parts == 2 ? 1 : parts) * read; }
};
Costs costs(const Variant& v, bool one_wave) {
  if (v.kernel == Kernel::fwdsmall) return {one_wave ? 1 : 2, 2, 1};
  if (!one_wave) return {1 + v.d / 64, v.d / 64, 1};
  return v.d == 64 ? Costs{2, 5, 1} : Costs{1, 3, 1};
}
// Under a causal mask most blocks on the diagonal are half empty. Several small thread blocks of one head ask the L2 cache for
// much, at d 64.
Costs causal_costs(const Variant& v) {
  if (v.kernel == Kernel::fwdsmall && v.d == 64) return {3, 4, 2};
  return {3, 3, 1};
}

// A block's time, relative to fwd's for as many scores.
double block_time(const Variant& v) {
  const double percent = v.kernel == Kernel::fwd ? 100 : v.d == 64 ? 122 : v.causal() ? 100 : 102;
  return v.Br * v.Bc * percent;
}

// Shorter parts are not worth their boundaries, and a warp counts its parts in eight bits and reads them one by one.
constexpr int64_t least_blocks = 4, most_parts = 32;

// Units for each multiprocessor, at most: bounds the workspace.
constexpr int64_t most_units = 2;

// Causal tiles for each multiprocessor that balance well whatever they are: not worth a plan.
constexpr int64_t many = 4;

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
    consider(made * blocks, blocks, blocks + cost.item + cost.write + cost.read_all(made));
  }
  const int64_t blocks = divide_up(tiles * n, G), parts = divide_up(n, blocks) + 1;
  if (blocks < n && blocks >= least_blocks && parts <= most_parts)
    consider(n, blocks, blocks + 2 * (cost.item + cost.write) + cost.read_all(parts));
  return best;
}

Plan plan_full(const Problem& problem, const Selection& selection, int64_t G, int64_t& unsplit) {
  const Variant& v = selection.variant();
  const int64_t n = tile_blocks(problem, selection, 0), waves = selection.tiles / G;
  const Costs cost = costs(v, waves == 0);
  const int64_t tile = n + cost.item;
  unsplit = divide_up(selection.tiles, G) * tile;
  if (selection.tiles % G == 0) return {0, 0, 0, unsplit};
  // Among others, tiles with fewer rows are shorter, and spread the end of the last wave. But a warpgroup that is alone in a
  // tile takes half as long again.
  const int64_t of_head = divide_up(problem.seqlen_q, 64), alone = of_head % v.warpgroups() == 1;
  const int64_t halves = selection.batch_heads * (2 * of_head + alone);  // of a warpgroup's time
  if (waves > 0 && selection.q_blocks > 1 && of_head < selection.q_blocks * v.warpgroups())
    unsplit = std::min(unsplit, halves * tile / (2 * v.warpgroups() * G) + tile / 2);
  Plan plan = cheapest_wave(selection.tiles % G, n, G, cost);
  plan.cost += waves * tile;
  return plan;
}

// The tiles of a causal problem, from the longest to the shortest.
struct Lengths {
  const Problem& problem;
  const Selection& selection;

  int64_t of(int64_t n) const { return tile_blocks(problem, selection, selection.q_blocks - 1 - n); }  // of each head
};

// How long whole tiles last, each claimed by the first multiprocessor that is free. After an even number of rounds all have
// done as much: the longest of one with the shortest of the next. Then either whoever takes the next tile is the last, or who
// takes two of those in the middle.
int64_t whole_causal(const Lengths& length, int64_t G, const Costs& cost, int64_t& sum) {
  const Selection& selection = length.selection;
  constexpr int64_t least_time = 3;  // of a tile, even of one block
  const int64_t heads = selection.batch_heads, rounds = selection.tiles / G / 2 * 2;
  int64_t level = 0;
  sum = 0;
  for (int64_t n = 0; n < selection.q_blocks; ++n) {
    const int64_t blocks = length.of(n);
    sum += blocks * heads;
    level += blocks * std::clamp<int64_t>(rounds * G - n * heads, 0, heads);
  }
  const auto last = [&](int64_t items, int64_t tile) {
    return tile < selection.tiles ? items * (std::max(least_time, length.of(tile / heads)) + cost.item) : 0;
  };
  return level / G + rounds * cost.item + std::max(last(1, rounds * G), last(2, (rounds + 1) * G)) - 1;
}

// All tiles in parts of the same length.
void consider_parts(const Lengths& length, int64_t G, const Costs& cost, int64_t sum, Plan& best) {
  const Selection& selection = length.selection;
  const int64_t tiles = selection.tiles, longest = length.of(0), exchange = cost.item + cost.write;
  for (int64_t parts = 2; parts <= std::min({most_parts, most_units * G / tiles, longest / least_blocks}); ++parts) {
    const int64_t blocks = divide_up(longest, parts), made = divide_up(longest, blocks);
    int64_t items = 0, shortest = blocks, next = 0;  // of the first wave, and the first item of the second
    for (int64_t n = 0; n < selection.q_blocks; ++n) {
      const int64_t blocks_of_tile = length.of(n);
      if (items < G) shortest = std::min(shortest, (blocks_of_tile - 1) % blocks + 1);
      if (items <= G) next = std::min(blocks, blocks_of_tile);
      items += divide_up(blocks_of_tile, blocks) * selection.batch_heads;
    }
    if (items > G && 4 * items < 5 * G) continue;  // a few multiprocessors work twice as long as the others
    const int64_t second = items > G ? shortest + exchange + next + 2 : 0;
    const int64_t total = std::max({blocks + exchange, second + exchange,
                                    divide_up(sum + items * (exchange + cost.read), G)}) + cost.read_all(made);
    if (total < best.cost) best = {tiles, made * blocks, blocks, total};
  }
}

// The longest tiles cut.
void consider_cuts(const Lengths& length, int64_t G, int64_t sum, int64_t whole, Plan& best) {
  constexpr Costs cost{1, 3, 2};  // chooses best; `more` an item predicts best
  constexpr int64_t more = 2;
  const Selection& selection = length.selection;
  const int64_t tiles = selection.tiles, heads = selection.batch_heads, q_blocks = selection.q_blocks;
  if (selection.section_heads < heads) return;  // the longest tiles are not the first ones
  const int64_t longest = length.of(0);
  for (int64_t n = 1; n < q_blocks && 2 * n * heads <= most_units * G; ++n) {
    const int64_t cut = length.of(n);  // the n longest of each head, to the length of the next
    if (cut < least_blocks) break;
    if (length.of(n - 1) == cut) continue;
    // Either the first parts end last, or the work is spread, but for what the last items leave uneven. That is right to 5%,
    // and anything less than a twelfth, or four blocks, is as often a loss.
    const int64_t work = sum + tiles * cost.item + n * heads * (cost.item + cost.write + cost.read);
    const int64_t total = std::max(std::max(cut, longest - cut) + cost.item + cost.read, work / G + (longest - cut) / 8) +
                          divide_up((tiles + n * heads) * more, G);
    if (total < best.cost && 12 * total <= 11 * whole && total + 4 <= whole) best = {n * heads, 1, 1, total, cut};
  }
  // The second parts take turns with the whole tiles from where these are no longer than the longest of them.
  if (best.cut)
    for (int64_t n = best.split_tiles / heads; n < q_blocks && length.of(n) > longest - best.cut; ++n)
      best.cut_after += heads;
}

Plan plan_causal(const Problem& problem, const Selection& selection, int64_t G, int64_t& unsplit) {
  const Costs cost = causal_costs(selection.variant());
  const Lengths length{problem, selection};
  int64_t sum;  // blocks of all tiles
  unsplit = whole_causal(length, G, cost, sum);
  Plan best{0, 0, 0, unsplit};
  if (selection.tiles < 2 * G) {
    consider_cuts(length, G, sum, unsplit, best);
    consider_parts(length, G, cost, sum, best);
  }
  return best;
}

Split whole_tiles(const Selection& selection) {
  const Divisor one = Divisor::of(1);
  return {selection.tiles, 0, one, one, 0, 0, 0, one};
}

// The selected row's split, and how long that takes, in units of block_time.
Split plan_split(const Problem& problem, const Selection& selection, int64_t G, double& time) {
  int64_t unsplit = 0;
  const Plan plan =
      problem.causal ? plan_causal(problem, selection, G, unsplit) : plan_full(problem, selection, G, unsplit);
  time = double(std::min(plan.cost, unsplit)) * block_time(selection.variant());
  const int64_t line = plan.split_tiles * plan.stride;
  // Worth 1.25%: less than that, measured, is as often a loss. And places are counted in 32 bits.
  if (plan.split_tiles == 0 || plan.cost * 80 > unsplit * 79 || line > INT32_MAX - selection.tiles - plan.unit_blocks)
    return whole_tiles(selection);
  const int64_t units = plan.cut ? 2 * plan.split_tiles : divide_up(line, plan.unit_blocks);
  return {static_cast<int32_t>(selection.tiles - plan.split_tiles),
          static_cast<int32_t>(plan.split_tiles),
          Divisor::of(static_cast<int32_t>(plan.stride)),
          Divisor::of(static_cast<int32_t>(plan.unit_blocks)),
          static_cast<int32_t>(units),
          static_cast<int32_t>(plan.cut),
          static_cast<int32_t>(plan.cut_after),
          plan.cut ? Divisor::of(selection.batch_heads) : Divisor::of(1)};
}

}  // namespace

Schedule make_schedule(const Problem& problem, const Selection& selection, int multiprocessors) {
  if (problem.empty() || !selection.variant().is_fwd() ||
      (problem.causal && selection.tiles >= many * multiprocessors))
    return {selection, whole_tiles(selection)};
  double time, small_time;
  const Schedule schedule{selection, plan_split(problem, selection, multiprocessors, time)};
  Schedule small;
  if (select_small(problem, selection, small.selection)) {
    small.split = plan_split(problem, small.selection, multiprocessors, small_time);
    if (small_time < 0.96 * time) return small;  // less than that, the model cannot tell
  }
  return schedule;
}

int grid(const Schedule& schedule, int multiprocessors) {
  const int64_t blocks = std::max<int64_t>(schedule.split.items(), schedule.selection.blind_blocks());
  return static_cast<int>(std::min<int64_t>(blocks, multiprocessors));
}

WorkspaceLayout workspace_layout(const Schedule& schedule) {
  const Variant& variant = schedule.selection.variant();
  const Split& split = schedule.split;
  constexpr size_t head = FA3_FORWARD_WORKSPACE_BYTES, alignment = 64;
  static_assert(sizeof(Workspace) <= head && head % alignment == 0);
  if (split.tiles == 0) return {head, head, head};
  const size_t ticket_bytes = size_t(split.tiles) * variant.warpgroups() * sizeof(Tickets);
  const size_t partials = (head + ticket_bytes + alignment - 1) / alignment * alignment;
  return {head, partials, partials + size_t(split.slots()) * (variant.Br / 16) * variant.partial_bytes()};
}

}  // namespace fa3
