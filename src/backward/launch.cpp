// The launches of the backward pass's plan (plan.cpp), and what they are passed.
#include <algorithm>

#include "backward/backward.h"
#include "backward/planned.h"
#include "device/enqueue.h"
#include "device/modules.h"
#include "device/tensor_map.h"
#include "integers.h"

namespace fa3 {
namespace {

RowStrides strides_of(const View& view) { return {view.stride[0], view.stride[2], view.stride[1]}; }
RowStrides strides_of_rows(const View& view) { return {view.stride[0], view.stride[1], view.stride[2]}; }

// Tiles of 64 keys of a head, as sums over its parts are added up.
int32_t key_tiles_of(const BackwardRun& plan) { return plan.key_blocks * (backward_row(plan.row).Bc / 64); }

BackwardRows rows_of(const BackwardProblem& problem, const BackwardRun& plan, char* workspace) {
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
          narrow(problem.seqlen_q), narrow(problem.head_dim), narrow(problem.head_dim_v), o.dtype == FA3_DTYPE_BF16,
          Divisor::of(plan.q_tiles), Divisor::of(narrow(problem.heads)),
          backward_row(plan.row).Br / backward_tile_rows, problem.store};
}

BackwardKeys keys_of(const BackwardProblem& problem, const BackwardRun& plan, char* workspace) {
  const View &dk = problem.dk, &dv = problem.dv;
  return {plan.order.key_sums > 1 ? reinterpret_cast<float*>(workspace + plan.key_sums) : nullptr,
          static_cast<uint16_t*>(dk.data),
          static_cast<uint16_t*>(dv.data),
          strides_of(dk),
          strides_of(dv),
          narrow(problem.head_dim), narrow(problem.head_dim_v),
          Divisor::of(key_tiles_of(plan)), Divisor::of(narrow(problem.heads_kv))};
}

fa3_status encode_maps(const Driver& driver, const BackwardProblem& problem, const BackwardRun& plan,
                       BackwardParams& params) {
  const BackwardRow& row = backward_row(plan.row);
  // Without queries nothing of Q and dO is loaded; but a map must be one.
  const View& q = problem.has_queries() ? problem.q : problem.k;
  const View& dout = problem.has_queries() ? problem.dout : problem.k;
  if (fa3_status status = encode(driver, "q", q, row, row.Br, params.q)) return status;
  if (fa3_status status = encode(driver, "k", problem.k, row, row.Bc, params.k)) return status;
  if (fa3_status status = encode(driver, "v", problem.v, row, row.Bc, params.v)) return status;
  if (fa3_status status = encode(driver, "dout", dout, row, row.Br, params.dout)) return status;
  // Through these no float32 is stored; but they are prefetched, so they must be maps.
  const bool is_fp32 = problem.store != GradientStore::rounded;
  if (problem.has_queries() && !plan.sums_dq)
    if (fa3_status status = encode(driver, "dq", is_fp32 ? problem.q : problem.dq, row, 64, params.dq)) return status;
  if (fa3_status status = encode(driver, "dk", is_fp32 ? problem.k : problem.dk, row, 64, params.dk)) return status;
  return encode(driver, "dv", is_fp32 ? problem.v : problem.dv, row, 64, params.dv);
}

fa3_status fill(const Driver& driver, const BackwardProblem& problem, int64_t empty_rows, const BackwardRun& plan,
                char* workspace, BackwardParams& params) {
  const BackwardRow& row = backward_row(plan.row);
  if (problem.has_keys())
    if (fa3_status status = encode_maps(driver, problem, plan, params)) return status;
  params.visible = visible_of(problem);
  params.rows = rows_of(problem, plan, workspace);
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
  params.empty = {narrow(empty_rows), Divisor::of(narrow(empty_tiles(empty_rows)))};
  return FA3_OK;
}

}  // namespace

fa3_status enqueue(const Driver& driver, const FirstLaunch& first, CUstream stream) {
  if (!first.function) return FA3_OK;
  WidenParams params = first.params;
  return enqueue(driver, rows[first.launch.row], first.function, first.launch.work, &params, false, stream);
}

fa3_status launch(const BackwardProblem& given, const BackwardPlan& plan, const Device& device, void* workspace,
                  CUstream stream) {
  const Driver& driver = *device.driver;
  char* const all = static_cast<char*>(workspace);
  char* const rest = all + plan.widening.bytes;
  const BackwardProblem problem = widened(given, plan.widening, all);
  // All that may fail for want of a kernel fails before anything is launched.
  FirstLaunch first{};
  if (plan.widens()) {
    if (fa3_status status = get_function(device, plan.widen.row, stream, first.function)) return status;
    first.launch = plan.widen, first.params = widen_params(given, plan.widening, all);
  }
  if (problem.planned) return launch_planned(problem, plan.last, first, device, rest, stream);
  CUfunction functions[2][BackwardRun::most_launches];
  for (const bool is_last : {false, true}) {
    const BackwardRun& run = is_last ? plan.last : plan.run;
    for (int i = 0; i < run.launch_count; ++i)
      if (fa3_status status = get_function(device, run.launches[i].row, stream, functions[is_last][i]))
        return status;
  }
  const auto& [seeing, empty_rows] = seeing_rows(problem);
  for (int64_t n = 0; n < plan.runs; ++n) {
    const BackwardRun& run = plan.of(n);
    const int64_t entry = n * plan.entries, count = std::min(plan.entries, problem.batch - entry);
    BackwardParams params{};
    if (fa3_status status = fill(driver, entries_of(seeing, entry, count), empty_rows, run, rest, params))
      return status;
    if (n == 0)
      if (fa3_status status = enqueue(driver, first, stream)) return status;
    for (int i = 0; i < run.launch_count; ++i) {
      const BackwardLaunch& launch = run.launches[i];
      const int32_t grid = grid_of(launch, device.context->card.multiprocessors);
      const CUfunction function = functions[n == plan.runs - 1][i];
      if (fa3_status status = enqueue(driver, rows[launch.row], function, grid, &params, i > 0, stream)) return status;
    }
  }
  return FA3_OK;
}

}  // namespace fa3
