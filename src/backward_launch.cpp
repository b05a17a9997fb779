// What the backward pass launches: a pass that prepares numbers of the first query rows, and writes zeros where rows see
// no key; the kernel that computes all gradients, whose thread blocks take one block of keys after another, and also
// prepare rows for later ones and round dQ of earlier ones; and a pass for the last dQ, unless all keys are one block.
// Where K/V heads have several parts, a pass adds these up.
// At head dimensions for which there is no such kernel: the first pass, for all rows, then a kernel for dK and dV, then
// one for dQ.
// Each may start while the one before it ends. If the workspace for all batch entries were larger than run_bytes, they
// are worked on in several runs.
#include <algorithm>
#include <iterator>

#include "backward.h"
#include "backward_order.h"
#include "enqueue.h"
#include "error.h"
#include "fit.h"
#include "modules.h"
#include "tensor_map.h"

namespace fa3 {
namespace {

constexpr int64_t max_blocks = INT32_MAX / 2;  // thread blocks are counted in int32

// Workspace of a run, about: some 8000 key blocks of 128 keys at d 128, as many as each of 132 multiprocessors takes 60
// of, so that the end of a run, where some have none, does not count.
constexpr int64_t run_bytes = int64_t{1} << 30;

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

bool fits(const Row& row, const BackwardProblem& problem) {
  return row.kind == Kind::backward && !row.has(Trait::queries_only) && row.dtype == dtype_of(problem.q.dtype) &&
         row.causal() == problem.causal && row.d >= problem.head_dim && row.dv >= problem.head_dim_v;
}

// The caller's kernel, or the one of the smallest head dimension that holds both of the problem's.
fa3_status find_row(const BackwardProblem& problem, int& found) {
  if (problem.kernel) {
    found = row_named(problem.kernel);
    if (found < 0) return unknown_kernel(problem.kernel);
    const Row& row = rows[found];
    if (!fits(row, problem))
      return fail(FA3_ERROR_INVALID_ARGUMENT,
                  "params->kernel is %s, which is not a backward kernel for this dtype, mask, head_dim and head_dim_v",
                  row.name);
    if (problem.deterministic && row.has(Trait::as_written))
      return fail(FA3_ERROR_INVALID_ARGUMENT,
                  "params->flags has FA3_FLAG_DETERMINISTIC, and params->kernel is %s, which adds dq in any order",
                  row.name);
    return FA3_OK;
  }
  found = -1;
  for (int n = 0; n < row_count; ++n)
    if (fits(rows[n], problem) && rows[n].has(Trait::chosen) && (found < 0 || rows[n].d < rows[found].d)) found = n;
  if (found >= 0) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED,
              "no kernel of this build has q.dim[3] (head_dim) %lld and v.dim[3] (head_dim_v) %lld, %s mask, for the "
              "backward pass", static_cast<long long>(problem.head_dim), static_cast<long long>(problem.head_dim_v),
              problem.causal ? "causal" : "no");
}

// The kernel for dQ that goes with one for dK and dV.
int queries_row_of(const Row& keys) {
  int n = 0;
  while (!rows[n].has(Trait::queries_only) || rows[n].dtype != keys.dtype || rows[n].d != keys.d ||
         rows[n].mask != keys.mask)
    ++n;
  return n;
}

// The pass of this kernel for the head dimension of a row of the table.
int pass_of(const char* kernel, int head_dim) {
  int n = 0;
  while (!same_text(rows[n].kernel, kernel) || rows[n].d != head_dim) ++n;
  return n;
}

RowStrides strides_of(const View& view) { return {view.stride[0], view.stride[2], view.stride[1]}; }
RowStrides strides_of_rows(const View& view) { return {view.stride[0], view.stride[1], view.stride[2]}; }

// Of a head: 64 keys each, for sums over its parts.
int32_t key_tiles_of(const BackwardRun& plan) { return plan.key_blocks * (rows[plan.row].Bc / 64); }

int64_t empty_tiles(int64_t empty_rows) { return divide_up(empty_rows, backward_tile_rows); }

BackwardRows rows_of(const BackwardProblem& problem, int64_t empty_rows, const BackwardRun& plan, char* workspace) {
  const View &o = problem.o, &dout = problem.dout, &lse = problem.lse, &dlse = problem.dlse, &dq = problem.dq;
  return {static_cast<const uint16_t*>(o.data),
          static_cast<const uint16_t*>(dout.data),
          strides_of(o),
          strides_of(dout),
          static_cast<const float*>(lse.data),
          static_cast<const float*>(dlse.data),
          strides_of_rows(lse),
          strides_of_rows(dlse),
          static_cast<uint16_t*>(dq.data),
          strides_of(dq),
          reinterpret_cast<float*>(workspace + plan.lse),
          reinterpret_cast<float*>(workspace + plan.delta),
          plan.sums_dq ? reinterpret_cast<float*>(workspace + plan.dq_sums) : nullptr,
          narrow(problem.seqlen_q), narrow(empty_rows), Divisor::of(std::max(1, narrow(empty_tiles(empty_rows)))),
          narrow(problem.head_dim), narrow(problem.head_dim_v), dq.dtype == FA3_DTYPE_BF16,
          Divisor::of(std::max(1, plan.q_tiles)), Divisor::of(std::max(1, narrow(problem.heads))),
          rows[plan.row].Br / backward_tile_rows};
}

BackwardKeys keys_of(const BackwardProblem& problem, const BackwardRun& plan, char* workspace) {
  const View &dk = problem.dk, &dv = problem.dv;
  return {plan.order.parts > 1 ? reinterpret_cast<float*>(workspace + plan.key_sums) : nullptr,
          static_cast<uint16_t*>(dk.data),
          static_cast<uint16_t*>(dv.data),
          strides_of(dk),
          strides_of(dv),
          narrow(problem.head_dim), narrow(problem.head_dim_v),
          Divisor::of(std::max(1, key_tiles_of(plan))), Divisor::of(std::max(1, narrow(problem.heads_kv)))};
}

fa3_status encode_maps(const Driver& driver, const BackwardProblem& problem, const BackwardRun& plan,
                       BackwardParams& params) {
  const Row& row = rows[plan.row];
  // Without queries nothing of Q and dO is loaded; but a map must be one.
  const View& q = problem.has_queries() ? problem.q : problem.k;
  const View& dout = problem.has_queries() ? problem.dout : problem.k;
  if (fa3_status status = encode(driver, "q", q, row, row.Br, params.q)) return status;
  if (fa3_status status = encode(driver, "k", problem.k, row, row.Bc, params.k)) return status;
  if (fa3_status status = encode(driver, "v", problem.v, row, row.Bc, params.v)) return status;
  if (fa3_status status = encode(driver, "dout", dout, row, row.Br, params.dout)) return status;
  if (problem.has_queries() && !plan.sums_dq)
    if (fa3_status status = encode(driver, "dq", problem.dq, row, 64, params.dq)) return status;
  if (fa3_status status = encode(driver, "dk", problem.dk, row, 64, params.dk)) return status;
  return encode(driver, "dv", problem.dv, row, 64, params.dv);
}

fa3_status fill(const Driver& driver, const BackwardProblem& problem, int64_t empty_rows, const BackwardRun& plan,
                char* workspace, BackwardParams& params) {
  const Row& row = rows[plan.row];
  if (problem.has_keys())
    if (fa3_status status = encode_maps(driver, problem, plan, params)) return status;
  params.visible = {narrow(problem.seqlen_q), narrow(problem.seqlen_k), 0, narrow(problem.causal_offset), false,
                    problem.causal, {0}};
  params.rows = rows_of(problem, empty_rows, plan, workspace);
  params.keys = keys_of(problem, plan, workspace);
  params.order = plan.order;
  if (row.all_gradients()) {
    params.order.added = reinterpret_cast<uint32_t*>(workspace + plan.counters);
    params.order.prepared = params.order.added + plan.order.batch_heads;
    params.order.claimed = params.order.prepared + plan.order.batch_heads;
    if (plan.sums_dq) params.visits = reinterpret_cast<uint32_t*>(workspace + plan.visits);
    params.counters = narrow(static_cast<int64_t>((plan.counters_end - plan.counters) / sizeof(uint32_t)));
  }
  params.query_order = plan.query_order;
  params.heads_per_kv = narrow(problem.heads_per_kv());
  params.readers = params.heads_per_kv * plan.order.ranges / plan.order.parts;
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softmax_scale_log2 = static_cast<float>(problem.softmax_scale * 1.4426950408889634);
  return FA3_OK;
}

// Of rows that see a key.
void plan_run(const BackwardProblem& problem, int64_t empty_rows, int n, BackwardRun& plan) {
  plan = {};
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  plan.row = n;
  const Row& row = rows[n];
  const int64_t key_blocks = divide_up(problem.seqlen_k, row.Bc), head_tiles = divide_up(problem.seqlen_q, row.Br);
  const Parts parts = parts_of(problem, row, key_blocks, head_tiles);
  const int64_t q_tiles = parts.ranges * parts.range_tiles * (row.Br / backward_tile_rows);
  const int64_t heads = problem.batch * problem.heads, tiles = heads * q_tiles;
  plan.q_tiles = narrow(q_tiles), plan.key_blocks = narrow(key_blocks);
  plan.sums_dq = row.all_gradients() && !is_dq_complete(row, key_blocks);
  const auto add = [&](BackwardStep step, int n, int64_t work) {
    plan.launches[plan.launch_count++] = {step, n, narrow(work)};
  };
  plan.order = key_order_of(problem, row, parts, key_blocks, head_tiles);
  const KeyOrder& order = plan.order;
  const int64_t blocks = problem.batch * problem.heads_kv * key_blocks * order.parts;
  const int64_t all = std::max(blocks, int64_t{order.batch_heads}), section = order.section;  // at least one for a head
  if (problem.has_queries()) {
    const size_t numbers = static_cast<size_t>(tiles) * backward_tile_rows * sizeof(float);
    plan.lse = 0, plan.delta = numbers;
    size_t bytes = 2 * numbers;
    if (order.parts > 1) {
      plan.key_sums = bytes;
      bytes += 2 * static_cast<size_t>(blocks) * row.Bc * row.d * sizeof(float);
    }
    if (row.all_gradients()) {
      const size_t copies = !plan.sums_dq ? 0 : order.spread.second > 0 ? 2 : 1;  // of sums and visits
      plan.dq_sums = bytes, plan.counters = bytes + copies * numbers * row.d;
      plan.visits = plan.counters + sizeof(uint32_t) * (2 * static_cast<size_t>(order.batch_heads) + 1);
      bytes = plan.counters_end =
          plan.visits + copies * sizeof(uint32_t) * static_cast<size_t>(tiles) / (row.Br / backward_tile_rows);
    }
    plan.workspace_bytes = std::max(plan.workspace_bytes, bytes);
  }
  const int64_t prepared = int64_t{heads_of_pass(order)} * order.head_tiles;
  if (const int64_t work = prepared + heads * empty_tiles(empty_rows); work > 0)
    add(BackwardStep::prepare, pass_of("bwd_prepare", row.d), work);
  if (problem.has_keys()) add(BackwardStep::gradients, n, blocks);
  if (!problem.has_queries()) return;
  if (plan.sums_dq)
    add(BackwardStep::finish, pass_of("bwd_finish", row.d), (all - order.done_behind * section) * order.share);
  if (!row.all_gradients()) {
    const int queries = queries_row_of(row);
    const int64_t query_blocks = divide_up(problem.seqlen_q, rows[queries].Br);
    plan.query_order = block_order_of(heads, query_blocks, problem.causal);
    add(BackwardStep::queries, queries, heads * query_blocks);
  }
  if (order.parts > 1)
    add(BackwardStep::sum_keys, pass_of("bwd_sum", row.d), 2 * blocks / int32_t{order.parts} * (row.Bc / 64));
}

// Batch entries of a run.
int64_t entries_of_run(const BackwardProblem& problem, const Row& row) {
  const bool sums_dq = row.all_gradients() && !is_dq_complete(row, divide_up(problem.seqlen_k, row.Bc));
  const double rows = static_cast<double>(problem.heads) * static_cast<double>(divide_up(problem.seqlen_q, row.Br)) *
                      row.Br;
  const double entries = run_bytes / (rows * (2 + (sums_dq ? row.d : 0)) * sizeof(float) + 1);
  if (entries >= static_cast<double>(problem.batch)) return std::max<int64_t>(1, problem.batch);
  const int64_t runs = divide_up(problem.batch, std::max<int64_t>(1, static_cast<int64_t>(entries)));
  return divide_up(problem.batch, runs);
}

void take(View& view, int dim, int64_t first, int64_t count) {
  // Whoever only asks may give any address.
  if (view.data)
    view.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view.data) +
                                        static_cast<uintptr_t>(first * view.stride[dim]) *
                                            static_cast<uintptr_t>(bytes_per_element(view.dtype)));
  view.dim[dim] = count;
}

}  // namespace

