// What the backward pass launches: a pass that prepares numbers of the first query rows; the kernel that computes all
// gradients, whose thread blocks take one block of keys after another, and also prepare rows for later ones and round
// dQ of earlier ones; and a pass for the last dQ. Where K/V heads have several parts, a pass adds these up.
// At head dimensions for which there is no such kernel: the first pass, for all rows, then a kernel for dK and dV, then
// one for dQ.
// Each may start while the one before it ends.
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
int32_t key_tiles_of(const BackwardPlan& plan) { return plan.key_blocks * (rows[plan.row].Bc / 64); }

BackwardRows rows_of(const BackwardProblem& problem, const BackwardPlan& plan, char* workspace) {
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
          rows[plan.row].all_gradients() ? reinterpret_cast<float*>(workspace + plan.dq_sums) : nullptr,
          narrow(problem.seqlen_q), narrow(problem.head_dim), narrow(problem.head_dim_v), dq.dtype == FA3_DTYPE_BF16,
          Divisor::of(std::max(1, plan.q_tiles)), Divisor::of(std::max(1, narrow(problem.heads))),
          rows[plan.row].Br / backward_tile_rows};
}

BackwardKeys keys_of(const BackwardProblem& problem, const BackwardPlan& plan, char* workspace) {
  const View &dk = problem.dk, &dv = problem.dv;
  return {plan.order.parts > 1 ? reinterpret_cast<float*>(workspace + plan.key_sums) : nullptr,
          static_cast<uint16_t*>(dk.data),
          static_cast<uint16_t*>(dv.data),
          strides_of(dk),
          strides_of(dv),
          narrow(problem.head_dim), narrow(problem.head_dim_v),
          Divisor::of(std::max(1, key_tiles_of(plan))), Divisor::of(std::max(1, narrow(problem.heads_kv)))};
}

fa3_status encode_maps(const Driver& driver, const BackwardProblem& problem, const Row& row, BackwardParams& params) {
  // Without queries nothing of Q and dO is loaded, without keys nothing of K and V; but a map must be one.
  const View& q = problem.has_queries() ? problem.q : problem.k;
  const View& dout = problem.has_queries() ? problem.dout : problem.k;
  const View& k = problem.has_keys() ? problem.k : problem.q;
  const View& v = problem.has_keys() ? problem.v : problem.q;
  if (fa3_status status = encode(driver, "q", q, row, row.Br, params.q)) return status;
  if (fa3_status status = encode(driver, "k", k, row, row.Bc, params.k)) return status;
  if (fa3_status status = encode(driver, "v", v, row, row.Bc, params.v)) return status;
  if (fa3_status status = encode(driver, "dout", dout, row, row.Br, params.dout)) return status;
  if (problem.has_queries() && !row.all_gradients())
    if (fa3_status status = encode(driver, "dq", problem.dq, row, 64, params.dq)) return status;
  if (!problem.has_keys()) return FA3_OK;
  if (fa3_status status = encode(driver, "dk", problem.dk, row, 64, params.dk)) return status;
  return encode(driver, "dv", problem.dv, row, 64, params.dv);
}

fa3_status fill(const Driver& driver, const BackwardProblem& problem, const BackwardPlan& plan, char* workspace,
                BackwardParams& params) {
  const Row& row = rows[plan.row];
  if (problem.has_keys() || !row.all_gradients())
    if (fa3_status status = encode_maps(driver, problem, row, params)) return status;
  params.visible = {narrow(problem.seqlen_q), narrow(problem.seqlen_k), 0, narrow(problem.causal_offset), false,
                    problem.causal, {0}};
  params.rows = rows_of(problem, plan, workspace);
  params.keys = keys_of(problem, plan, workspace);
  params.order = plan.order;
  if (row.all_gradients()) {
    params.order.added = reinterpret_cast<uint32_t*>(workspace + plan.counters);
    params.order.prepared = params.order.added + plan.order.batch_heads;
    params.order.claimed = params.order.prepared + plan.order.batch_heads;
    params.visits = reinterpret_cast<uint32_t*>(workspace + plan.visits);
    params.counters = narrow(static_cast<int64_t>((plan.counters_end - plan.counters) / sizeof(uint32_t)));
  }
  params.query_order = plan.query_order;
  params.heads_per_kv = narrow(problem.heads_per_kv());
  params.readers = params.heads_per_kv * plan.order.ranges / plan.order.parts;
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softmax_scale_log2 = static_cast<float>(problem.softmax_scale * 1.4426950408889634);
  return FA3_OK;
}

}  // namespace

