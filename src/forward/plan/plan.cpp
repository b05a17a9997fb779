// Which row a call's tiles run on, and what else it launches. Each row that fits is planned by itself (split.cpp), and
// the one that is predicted to be the fastest is taken. But where causal tiles are many, and a head has several, it is
// the first one in ptx/table/rows.def: rows differ less there than predictions are wrong.
#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "device/widen.h"
#include "forward/plan/copies.h"
#include "forward/plan/estimate.h"
#include "forward/plan/planned.h"
#include "forward/plan/split.h"
#include "forward/plan/tiles.h"
#include "integers.h"
#include "params/params.h"
#include "params/v_tile.h"

namespace fa3 {
namespace {

// Kernels for packed heads also run problems in which no heads share K and V, and so there is nothing to pack. If tiles
// are many and short, they are taken for so many rows at most: with more, their one warpgroup stores O later than two
// of another kernel would. Measured: with 48 rows they are as fast as others or faster; with 64 they are slower, at d
// 64 by 3 to 6%, at d 128 by 0 to 11%, at d 256 by 17%.
constexpr int64_t most_unpacked_rows = 48;

int64_t groups_of_keys(const ForwardProblem& problem) { return divide_up(problem.seqlen_k, v_tile_keys); }
int64_t v_tile_bytes(const ForwardProblem& problem) { return v_tile_keys * problem.head_dim_v; }

// Shall a pass make V tiles of V? It shall if that saves the forward kernel more than the pass takes.
bool is_worth_tiling(const ForwardProblem& problem, const Fit& fit, const RowPlan& forward) {
  if (fit.v_tiles_row < 0) return false;
  int64_t tiles, bytes;  // batch and heads are below 2^31
  if (__builtin_mul_overflow(groups_of_keys(problem), problem.batch * problem.heads_kv, &tiles) || tiles > max_tiles ||
      __builtin_mul_overflow(tiles, v_tile_bytes(problem), &bytes))
    return false;
  return forward.predicted_us * 1e3 * gain_of_tiles(forward_row(forward.row)) > static_cast<double>(tiling_time(bytes));
}

// Adds that pass to the plan, and V tiles to the workspace, behind what else is in it.
void add_tile_v(const ForwardProblem& problem, ForwardPlan& plan) {
  constexpr int pass = row_named("fa3_pass_tile_v");
  static_assert(pass >= 0);
  constexpr size_t alignment = 256;
  const int64_t tiles = groups_of_keys(problem) * problem.batch * problem.heads_kv;
  plan.launches[plan.launch_count++] = {
      ForwardStep::tile_v, pass, narrow(divide_up(tiles, tiles_of_thread_block(pass_row(pass))))};
  plan.v_tiles = (plan.forward.workspace.bytes + alignment - 1) / alignment * alignment;
  plan.workspace_bytes = plan.v_tiles + static_cast<size_t>(tiles * v_tile_bytes(problem));
}

// With packed heads: would a head's rows be in one tile of a row of smaller tiles, too?
bool has_one_small_tile(const Candidate& candidate) {
  return candidate.row.packs_heads() && candidate.row.Br > 64 && candidate.rows() <= 64;
}

// A planned problem's pieces are the device's to plan, in a step before the kernel's or in an earlier call (a
// schedule). Among rows, one or more, the host chooses by what it knows. Where tiles are many, a smaller one must seem
// faster by a twentieth: rows differ less there than predictions are wrong.
void plan_fastest_planned(const ForwardProblem& problem, std::span<const int> some, int multiprocessors,
                          RowPlan& fastest) {
  plan_planned_row({problem, forward_row(some[0])}, multiprocessors, fastest);
  const bool is_balanced = fastest.tiles.count() >= balanced * multiprocessors;
  for (const int n : some.subspan(1)) {
    const Candidate candidate{problem, forward_row(n)};
    if (has_one_small_tile(candidate)) continue;
    RowPlan other;
    plan_planned_row(candidate, multiprocessors, other);
    const double limit = fastest.predicted_us * (is_balanced ? 0.95 : 1);
    // Where it makes no difference, fewer reads of K and V are better.
    const bool is_faster = candidate.row.packs_heads() ? other.predicted_us <= fastest.predicted_us
                                                         : other.predicted_us < limit;
    if (is_faster) fastest = other;
  }
}

// Rows that take copies of K and V must be faster by as long as the pass takes that makes them.
void choose_planned_row(const ForwardProblem& problem, const Fit& fit, int multiprocessors, RowPlan& fastest) {
  const std::span<const int> all(fit.rows, static_cast<size_t>(fit.count));
  const auto direct = static_cast<size_t>(
      std::find_if(all.begin(), all.end(), [](int n) { return forward_row(n).takes_copies(); }) - all.begin());
  plan_fastest_planned(problem, direct > 0 ? all.first(direct) : all, multiprocessors, fastest);
  if (direct == 0 || direct == all.size()) return;
  RowPlan other;
  plan_fastest_planned(problem, all.subspan(direct), multiprocessors, other);
  if (other.predicted_us + copying_us(problem) < fastest.predicted_us) fastest = other;
}

// Adds that pass to the plan, and copies to the workspace, behind what else is in it.
void add_copies(const ForwardProblem& problem, ForwardPlan& plan) {
  plan.copies = place_copies(problem, plan.forward.workspace.bytes);
  plan.workspace_bytes = plan.copies.end;
  if (const int64_t blocks = copying_blocks(problem); blocks > 0)
    plan.launches[plan.launch_count++] = {ForwardStep::copy_keys, widen_pass, narrow(blocks)};
}

// One for each multiprocessor, or for each piece where there are fewer; of clusters as many as that makes.
int32_t thread_blocks_of(const RowPlan& plan, int multiprocessors) {
  const int cluster = forward_row(plan.row).cluster_blocks();
  return cluster * std::min(plan.pieces.count(), std::max(1, multiprocessors / cluster));
}

void plan_planned_call(const ForwardProblem& problem, const Fit& fit, int multiprocessors, ForwardPlan& plan) {
  constexpr int pass = row_named("fa3_pass_plan_forward");
  static_assert(pass >= 0);
  choose_planned_row(problem, fit, multiprocessors, plan.forward);
  const ForwardRow& row = forward_row(plan.forward.row);
  PlanForwardParams params;
  plan_forward_params({problem, row}, multiprocessors, params);
  plan.schedule_bytes = static_cast<size_t>(plan_bytes(params));
  plan.workspace_bytes = plan.forward.workspace.bytes;
  if (!problem.schedule) plan.launches[plan.launch_count++] = {ForwardStep::plan_forward, pass, 1};
  if (row.takes_copies()) add_copies(problem, plan);
  plan.launches[plan.launch_count++] = {ForwardStep::forward, plan.forward.row,
                                        thread_blocks_of(plan.forward, multiprocessors)};
  if (!row.halves_columns() || params.most_slots == 0) return;
  constexpr int adding = row_named("fa3_pass_add_parts");
  static_assert(adding >= 0);
  plan.launches[plan.launch_count++] = {ForwardStep::add_parts, adding,
                                        multiprocessors * pass_row(adding).resident_blocks()};
}

// On whatever card these rows are planned.
size_t workspace_of_all(const ForwardProblem& problem, const Fit& some, int multiprocessors) {
  size_t most = 0;
  for (int i = 0; i < some.count; ++i)
    most = std::max(most, most_workspace({problem, forward_row(some.rows[i])}, multiprocessors));
  return most;
}

// Is a better than b? Where it makes no difference, fewer reads of K and V are better, and after that the first row.
bool is_faster(const RowPlan& a, const RowPlan& b) {
  if (a.predicted_us != b.predicted_us) return a.predicted_us < b.predicted_us;
  const bool packs = forward_row(a.row).packs_heads();
  if (packs != forward_row(b.row).packs_heads()) return packs;
  return packs ? a.row > b.row : a.row < b.row;
}

// Is this row, with Trait::one_tile, faster than all that have none? Measured on an H100 beside those that plans took
// before, calls of 16 to 1024 tokens with head dimensions from 32 to 256 (tests/records/diary/tiles.md): 0.98 to 2.4,
// mostly 1.03 and more, within these bounds, 0.7 to 1.08 beyond them.
bool is_short(const Candidate& candidate, const Card& card) {
  const auto& [problem, row] = candidate;
  // Few rows of heads that share K and V are one tile where heads are packed, and K and V are loaded once for them.
  if (problem.heads_per_kv() > 1 && problem.seqlen_q * problem.heads_per_kv() <= 64) return false;
  const int64_t q_blocks = divide_up(problem.seqlen_q, row.Br), keys = problem.seqlen_k;
  const int64_t tiles = q_blocks * problem.batch * problem.heads;
  if (row.Br == 64) return problem.seqlen_q <= 64 && keys <= 64;
  // Each tile of a head loads all of its K and V.
  if (q_blocks > 4) return false;
  if (keys <= 128) return true;
  const int64_t narrow_most = keys <= 512 ? 7 - divide_up(keys, 128) : 0;
  const int64_t most = row.d <= 64 ? narrow_most : keys <= 256 ? 2 + problem.causal : 0;
  if (tiles <= most * card.multiprocessors) return true;
  // Tiles that are nearly full in place of half as many larger ones.
  return row.d <= 64 && !problem.causal && keys <= 256 && q_blocks * row.Br - problem.seqlen_q <= 48;
}

Fit only(const Fit& fit, int row) { return {{row}, 1, fit.v_tiles_row}; }

// The rows that are asked how long they take.
Fit eligible(const ForwardProblem& problem, const Fit& all, const Card& card) {
  const auto is_for_short = [](int n) { return forward_row(n).has(Trait::one_tile); };
  Fit fit = all;
  for (int i = 0; i < all.count; ++i)
    if (is_for_short(all.rows[i]) && is_short({problem, forward_row(all.rows[i])}, card)) return only(all, all.rows[i]);
  if (const auto kept_end = std::remove_if(fit.rows, fit.rows + fit.count, is_for_short); kept_end != fit.rows)
    fit.count = static_cast<int>(kept_end - fit.rows);
  const int64_t tiles = tiles_of({problem, forward_row(fit.rows[0])}, card).count();
  const int64_t many = balanced * card.multiprocessors;
  const bool is_balanced = problem.causal && tiles >= many;
  const bool has_too_many_rows = tiles > many && problem.heads_per_kv() == 1 && problem.seqlen_q > most_unpacked_rows &&
                                 problem.seqlen_k < short_keys;  // for packed heads
  Fit some = fit;
  some.count = 1;
  for (int i = 1; i < fit.count; ++i) {
    const ForwardRow& row = forward_row(fit.rows[i]);
    // For packed heads a larger tile only if a head has more than 64 rows. Where causal tiles are many, a smaller one
    // only if it still holds all rows of a head.
    if (row.packs_heads() ? has_too_many_rows || has_one_small_tile({problem, row})
                          : is_balanced && problem.seqlen_q > row.Br)
      continue;
    some.rows[some.count++] = fit.rows[i];
  }
  return some;
}

// The plan of the row that is predicted to be the fastest. Rows that cannot be, as their blocks alone take longer than
// another row's plan, are not planned.
void plan_fastest(const ForwardProblem& problem, Fit some, const Card& card, RowPlan& fastest) {
  if (some.count == 1) {
    const bool is_compared = some.v_tiles_row >= 0;  // with what a pass takes
    return plan_row({{problem, forward_row(some.rows[0])}, card}, fastest, no_limit_us, !is_compared);
  }
  std::optional<Estimate> estimates[Fit::most];
  double least_us[Fit::most];
  for (int i = 0; i < some.count; ++i) {
    estimates[i].emplace(Candidate{problem, forward_row(some.rows[i])}, card);
    least_us[i] = static_cast<double>(estimates[i]->least_time()) / 1e3;
  }
  RowPlan other;
  for (RowPlan* made = &fastest;; made = &other) {
    const auto next = std::min_element(least_us, least_us + some.count) - least_us;
    if (made == &other && least_us[next] > fastest.predicted_us) return;
    plan_row(*estimates[next], *made, made == &fastest ? no_limit_us : fastest.predicted_us);
    if (made == &other && is_faster(other, fastest)) fastest = other;
    least_us[next] = std::numeric_limits<double>::infinity();
  }
}

void make_plan(const ForwardProblem& problem, const Fit& fit, const Card& card, ForwardPlan& plan) {
  const int multiprocessors = card.multiprocessors;
  plan.launch_count = 0;
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  plan.schedule_bytes = 0;
  plan.copies = {};
  plan.forward = {};
  plan.forward.row = fit.rows[0];
  if (problem.empty()) return;
  if (problem.planned) return plan_planned_call(problem, fit, multiprocessors, plan);
  if (problem.seqlen_k == 0) {
    constexpr int pass = row_named("fa3_pass_empty_rows");
    static_assert(pass >= 0);
    const int64_t blocks = divide_up(problem.seqlen_q, empty_rows_block) * problem.batch * problem.heads;
    const int64_t warps = rows[pass].threads / 32;
    plan.launches[plan.launch_count++] = {
        ForwardStep::empty_rows, pass, narrow(std::min<int64_t>(divide_up(blocks, warps), multiprocessors))};
    return;
  }
  const Fit some = eligible(problem, fit, card);
  plan_fastest(problem, some, card, plan.forward);
  // Where queries are many, only the order of tiles depends on more of the card.
  plan.workspace_bytes = depends_on_card(problem) && problem.seqlen_q <= most_packed_queries
                             ? workspace_of_all(problem, some, multiprocessors)
                             : plan.forward.workspace.bytes;
  if (is_worth_tiling(problem, fit, plan.forward)) {
    plan_row({{problem, forward_row(fit.v_tiles_row)}, card}, plan.forward);
    add_tile_v(problem, plan);
  }
  const ForwardRow& row = forward_row(plan.forward.row);
  const int64_t blocks = std::max<int64_t>(plan.forward.pieces.count(), empty_blocks(plan.forward.tiles, row));
  const int64_t most = row.has(Trait::one_tile) ? blocks : multiprocessors;
  plan.launches[plan.launch_count++] = {ForwardStep::forward, plan.forward.row,
                                        narrow(std::min<int64_t>(blocks, most))};
}

// What a plan of a planned problem depends on beside its shape. Of other problems all is 0.
struct PlannedKey {
  bool planned, batch_invariant, has_schedule;
  int64_t total_q, total_k, chunk;
  int32_t left, right;  // of the window
  bool bottom_right;

