// The launches of a planned problem's plan (planned.cpp), and what they are passed.
#include <cfloat>

#include "backward/planned.h"
#include "device/enqueue.h"
#include "device/modules.h"
#include "device/tensor_map.h"
#include "integers.h"
#include "rules/transforms.h"

namespace fa3 {
namespace {

constexpr double log2_e = 1.4426950408889634;

RowStrides strides_of(const View& view) { return {view.stride[0], view.stride[2], view.stride[1]}; }
RowStrides strides_of_rows(const View& view) { return {view.stride[0], view.stride[1], view.stride[2]}; }

fa3_status encode_maps(const Driver& driver, const BackwardProblem& problem, const BackwardRun& plan,
                       PlannedBackwardParams& params) {
  const BackwardRow& row = backward_row(plan.row);
  const struct {
    int rows;  // of a box
    TensorMap& map;
  } all[] = {{row.Br, params.q}, {row.Br, params.dout}, {row.Bc, params.k}, {row.Bc, params.v},
             {64, params.dq},    {64, params.dk},       {64, params.dv}};
  const MappedViews views = mapped_views(problem, plan.sums_dq);
  for (int32_t i = 0; i < backward_maps; ++i) {
    const auto& [name, view, is_used] = views[i];
    if (!is_used) continue;
    const StepsOfView steps = clipped_steps(view);
    params.steps[i] = steps.steps;
    if (fa3_status status = encode_clipped(driver, name, view, row, all[i].rows, steps, all[i].map)) return status;
  }
  return FA3_OK;
}

BackwardRows rows_of(const BackwardProblem& problem, const BackwardRun& plan, char* workspace) {
  const View &o = problem.o, &dout = problem.dout, &lse = problem.lse, &dlse = problem.dlse, &dq = problem.dq;
  BackwardRows rows{};
  rows.o = static_cast<const uint16_t*>(o.data), rows.dout = static_cast<const uint16_t*>(dout.data);
  rows.o_stride = strides_of(o), rows.dout_stride = strides_of(dout);
  rows.lse = static_cast<const float*>(lse.data), rows.dlse = static_cast<const float*>(dlse.data);
  rows.lse_stride = strides_of_rows(lse), rows.dlse_stride = strides_of_rows(dlse);
  rows.dq = static_cast<uint16_t*>(dq.data), rows.dq_stride = strides_of(dq);
  rows.lse_log2 = reinterpret_cast<float*>(workspace + plan.lse);
  rows.delta = reinterpret_cast<float*>(workspace + plan.delta);
  if (plan.sums_dq) rows.dq_sums = reinterpret_cast<float*>(workspace + plan.dq_sums);
  rows.head_dim = narrow(problem.head_dim), rows.head_dim_v = narrow(problem.head_dim_v);
  rows.bf16 = o.dtype == FA3_DTYPE_BF16;
  rows.store = problem.store;
  rows.tiles = Divisor::of(plan.q_tiles);
  rows.heads = Divisor::of(narrow(problem.heads));
  rows.tiles_per_visit = backward_row(plan.row).listed_rows() / backward_tile_rows;
  return rows;
}

BackwardKeys keys_of(const BackwardProblem& problem, const BackwardRun& plan) {
  const View &dk = problem.dk, &dv = problem.dv;
  BackwardKeys keys{};
  keys.dk = static_cast<uint16_t*>(dk.data), keys.dv = static_cast<uint16_t*>(dv.data);
  keys.dk_stride = strides_of(dk), keys.dv_stride = strides_of(dv);
  keys.head_dim = narrow(problem.head_dim), keys.head_dim_v = narrow(problem.head_dim_v);
  keys.tiles = Divisor::of(plan.key_blocks * (backward_row(plan.row).Bc / 64));
  keys.heads = Divisor::of(narrow(problem.heads_kv));
  return keys;
}

UnroundedKeys unrounded_keys(const BackwardProblem& problem, const BackwardRun& plan, char* workspace) {
  if (plan.order.parts == 1)
    return {static_cast<float*>(problem.dk.data), static_cast<float*>(problem.dv.data), strides_of(problem.dk),
            strides_of(problem.dv), static_cast<float>(problem.softmax_scale),
            problem.store == GradientStore::added_fp32};
  // As a packed tensor, heads first.
  const int64_t d = backward_row(plan.row).d, entry_rows = problem.k.dim[1];
  const int64_t rows = problem.total_k < 0 ? problem.k.dim[0] * entry_rows : problem.total_k;
  const RowStrides stride{entry_rows * d, rows * d, d};
  float* const dk = reinterpret_cast<float*>(workspace + plan.key_sums);
  return {dk, dk + plan.order.heads * stride.head, stride, stride, 1, 0};
}

CenteredBackwardParams centered(const PlannedBackwardParams& params, const BackwardProblem& problem,
                                const BackwardRun& plan, char* workspace) {
  CenteredBackwardParams made{};
  static_cast<PlannedBackwardParams&>(made) = params;
  made.k_rows = static_cast<const uint16_t*>(problem.k.data), made.k_stride = strides_of(problem.k);
  made.key_means = reinterpret_cast<float*>(workspace + plan.planned.key_means);
  return made;
}

fa3_status fill(const Driver& driver, const BackwardProblem& problem, const BackwardRun& plan, char* workspace,
                PlanBackwardPassParams& pass, TransformedBackwardParams& params) {
  const PlannedRun& planned = plan.planned;
  pass.call = params.call = planned.call;
  pass.list = list_at(workspace + planned.list, planned.call);
  pass.spread_shift = plan.order.spread.shift;
  params.counts = pass.list.counts;
  params.blocks = pass.list.blocks;
  params.tiles = pass.list.tiles;
  params.sequences = pass.list.sequences;
  params.zero_slices = Divisor::of(planned.zero_slices);
  params.zero_blocks = planned.zero_blocks;
  params.finish_sharers = Divisor::of(planned.finish_sharers);
  params.finish_blocks = planned.finish_blocks;
  params.sinks = {static_cast<const float*>(problem.sinks.data), static_cast<float*>(problem.dsinks.data),
                  problem.sinks.stride[0], problem.dsinks.stride[0],
                  reinterpret_cast<float*>(workspace + planned.sink_sums), planned.sink_sums_each};
  params.rows = rows_of(problem, plan, workspace);
  params.keys = keys_of(problem, plan);
  params.unrounded = unrounded_keys(problem, plan, workspace);
  params.order = plan.order;
  if (plan.counters_end > 0) {
    params.order.added = reinterpret_cast<uint32_t*>(workspace + plan.counters);
    params.order.claimed = reinterpret_cast<uint32_t*>(workspace + plan.visits) - 1;
    params.visits = reinterpret_cast<uint32_t*>(workspace + plan.visits);
    params.counters = narrow(static_cast<int64_t>((plan.counters_end - plan.counters) / sizeof(uint32_t)));
  }
  params.query_order = plan.query_order;
  params.transforms = transforms_of(problem);
  if (has_softcap(problem)) {
    params.tanh = tanh_of(problem);
    // Of caps far beyond usual scores the last coefficient is too small for a float32: then any tanh serves better.
    if (params.tanh.wide[wide_terms] < FLT_MIN) params.transforms.softcap.highest[1] = -FLT_MAX;
    params.transforms.alibi.inverse_scale = static_cast<float>(log2_e / static_cast<double>(params.tanh.cap_log2));
  }
  params.heads_per_kv = narrow(problem.heads_per_kv());
  params.readers = params.heads_per_kv / plan.order.parts;
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softmax_scale_log2 = static_cast<float>(problem.softmax_scale * log2_e);
  return problem.has_queries() && problem.has_keys() ? encode_maps(driver, problem, plan, params) : FA3_OK;
}

}  // namespace

fa3_status launch_planned(const BackwardProblem& problem, const BackwardRun& plan, const FirstLaunch& first,
                          const Device& device, void* workspace, CUstream stream) {
  const Driver& driver = *device.driver;
  CUfunction functions[BackwardRun::most_launches];
  for (int i = 0; i < plan.launch_count; ++i)
    if (fa3_status status = get_function(device, plan.launches[i].row, stream, functions[i])) return status;
  PlanBackwardPassParams pass{};
  TransformedBackwardParams params{};
  if (fa3_status status = fill(driver, problem, plan, static_cast<char*>(workspace), pass, params)) return status;
  CenteredBackwardParams with_means = centered(params, problem, plan, static_cast<char*>(workspace));
  if (fa3_status status = enqueue(driver, first, stream)) return status;
  for (int i = 0; i < plan.launch_count; ++i) {
    const BackwardLaunch& launch = plan.launches[i];
    void* const passed = launch.step == BackwardStep::plan_backward ? static_cast<void*>(&pass)
                         : problem.centered_k                      ? static_cast<void*>(&with_means)
                                                                : &params;
    const int32_t grid = grid_of(launch, device.context->card.multiprocessors);
    if (fa3_status status = enqueue(driver, rows[launch.row], functions[i], grid, passed, i > 0, stream)) return status;
  }
  return FA3_OK;
}

}  // namespace fa3