fa3_status plan(const BackwardProblem& problem, BackwardPlan& plan) {
  plan = {};
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  if (fa3_status status = find_row(problem, plan.row)) return status;
  const Row& row = rows[plan.row];
  int64_t q_tiles = divide_up(problem.seqlen_q, row.Br) * (row.Br / backward_tile_rows);
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
  const Parts parts = parts_of(problem, row, key_blocks, divide_up(problem.seqlen_q, row.Br));
  q_tiles = parts.ranges * parts.range_tiles * (row.Br / backward_tile_rows);
  tiles = problem.batch * problem.heads * q_tiles;
  plan.q_tiles = narrow(q_tiles), plan.key_blocks = narrow(key_blocks);
  const auto add = [&](BackwardStep step, int n, int64_t work) {
    plan.launches[plan.launch_count++] = {step, n, narrow(work)};
  };
  plan.order = key_order_of(problem, row, parts, key_blocks, divide_up(problem.seqlen_q, row.Br));
  const KeyOrder& order = plan.order;
  blocks *= order.parts;
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
      const size_t copies = order.spread.second > 0 ? 2 : 1;  // of sums and visits
      plan.dq_sums = bytes, plan.counters = bytes + copies * numbers * row.d;
      plan.visits = plan.counters + sizeof(uint32_t) * (2 * static_cast<size_t>(order.batch_heads) + 1);
      bytes = plan.counters_end =
          plan.visits + copies * sizeof(uint32_t) * static_cast<size_t>(tiles) / (row.Br / backward_tile_rows);
    }
    plan.workspace_bytes = std::max(plan.workspace_bytes, bytes);
    add(BackwardStep::prepare, pass_of("bwd_prepare", row.d), int64_t{heads_of_pass(order)} * order.head_tiles);
  }
  if (problem.has_keys()) add(BackwardStep::gradients, plan.row, blocks);
  if (!problem.has_queries()) return FA3_OK;
  const auto add_sums = [&] {
    if (order.parts > 1)
      add(BackwardStep::sum_keys, pass_of("bwd_sum", row.d), 2 * blocks / int32_t{order.parts} * (row.Bc / 64));
  };
  if (row.all_gradients()) {
    add(BackwardStep::finish, pass_of("bwd_finish", row.d), (all - order.done_behind * section) * order.share);
    add_sums();
    return FA3_OK;
  }
  const int queries = queries_row_of(row);
  const int64_t heads = problem.batch * problem.heads, query_blocks = divide_up(problem.seqlen_q, rows[queries].Br);
  plan.query_order = block_order_of(heads, query_blocks, problem.causal);
  add(BackwardStep::queries, queries, heads * query_blocks);
  add_sums();
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
  CUfunction functions[BackwardPlan::most_launches];
  for (int i = 0; i < plan.launch_count; ++i)
    if (fa3_status status = get_function(*driver, *context, plan.launches[i].row, stream, functions[i])) return status;
  BackwardParams params{};
  if (fa3_status status = fill(*driver, problem, plan, static_cast<char*>(workspace), params)) return status;
  for (int i = 0; i < plan.launch_count; ++i) {
    const BackwardLaunch& launch = plan.launches[i];
    const int32_t grid = grid_of(launch, context->multiprocessors);
    if (fa3_status status = enqueue(*driver, rows[launch.row], functions[i], grid, &params, i > 0, stream))
      return status;
  }
  return FA3_OK;
}

}  // namespace fa3