  static PlannedKey of(const ForwardProblem& problem) {
    if (!problem.planned) return {};
    const Window& window = problem.window;
    return {true, problem.batch_invariant, problem.schedule != nullptr, problem.total_q, problem.total_k, problem.chunk,
            window.left, window.right, window.bottom_right};
  }
  bool operator==(const PlannedKey&) const = default;
};

// What a plan depends on.
struct Key {
  AttentionShape shape;
  int64_t first_row, rows, v_tiles_row;  // of the rows that fit
  Card card;
  PlannedKey planned;

  bool operator==(const Key&) const = default;
};

}  // namespace

const ForwardPlan& plan(const ForwardProblem& problem, const Fit& fit, const Card& device) {
  constexpr int remembered = 4;  // few, as a thread's stack may have to hold them: glibc puts thread_local data there
  thread_local struct {
    Key keys[remembered];
    ForwardPlan plans[remembered];
    int next;
  } memory;
  const Card card = depends_on_card(problem) ? device : assumed_card(device.multiprocessors);
  Key key{problem, fit.rows[0], fit.count, fit.v_tiles_row, card, PlannedKey::of(problem)};
  key.shape.softmax_scale = 0;  // nothing to it
  for (int i = 0; i < remembered; ++i)
    if (memory.keys[i] == key) return memory.plans[i];
  const int at = memory.next++ % remembered;
  memory.keys[at] = key;
  make_plan(problem, fit, card, memory.plans[at]);
  return memory.plans[at];
}

}  // namespace fa3
