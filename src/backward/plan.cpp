// What the backward pass launches, one after the other; each may start while the one before it ends:
//   prepare    a pass: LSE and D of the first query rows, and zeros where rows see no key
//   gradients  the kernel that computes all gradients. Its thread blocks take one key block after another; between them
//              they prepare rows for later ones and round dQ of earlier ones (order.h)
//   finish     a pass: rounds the last dQ, unless all keys are one block; and adds up dK and dV where K/V heads have
//              several parts
// Where gradients are float32 that pass stores all of them, and adds them to what is there if that is asked for; but dQ
// that a kernel of its own computes, and dK and dV of varlen sequences in one part (planned.cpp), the kernels store.
// At head dimensions for which no kernel computes all gradients, `prepare` is for all rows, `gradients` computes dK and
// dV, then `queries` computes dQ, and `finish` only adds up dK and dV.
// Of e4m3 a pass makes copies of 16 bits before all of them (widen.cpp), and the rest is as with 16 bits.
// If the workspace for all batch entries were larger than run_bytes, they are worked on in several runs.
#include <algorithm>

#include "backward/backward.h"
#include "backward/planned.h"
#include "backward/order.h"
#include "error.h"
#include "integers.h"
#include "rules/attention.h"
#include "rules/transforms.h"

namespace fa3 {
namespace {

constexpr int64_t max_blocks = INT32_MAX / 2;  // thread blocks are counted in int32

// Workspace of a run, about: some 8000 key blocks of 128 keys at d 128, as many as each of 132 multiprocessors takes 60
// of, so that the end of a run, where some have none, does not count.
constexpr int64_t run_bytes = int64_t{1} << 30;

// Does its kernel, or the pass behind it, store gradients in float32, if they are to?
bool stores_fp32(const BackwardRow& row) {
  return row.gradients == Gradients::keys || (sums_dq(row) && !row.has(Trait::as_written));
}

bool fits(const BackwardRow& row, const BackwardProblem& problem) {
  return row.gradients != Gradients::queries && row.dtype == dtype_of(problem.q.dtype) &&
         row.has(Trait::planned) == problem.planned && (problem.planned || row.mask == problem.mask()) &&
         row.has(Trait::softcap) == has_softcap(problem) && row.has(Trait::alibi) == has_slopes(problem) &&
         (row.has(Trait::centered_k) == problem.centered_k || row.gradients == Gradients::keys) &&
         row.d >= problem.head_dim && row.dv >= problem.head_dim_v &&
         (!row.has(Trait::one_key_block) || most_keys(problem) <= row.Bc) &&
         (problem.store == GradientStore::rounded || stores_fp32(row));
}

// The caller's kernel, or the first one of the smallest head dimension that holds both of the problem's.
fa3_status find_row(const BackwardProblem& problem, int& found) {
  if (problem.kernel) {
    found = row_named(problem.kernel);
    if (found < 0) return unknown_kernel(problem.kernel);
    const BackwardRow* row = rows[found].backward();
    if (!row || !fits(*row, problem))
      return fail(FA3_ERROR_INVALID_ARGUMENT,
                  "params->kernel is %s, which is not a backward kernel for this dtype, mask, head_dim, head_dim_v and "
                  "seqlen_k, dtype of gradients, softcap, alibi_slopes and FA3_FLAG_CENTERED_K",
                  rows[found].name);
    if (problem.deterministic && row->has(Trait::as_written))
      return fail(FA3_ERROR_INVALID_ARGUMENT,
                  "params->flags has FA3_FLAG_DETERMINISTIC, and params->kernel is %s, which adds dq in any order",
                  row->name);
    return FA3_OK;
  }
  found = -1;
  for (int n = first_backward; n < first_pass; ++n) {
    const BackwardRow& row = backward_row(n);
    if (fits(row, problem) && row.has(Trait::chosen) && (found < 0 || row.d < backward_row(found).d)) found = n;
  }
  if (found >= 0) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED,
              "no kernel of this build has q.dim[3] (head_dim) %lld and v.dim[3] (head_dim_v) %lld, %s mask, for the "
              "backward pass", ll(problem.head_dim), ll(problem.head_dim_v),
              has_softcap(problem) && has_slopes(problem) ? "with softcap and alibi_slopes, any"
              : has_softcap(problem) ? "with softcap, any"
              : has_slopes(problem) ? "with alibi_slopes, any"
              : problem.planned ? "with lengths, windows or sinks, any" : problem.causal ? "causal" : "no");
}

// Has the table all that runs with this row?
constexpr bool is_complete(const BackwardRow& row) {
  if (row.gradients == Gradients::queries) return true;
  const bool planned = row.has(Trait::planned);
  const Trait traits = planned ? Trait::planned : Trait::plain;
  return pass_of(Pass::bwd_prepare, row.d, traits) >= 0 && pass_of(Pass::bwd_finish, row.d, traits) >= 0 &&
         (!planned || pass_of(Pass::bwd_key_means, row.d) >= 0) &&
         (row.all_gradients() ||
          (queries_row_of(row, false) >= 0 &&
           (!planned || row.transforms_scores() || queries_row_of(row, true) >= 0)));
}
static_assert(std::all_of(backward_rows.begin(), backward_rows.end(), is_complete),
              "a row of the backward pass lacks a pass, or the kernel for dQ");

// Of rows that see a key.
void plan_run(const BackwardProblem& problem, int64_t empty_rows, int n, BackwardRun& plan) {
  plan = {};
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  plan.row = n;
  const BackwardRow& row = backward_row(n);
  const int64_t key_blocks = divide_up(problem.seqlen_k, row.Bc), head_tiles = divide_up(problem.seqlen_q, row.Br);
  const HeadParts parts = parts_of(problem, row, key_blocks, head_tiles);
  const int64_t q_tiles = parts.ranges * parts.range_tiles * (row.Br / backward_tile_rows);
  const int64_t heads = problem.batch * problem.heads, tiles = heads * q_tiles;
  plan.q_tiles = narrow(q_tiles), plan.key_blocks = narrow(key_blocks);
  plan.sums_dq = sums_dq(row);
  const auto add = [&](BackwardStep step, int n, int64_t work) {
    plan.launches[plan.launch_count++] = {step, n, narrow(work)};
  };
  plan.order = key_order_of(problem, row, parts, key_blocks);
  const KeyOrder& order = plan.order;
  const int64_t blocks = problem.batch * problem.heads_kv * key_blocks * order.parts;
  // Zeros are stored, but not added.
  const bool stores_zeros = problem.store != GradientStore::added_fp32;
  const bool has_keys = problem.has_keys() && (problem.has_queries() || stores_zeros);
  const size_t numbers =
      problem.has_queries() ? static_cast<size_t>(tiles) * backward_tile_rows * sizeof(float) : 0;
  plan.lse = 0, plan.delta = numbers;
  size_t bytes = 2 * numbers;
  if (order.key_sums > 1 && has_keys) {
    plan.key_sums = bytes;
    bytes += 2 * static_cast<size_t>(blocks) * row.Bc * row.d * sizeof(float);
  }
  if (problem.has_queries() && row.all_gradients()) {
    const size_t copies = !plan.sums_dq ? 0 : order.spread.second > 0 ? 2 : 1;  // of sums and visits
    plan.dq_sums = bytes, plan.counters = bytes + copies * numbers * row.d;
    plan.visits = plan.counters + sizeof(uint32_t) * (2 * static_cast<size_t>(order.batch_heads) + 1);
    bytes = plan.counters_end =
        plan.visits + copies * sizeof(uint32_t) * static_cast<size_t>(tiles) / (row.Br / backward_tile_rows);
  }
  plan.workspace_bytes = std::max(plan.workspace_bytes, bytes);
  const int64_t prepared = int64_t{heads_of_pass(order)} * order.head_tiles;
  if (const int64_t work = prepared + (stores_zeros ? heads * empty_tiles(empty_rows) : 0); work > 0)
    add(BackwardStep::prepare, pass_of(Pass::bwd_prepare, row.d), work);
  if (has_keys) add(BackwardStep::gradients, n, blocks);
  const int64_t key_tiles =
      order.key_sums > 1 && has_keys ? 2 * blocks / int32_t{order.parts} * (row.Bc / backward_tile_rows) : 0;
  if (!row.all_gradients() && problem.has_queries()) {
    const int queries = queries_row_of(row, false);
    const int64_t query_blocks = divide_up(problem.seqlen_q, backward_row(queries).Br);
    plan.query_order = block_order_of(heads, query_blocks, visible_of(problem));
    add(BackwardStep::queries, queries, heads * query_blocks);
  }
  const int64_t left = plan.sums_dq ? tiles_left(order) : 0;
  if (left + key_tiles > 0) add(BackwardStep::finish, pass_of(Pass::bwd_finish, row.d), left + key_tiles);
}

// Batch entries of a run.
int64_t entries_of_run(const BackwardProblem& problem, const BackwardRow& row) {
  const double rows = static_cast<double>(problem.heads) * static_cast<double>(divide_up(problem.seqlen_q, row.Br)) *
                      row.Br;
  const double keys = problem.store == GradientStore::rounded
                          ? 0
                          : static_cast<double>(problem.heads_kv) *
                                static_cast<double>(divide_up(problem.seqlen_k, row.Bc)) * row.Bc;
  const double numbers = rows * (2 + (sums_dq(row) ? row.d : 0)) + keys * 2 * row.d;
  const double entries = run_bytes / (numbers * sizeof(float) + 1);
  if (entries >= static_cast<double>(problem.batch)) return std::max<int64_t>(1, problem.batch);
  const int64_t runs = divide_up(problem.batch, std::max<int64_t>(1, static_cast<int64_t>(entries)));
  return divide_up(problem.batch, runs);
}

void take(View& view, int dim, int64_t first, int64_t count) {
  // Whoever only asks may give any address, and a tensor without elements any strides: so these may wrap around.
  const auto bytes = static_cast<uintptr_t>(first) * static_cast<uintptr_t>(view.stride[dim]) *
                     static_cast<uintptr_t>(bytes_per_element(view.dtype));
  if (view.data) view.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view.data) + bytes);
  view.dim[dim] = count;
}

}  // namespace

