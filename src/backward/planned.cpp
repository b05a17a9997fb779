#include "backward/planned.h"

#include <algorithm>

#include "backward/planned_order.h"
#include "device/clipped_steps.h"
#include "error.h"
#include "integers.h"

namespace fa3 {
namespace {

// The kernels count rows of all heads, tiles rounded up, in int32.
constexpr int64_t most_rows = INT32_MAX;

// So many thread blocks write zeros, at least.
constexpr int64_t zero_blocks = 264;

fa3_status too_many(const BackwardProblem& problem) {
  return fail(FA3_ERROR_UNSUPPORTED,
              "q has %lld rows in all, k %lld, of up to %lld sequences or chunks of up to %lld and %lld rows, with "
              "%lld and %lld heads; the kernels count up to %lld rows of all heads and %lld blocks of keys",
              ll(all_rows(problem.total_q, problem.q)), ll(all_rows(problem.total_k, problem.k)), ll(problem.batch),
              ll(problem.seqlen_q), ll(problem.seqlen_k), ll(problem.heads), ll(problem.heads_kv), ll(most_rows),
              ll(most_blocks));
}

// Do the kernels reach every row by the steps of their maps?
fa3_status check_steps(const BackwardProblem& problem, bool sums_dq) {
  for (const auto& [name, view, is_used] : mapped_views(problem, sums_dq)) {
    const StepsOfView steps = clipped_steps(view);
    if (is_used && steps.count >= most_steps)
      return fail(FA3_ERROR_UNSUPPORTED,
                  "%s has batch entries %lld and rows %lld elements apart: its last row is %lld times %lld bytes "
                  "behind the first one; the kernels count up to %lld", name, ll(view.stride[0]), ll(view.stride[1]),
                  ll(steps.count), ll(steps.bytes), ll(most_steps));
  }
  return FA3_OK;
}

// What the host says for all lengths; false if there are too many rows or blocks.
bool plan_params(const BackwardProblem& problem, const BackwardRow& row, PlanBackwardParams& p) {
  const int64_t rows_q = all_rows(problem.total_q, problem.q), rows_k = all_rows(problem.total_k, problem.k);
  if (std::max({problem.batch, rows_q, rows_k}) > most_packed_rows) return false;
  p = {};
  p.lengths = problem.lengths;
  p.window = problem.window;
  int64_t each = 1;
  if (problem.chunk > 0) {
    p.cuts.chunk = narrow(std::min<int64_t>(problem.chunk, most_packed_rows));
    each = most_chunks(problem.seqlen_q, problem.seqlen_k, p.cuts.chunk);
  }
  if (problem.batch > most_packed_rows / each) return false;
  p.cuts.each = narrow(each);
  const int64_t sequences = problem.batch * each;
  // Of the chunks of a sequence all but the first and the last have all their rows.
  int64_t nonempty = std::min({sequences, rows_q, rows_k});
  if (problem.chunk > 0) nonempty = std::min(nonempty, 2 * problem.batch + rows_q / problem.chunk);
  nonempty = std::max<int64_t>(nonempty, 1);
  const int64_t keys = most_keys(problem);
  const int64_t listed = row.listed_rows();
  const int64_t tiles = rows_q > 0 ? (rows_q - 1) / listed + nonempty + 1 : 0;  // numbered_tiles of all
  const int64_t blocks = most_pieces(nonempty, keys, rows_k, row.Bc);
  if (tiles * problem.heads > most_rows / listed || blocks * problem.heads_kv > most_blocks ||
      rows_k * problem.heads_kv > most_rows)
    return false;
  p.total_q = narrow(std::max<int64_t>(problem.total_q, 0));
  p.total_k = narrow(std::max<int64_t>(problem.total_k, 0));
  p.entry_rows_q = narrow(problem.q.dim[1]), p.entry_rows_k = narrow(problem.k.dim[1]);
  p.Br = Divisor::of(row.listed_rows()), p.Bc = Divisor::of(row.Bc);
  p.sequences = Divisor::of(narrow(sequences));
  p.most_tiles = narrow(tiles), p.most_blocks = narrow(blocks);
  return true;
}

}  // namespace

MappedViews mapped_views(const BackwardProblem& problem, bool sums_dq) {
  // No float32 is stored through maps; but they are prefetched, so they must be some.
  const bool is_fp32 = problem.store != GradientStore::rounded;
  return {{{"q", problem.q, true},
           {"dout", problem.dout, true},
           {"k", problem.k, true},
           {"v", problem.v, true},
           {"dq", is_fp32 ? problem.q : problem.dq, !sums_dq},
           {"dk", is_fp32 ? problem.k : problem.dk, true},
           {"dv", is_fp32 ? problem.v : problem.dv, true}}};
}

bool depends_on_card(const BackwardProblem& problem, const BackwardRow& row) {
  if (!problem.has_queries() || !problem.has_keys() || !suits_fast_memory(problem, row)) return false;
  PlanBackwardParams call;  // with parts each has fewer readers
  return plan_params(problem, row, call) &&
         suits_fast_memory(in_parts(problem, listed_parts(problem, row, call)), row);
}

fa3_status plan_planned_run(const BackwardProblem& given, int n, const Card& card, BackwardRun& plan) {
  const BackwardRow& row = backward_row(n);
  plan = {};
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  plan.row = n;
  plan.sums_dq = sums_dq(row);
  PlannedRun& planned = plan.planned;
  const int64_t key_means = given.batch * given.heads_kv;
  if (!plan_params(given, row, planned.call) || (given.centered_k && key_means > most_blocks)) return too_many(given);
  const PlanBackwardParams& call = planned.call;
  const int64_t parts = listed_parts(given, row, call);
  const BackwardProblem problem = in_parts(given, parts);
  const int32_t tiles_per_visit = row.listed_rows() / backward_tile_rows;
  const bool has_pairs = problem.has_queries() && problem.has_keys();
  const bool wants_dsinks = !problem.dsinks.empty();
  if (fa3_status status = has_pairs ? check_steps(given, plan.sums_dq) : FA3_OK) return status;
  plan.q_tiles = has_pairs ? call.most_tiles * tiles_per_visit : 0;
  plan.key_blocks = call.most_blocks;
  plan.order = order_of(problem, row, card, call, parts, int64_t{plan.q_tiles} * problem.heads_per_kv());
  planned.call.section_heads = plan.order.section_heads;
  planned.call.dq = plan.order.dq;

  const int64_t heads = problem.heads, tiles = heads * plan.q_tiles;
  const int64_t rows_k = all_rows(problem.total_k, problem.k);
  const int64_t slices = std::max<int64_t>(1, zero_blocks / std::max<int64_t>(1, problem.batch));
  planned.zero_slices = narrow(slices), planned.zero_blocks = narrow(problem.batch * slices);
  // All that are not rounded by thread blocks behind them. Queries as long as keys have a share of Bc rows.
  const int64_t key_blocks = int64_t{call.most_blocks} * problem.heads_kv;
  const int64_t finished = has_pairs && plan.sums_dq ? std::min<int64_t>(plan.order.behind, key_blocks) : 0;
  planned.finish_sharers = narrow(std::min<int64_t>(problem.heads_per_kv() * (row.Bc / backward_tile_rows), 16));
  planned.finish_blocks = narrow(finished * planned.finish_sharers);
  planned.sink_sums_each = plan.q_tiles + planned.zero_blocks;

  size_t bytes = 0;
  const auto place = [&bytes](int64_t size) {
    const size_t at = bytes;
    bytes += static_cast<size_t>(divide_up(size, 64)) * 64;
    return at;
  };
  const int64_t numbers = tiles * backward_tile_rows * int64_t{sizeof(float)};
  plan.lse = place(numbers), plan.delta = place(numbers);
  if (has_pairs) {
    const int64_t copies = plan.order.spread.second > 0 ? 2 : 1;  // of sums and visits
    if (plan.sums_dq) plan.dq_sums = place(copies * numbers * row.d);
    const int64_t visits = plan.sums_dq ? copies * tiles / tiles_per_visit : 0;
    const int64_t added = plan.sums_dq ? int64_t{call.most_blocks} * problem.heads_kv : 0;
    plan.counters = place((added + 1 + visits) * int64_t{sizeof(uint32_t)});  // then how many blocks are claimed
    plan.visits = plan.counters + static_cast<size_t>(added + 1) * sizeof(uint32_t);
    plan.counters_end = plan.visits + static_cast<size_t>(visits) * sizeof(uint32_t);
    planned.list = place(list_bytes(call));
    if (parts > 1) plan.key_sums = place(2 * problem.heads_kv * rows_k * row.d * int64_t{sizeof(float)});
    if (problem.centered_k) planned.key_means = place(key_means * row.d * int64_t{sizeof(float)});
  }
  if (wants_dsinks) planned.sink_sums = place(heads * planned.sink_sums_each * int64_t{sizeof(float)});
  plan.workspace_bytes = std::max(plan.workspace_bytes, bytes);

  const auto add = [&](BackwardStep step, int launched, int64_t work) {
    if (work > 0) plan.launches[plan.launch_count++] = {step, launched, narrow(work)};
  };
  if (has_pairs) add(BackwardStep::plan_backward, pass_of(Pass::plan_backward, 0), 1);
  if (has_pairs && problem.centered_k) add(BackwardStep::key_means, pass_of(Pass::bwd_key_means, row.d), key_means);
  add(BackwardStep::prepare, pass_of(Pass::bwd_prepare, row.d, Trait::planned),
      planned.zero_blocks + tiles / tiles_per_visit);
  if (has_pairs) add(BackwardStep::gradients, n, key_blocks);
  if (has_pairs && !row.all_gradients()) {
    plan.query_order = query_order_of(problem, call);
    add(BackwardStep::queries, queries_row_of(row, problem.centered_k), heads * call.most_tiles);
  }
  const int64_t summed = parts > 1 ? 2 * key_blocks / parts * (row.Bc / 64) : 0;  // of 64 keys each
  add(BackwardStep::finish, pass_of(Pass::bwd_finish, row.d, Trait::planned),
      planned.finish_blocks + (wants_dsinks ? heads : 0) + summed);
  return FA3_OK;
}

}  // namespace fa3
