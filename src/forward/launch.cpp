#include <algorithm>
#include <cstddef>
#include <numeric>

#include "device/enqueue.h"
#include "device/modules.h"
#include "device/tensor_map.h"
#include "forward/candidate.h"
#include "forward/forward.h"
#include "forward/plan/copies.h"
#include "forward/plan/planned.h"
#include "forward/plan/tiles.h"
#include "integers.h"
#include "params/params.h"
#include "params/v_tile.h"
#include "rules/transforms.h"

namespace fa3 {
namespace {

fa3_status encode_q(const Driver& driver, const ForwardProblem& problem, const ForwardRow& row, TensorMap& map) {
  return row.packs_heads() ? encode_packed(driver, "q", problem.q, row, problem.heads_kv, map)
                           : encode(driver, "q", problem.q, row, q_box_rows, map);
}

// V as the row takes it.
fa3_status encode_maps(const Driver& driver, const ForwardProblem& problem, const View& v, const ForwardRow& row,
                       ForwardParams& params) {
  const bool packs_heads = row.packs_heads();
  if (fa3_status status = encode_q(driver, problem, row, params.q)) return status;
  if (fa3_status status = encode(driver, "k", problem.k, row, row.stage_keys(), params.k)) return status;
  if (row.takes_v_tiles()) return encode_v_tiles(driver, v, row, params.v);
  if (fa3_status status = encode(driver, "v", v, row, row.stage_keys(), params.v)) return status;
  return row.is_8bit() || packs_heads ? FA3_OK : encode(driver, "o", problem.o, row, o_box_rows, params.o);
}

// K or V of a planned problem. TMA takes no tensor without elements. Where there are none no sequence has a key,
// nothing of what is loaded is used, and some of Q stands for them.
View with_elements(const View& view, const View& q) {
  if (!view.empty()) return view;
  return {q.data, q.dtype, {1, 1, 1, std::min(view.dim[3], q.dim[3])}, {0, 0, 0, 1}};
}

// Of a planned problem, with boxes of so many rows of K and V.
fa3_status encode_maps(const Driver& driver, const ForwardProblem& problem, const ForwardRow& row, int box_rows,
                       PlannedForwardParams& params) {
  const View k = with_elements(problem.k, problem.q), v = with_elements(problem.v, problem.q);
  if (fa3_status status = encode_q(driver, problem, row, params.q)) return status;
  if (fa3_status status = encode(driver, "k", k, row, box_rows, params.k)) return status;
  if (fa3_status status = encode(driver, "v", v, row, box_rows, params.v)) return status;
  // Rows of V that is widened are not taken from boxes: the kernel leaves out those that are not the sequence's.
  for (int i = 0; 1 << i < box_rows && !row.is_latent(); ++i)
    if (fa3_status status = encode(driver, "v", v, row, 1 << i, params.v_rows[i])) return status;
  if (row.o_from_registers()) return FA3_OK;
  if (fa3_status status = encode(driver, "o", problem.o, row, o_box_rows, params.o)) return status;
  for (int i = 0; 1 << i < o_box_rows; ++i)
    if (fa3_status status = encode(driver, "o", problem.o, row, 1 << i, params.o_rows[i])) return status;
  return FA3_OK;
}

Output output_of(const ForwardProblem& problem) {
  const View &o = problem.o, &lse = problem.lse;
  return {o.data,
          o.stride[0],
          o.stride[2],
          o.stride[1],
          problem.wants_lse ? static_cast<float*>(lse.data) : nullptr,
          lse.stride[0],
          lse.stride[1],
          lse.stride[2],
          narrow(problem.head_dim_v),
          dtype_of(problem.widens_o() ? problem.q.dtype : o.dtype)};
}

ScaleTensor scale_of(const View& scale) {
  return {static_cast<const float*>(scale.data), narrow(scale.stride[0]),
          narrow(scale.stride[1]), narrow(scale.stride[2]), 0};
}

Scales scales_of(const ForwardProblem& problem) {
  const View &mean = problem.v_mean, &offset = problem.lse_offset;
  return {scale_of(problem.q_scale),
          scale_of(problem.k_scale),
          scale_of(problem.v_scale),
          static_cast<const float*>(problem.o_scale.data),
          static_cast<const float*>(mean.data),
          narrow(mean.stride[0]),
          narrow(mean.stride[1]),
          static_cast<const float*>(offset.data),
          offset.stride[0],
          offset.stride[1],
          offset.stride[2]};
}

LatentScales latent_scales_of(const ForwardProblem& problem) {
  const View& scale = problem.latent_scale;
  return {static_cast<const float*>(scale.data),
          scale.stride[0],
          scale.stride[2],
          scale.stride[1],
          narrow(scale.empty() ? 0 : scale.dim[0]),
          narrow(scale.dim[1]),
          narrow(4 * scale.dim[3]),
          0};
}

// What memory serves in about 2.7 us: for each of 132 multiprocessors 64 KB on an H100, 96 KB on an H200. There it was
// the fastest (tests/records/diary/decode.md, decoding through pages).
int32_t blocks_in_flight(const Card& card, const ForwardRow& row) {
  if (card.memory_bytes_per_us == 0) return INT32_MAX;
  const int stage_bytes = row.loaded_bytes() * row.stage_keys() / row.Bc;
  return static_cast<int32_t>(2.7 * card.memory_bytes_per_us / stage_bytes);
}

// What all rows take beside the maps.
void fill_common(const ForwardProblem& problem, const RowPlan& plan, const Card& card, void* workspace,
                 ForwardParams& params) {
  char* const bytes = static_cast<char*>(workspace);
  params.output = output_of(problem);
  params.workspace = static_cast<Workspace*>(workspace);
  params.tickets = reinterpret_cast<Tickets*>(bytes + plan.workspace.tickets);
  params.partials = bytes + plan.workspace.partials;
  params.visible = Candidate{problem, forward_row(plan.row)}.visible();
  params.heads_per_kv = Divisor::of(narrow(problem.heads_per_kv()));
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softmax_scale_log2 = static_cast<float>(problem.softmax_scale * 1.4426950408889634);
  params.tiles = plan.tiles;
  params.pieces = plan.pieces;
  params.blocks_in_flight = blocks_in_flight(card, forward_row(plan.row));
}

// The step in which the device makes its plan, from `begin` on.
void fill(const ForwardProblem& problem, const ForwardPlan& plan, const Device& device, void* begin,
          PlanForwardPassParams& params) {
  plan_forward_params({problem, forward_row(plan.forward.row)}, device.context->card.multiprocessors, params.call);
  params.plan = plan_at(begin, params.call);
}

// The kernel that takes this plan.
fa3_status fill_planned(const Device& device, const ForwardProblem& problem, const ForwardPlan& plan, void* workspace,
                        const PlannedPieces& lengths, PlannedForwardParams& params) {
  const ForwardRow& row = forward_row(plan.forward.row);
  const View& table = problem.page_table;
  const bool has_pages = problem.page_size > 0 && problem.seqlen_k > 0;
  // The first key of a chunk may lie anywhere in its page.
  const int64_t pages_and_chunks = has_pages ? std::gcd(problem.page_size, problem.chunk) : row.stage_keys();
  const int box_rows = static_cast<int>(std::gcd(pages_and_chunks, int64_t{row.stage_keys()}));
  fill_common(problem, plan.forward, device.context->card, workspace, params);
  // Blocks of many small boxes are on their way long enough by themselves; the wait costs more than it gains.
  if (box_rows < 8) params.blocks_in_flight = INT32_MAX;
  params.entries = lengths.entries;
  params.counts = lengths.counts;
  params.page_table = has_pages ? static_cast<const int32_t*>(table.data) : nullptr;
  params.table_stride = narrow(table.stride[0]);
  params.box_rows = box_rows;
  params.page_size = has_pages ? Divisor::of(narrow(problem.page_size)) : Divisor{};
  params.sinks = static_cast<const float*>(problem.sinks.data);
  params.sinks_stride = problem.sinks.stride[0];
  params.invariant = problem.batch_invariant;
  params.tile_rows = row.Br;
  return encode_maps(*device.driver, problem, row, box_rows, params);
}

// V as tiles, head by head without gaps.
View v_tiles_at(void* data, const ForwardProblem& problem) {
  const int64_t groups = divide_up(problem.seqlen_k, v_tile_keys), bytes = v_tile_keys * problem.head_dim_v;
  return {data, FA3_DTYPE_E4M3, {problem.batch, groups, problem.heads_kv, bytes},
          {problem.heads_kv * groups * bytes, bytes, groups * bytes, 1}};
}

// The parameters of the forward kernel of any row.
struct AnyForwardParams {
  alignas(TensorMap) std::byte bytes[4096];