SeeingRows seeing_rows(const BackwardProblem& problem) {
  const int64_t empty = visible_of(problem).empty_rows();
  BackwardProblem seeing = problem;
  seeing.seqlen_q -= empty, seeing.causal_offset += empty;
  for (View* view : {&seeing.q, &seeing.o, &seeing.dout, &seeing.dq}) take(*view, 1, empty, seeing.seqlen_q);
  for (View* view : {&seeing.lse, &seeing.dlse}) take(*view, 2, empty, seeing.seqlen_q);
  return {seeing, empty};
}

BackwardProblem entries_of(const BackwardProblem& problem, int64_t first, int64_t count) {
  BackwardProblem some = problem;
  some.batch = count;
  for (View* view : {&some.q, &some.k, &some.v, &some.o, &some.dout, &some.dq, &some.dk, &some.dv, &some.lse,
                     &some.dlse})
    take(*view, 0, first, count);
  return some;
}

fa3_status plan(const BackwardProblem& given, const Card& card, BackwardPlan& plan) {
  plan = {};
  if (fa3_status status = plan_widening(given, plan)) return status;
  const BackwardProblem problem = widened(given, plan.widening, nullptr);
  int n;
  if (fa3_status status = find_row(problem, n)) return status;
  if (fa3_status status = check_lengths(problem)) return status;
  if (problem.planned) {
    plan.entries = problem.batch, plan.runs = 1;
    plan.by_card = depends_on_card(problem, backward_row(n));
    return plan_planned_run(problem, n, card, plan.last);
  }
  const BackwardRow& row = backward_row(n);
  const int64_t q_tiles = divide_up(problem.seqlen_q, row.Br) * (row.Br / backward_tile_rows);
  const int64_t key_blocks = divide_up(problem.seqlen_k, row.Bc);
  // The pass that stores dK and dV has a thread block for each 64 keys of each.
  const int64_t most_blocks = problem.store == GradientStore::rounded ? max_blocks : max_blocks / 4;
  int64_t tiles, blocks;  // batch and heads are below 2^31
  if (__builtin_mul_overflow(problem.batch * problem.heads, q_tiles, &tiles) || tiles > max_rows / backward_tile_rows ||
      __builtin_mul_overflow(problem.batch * problem.heads_kv, key_blocks, &blocks) || blocks > most_blocks)
    return fail(FA3_ERROR_UNSUPPORTED,
                "q has %lld * %lld heads of %lld tiles of %d rows, k %lld blocks of keys for each of its heads; the "
                "kernels count up to %lld rows and %lld blocks in all", ll(problem.batch),
                ll(problem.heads), ll(q_tiles), backward_tile_rows,
                ll(key_blocks), ll(max_rows),
                ll(most_blocks));
  const auto& [seeing, empty_rows] = seeing_rows(problem);
  plan.entries = entries_of_run(seeing, row);
  plan.runs = narrow(std::max<int64_t>(1, divide_up(problem.batch, plan.entries)));
  const int64_t before_last = (plan.runs - 1) * plan.entries;
  plan_run(entries_of(seeing, before_last, problem.batch - before_last), empty_rows, n, plan.last);
  if (plan.runs > 1) plan_run(entries_of(seeing, 0, plan.entries), empty_rows, n, plan.run);
  return FA3_OK;
}

int32_t grid_of(const BackwardLaunch& launch, int multiprocessors) {
  const bool takes_several = launch.step == BackwardStep::gradients && backward_row(launch.row).takes_several_blocks();
  return takes_several ? std::min(launch.work, multiprocessors) : launch.work;
}

}  // namespace fa3