SeeingRows seeing_rows(const BackwardProblem& problem) {
  const int64_t empty = problem.seqlen_k == 0 ? problem.seqlen_q
                        : problem.causal ? std::clamp<int64_t>(-problem.causal_offset, 0, problem.seqlen_q) : 0;
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

fa3_status plan(const BackwardProblem& problem, BackwardPlan& plan) {
  plan = {};
  int n;
  if (fa3_status status = find_row(problem, n)) return status;
  const Row& row = rows[n];
  const int64_t q_tiles = divide_up(problem.seqlen_q, row.Br) * (row.Br / backward_tile_rows);
  const int64_t key_blocks = divide_up(problem.seqlen_k, row.Bc);
  int64_t tiles, blocks;  // batch and heads are below 2^31
  if (__builtin_mul_overflow(problem.batch * problem.heads, q_tiles, &tiles) || tiles > max_rows / backward_tile_rows ||
      __builtin_mul_overflow(problem.batch * problem.heads_kv, key_blocks, &blocks) || blocks > max_blocks)
    return fail(FA3_ERROR_UNSUPPORTED,
                "q has %lld * %lld heads of %lld tiles of %d rows, k %lld blocks of keys for each of its heads; the "
                "kernels count up to %lld rows and %lld blocks in all", static_cast<long long>(problem.batch),
                static_cast<long long>(problem.heads), static_cast<long long>(q_tiles), backward_tile_rows,
                static_cast<long long>(key_blocks), static_cast<long long>(max_rows),
                static_cast<long long>(max_blocks));
  const auto& [seeing, empty_rows] = seeing_rows(problem);
  plan.entries = entries_of_run(seeing, row);
  plan.runs = narrow(std::max<int64_t>(1, divide_up(problem.batch, plan.entries)));
  const int64_t before_last = (plan.runs - 1) * plan.entries;
  plan_run(entries_of(seeing, before_last, problem.batch - before_last), empty_rows, n, plan.last);
  if (plan.runs > 1) plan_run(entries_of(seeing, 0, plan.entries), empty_rows, n, plan.run);
  return FA3_OK;
}

int32_t grid_of(const BackwardLaunch& launch, int multiprocessors) {
  const bool takes_several = launch.step == BackwardStep::gradients && rows[launch.row].takes_several_blocks();
  return takes_several ? std::min(launch.work, multiprocessors) : launch.work;
}

fa3_status launch(const BackwardProblem& problem, const BackwardPlan& plan, void* workspace, CUstream stream) {
  const Driver* driver;
  Context* context;
  if (fa3_status status = get_driver(driver)) return status;
  if (fa3_status status = current_context(*driver, context)) return status;
  // All that may fail for want of a kernel fails before anything is launched.
  CUfunction functions[2][BackwardRun::most_launches];
  for (const bool is_last : {false, true}) {
    const BackwardRun& run = is_last ? plan.last : plan.run;
    for (int i = 0; i < run.launch_count; ++i)
      if (fa3_status status = get_function(*driver, *context, run.launches[i].row, stream, functions[is_last][i]))
        return status;
  }
  const auto& [seeing, empty_rows] = seeing_rows(problem);
  for (int64_t n = 0; n < plan.runs; ++n) {
    const BackwardRun& run = plan.of(n);
    const int64_t first = n * plan.entries, count = std::min(plan.entries, problem.batch - first);
    BackwardParams params{};
    if (fa3_status status = fill(*driver, entries_of(seeing, first, count), empty_rows, run,
                                 static_cast<char*>(workspace), params))
      return status;
    for (int i = 0; i < run.launch_count; ++i) {
      const BackwardLaunch& launch = run.launches[i];
      const int32_t grid = grid_of(launch, context->multiprocessors);
      const CUfunction function = functions[n == plan.runs - 1][i];
      if (fa3_status status = enqueue(*driver, rows[launch.row], function, grid, &params, i > 0, stream)) return status;
    }
  }
  return FA3_OK;
}

}  // namespace fa3