  template <class Block>
  Block& at(size_t begin) { return *reinterpret_cast<Block*>(bytes + begin); }
};

// The blocks that the row takes beside its tensors.
fa3_status fill_blocks(const Driver& driver, const ForwardProblem& problem, const RowPlan& plan,
                       AnyForwardParams& params) {
  const ForwardRow& row = forward_row(plan.row);
  const ForwardBlocks taken = blocks_of(row);
  const ForwardLayout begin(taken);
  if (taken.list) std::copy_n(plan.list, plan.pieces.entries(), params.at<ListedForwardParams>(0).list);
  if (taken.scales) params.at<Scales>(begin.scales) = scales_of(problem);
  if (taken.transforms) params.at<ScoreTransforms>(begin.transforms) = transforms_of(problem);
  if (taken.latent_scales) params.at<LatentScales>(begin.latent_scales) = latent_scales_of(problem);
  if (!taken.qv) return FA3_OK;
  return encode_packed(driver, problem.v_in_k ? "q" : "qv", problem.qv, row, problem.heads_kv,
                       params.at<TensorMap>(begin.qv));
}

// The parameters of a plan's steps.
struct StepParams {
  AnyForwardParams forward;
  TileVParams tile_v;
  EmptyRowsParams empty_rows;
  PlanForwardPassParams lengths;  // of a planned problem also where there is no such step
  WidenParams copies;
};

// The problem as the kernel of the plan takes it: with copies of K and V, made in `changed`, if it takes these.
const ForwardProblem& for_kernel(const ForwardProblem& problem, const ForwardPlan& plan, void* workspace,
                                 ForwardProblem& changed) {
  if (!forward_row(plan.forward.row).takes_copies()) return problem;
  return changed = on_copies(problem, plan.copies, workspace);
}

fa3_status fill(const Device& device, const ForwardProblem& given, const ForwardPlan& plan, void* workspace,
                StepParams& params, void* (&launch_params)[ForwardPlan::most_launches]) {
  const Driver& driver = *device.driver;
  ForwardProblem changed;
  const ForwardProblem& problem = for_kernel(given, plan, workspace, changed);
  View v = problem.v;
  if (problem.planned && plan.launch_count)
    fill(problem, plan, device,
         problem.schedule ? const_cast<void*>(problem.schedule)
                          : static_cast<char*>(workspace) + FA3_FORWARD_WORKSPACE_BYTES,
         params.lengths);
  for (int i = 0; i < plan.launch_count; ++i) {
    const ForwardLaunch& launch = plan.launches[i];
    switch (launch.step) {
      case ForwardStep::tile_v:
        v = v_tiles_at(static_cast<char*>(workspace) + plan.v_tiles, problem);
        params.tile_v = {static_cast<const uint8_t*>(problem.v.data),
                         problem.v.stride[0],
                         problem.v.stride[1],
                         problem.v.stride[2],
                         static_cast<uint8_t*>(v.data),
                         narrow(problem.batch),
                         narrow(problem.seqlen_k),
                         narrow(problem.head_dim_v),
                         Divisor::of(narrow(problem.heads_kv)),
                         Divisor::of(narrow(v.dim[1]))};
        launch_params[i] = &params.tile_v;
        break;
      case ForwardStep::plan_forward:
        launch_params[i] = &params.lengths;
        break;
      case ForwardStep::copy_keys:
        params.copies = copying_params(given, plan.copies, workspace);
        launch_params[i] = &params.copies;
        break;
      case ForwardStep::forward:
        if (problem.planned) {
          auto& planned = params.forward.at<PlannedForwardParams>(0);
          if (fa3_status status = fill_planned(device, problem, plan, workspace, params.lengths.plan, planned))
            return status;
        } else {
          auto& dense = params.forward.at<ForwardParams>(0);
          if (fa3_status status = encode_maps(driver, problem, v, forward_row(launch.row), dense)) return status;
          fill_common(problem, plan.forward, device.context->card, workspace, dense);
        }
        if (fa3_status status = fill_blocks(driver, problem, plan.forward, params.forward)) return status;
        launch_params[i] = &params.forward;
        break;
      case ForwardStep::add_parts:
        launch_params[i] = &params.forward;
        break;
      case ForwardStep::empty_rows:
        params.empty_rows = {output_of(problem), narrow(problem.seqlen_q),
                             narrow(problem.batch * problem.heads),
                             Divisor::of(narrow(problem.heads))};
        launch_params[i] = &params.empty_rows;
        break;
    }
  }
  return FA3_OK;
}

}  // namespace

fa3_status launch(const ForwardProblem& problem, const ForwardPlan& plan, const Device& device, void* workspace,
                  CUstream stream) {
  CUfunction functions[ForwardPlan::most_launches];
  for (int i = 0; i < plan.launch_count; ++i)
    if (fa3_status status = get_function(device, plan.launches[i].row, stream, functions[i])) return status;

  StepParams params;
  void* launch_params[ForwardPlan::most_launches];
  if (fa3_status status = fill(device, problem, plan, workspace, params, launch_params)) return status;
  for (int i = 0; i < plan.launch_count; ++i)  // nothing is enqueued before all is ready
    if (fa3_status status = enqueue(*device.driver, rows[plan.launches[i].row], functions[i], plan.launches[i].grid,
                                    launch_params[i], i > 0, stream))
      return status;
  return FA3_OK;
}

fa3_status launch_schedule(const ForwardProblem& problem, const ForwardPlan& plan, const Device& device, void* schedule,
                           CUstream stream) {
  const ForwardLaunch& step = plan.launches[0];
  CUfunction function;
  if (fa3_status status = get_function(device, step.row, stream, function)) return status;
  ForwardProblem changed;
  PlanForwardPassParams params;
  fill(for_kernel(problem, plan, nullptr, changed), plan, device, schedule, params);
  return enqueue(*device.driver, rows[step.row], function, step.grid, &params, false, stream);
}

}  // namespace fa3
