#include "launch.h"

#include <cmath>

#include "error.h"
#include "modules.h"
#include "schedule.h"
#include "tensor_map.h"
#include "validate.h"

namespace fa3 {
namespace {

// Any valid map; the kernels load through k and v before they know that there are no keys.
View first_row(View view) {
  for (int i = 0; i < 3; ++i) view.dim[i] = 1;
  return view;
}

fa3_status encode_maps(const Driver& driver, const Problem& problem, const Variant& variant, ForwardParams& params) {
  const bool keys = problem.seqlen_k > 0;
  const View k = keys ? problem.k : first_row(problem.q);
  const View v = keys ? problem.v : first_row(problem.q);
  if (fa3_status status = encode(driver, "q", problem.q, q_box_rows, params.q)) return status;
  if (fa3_status status = encode(driver, "k", k, variant.Bc, params.k)) return status;
  if (fa3_status status = encode(driver, "v", v, variant.Bc, params.v)) return status;
  return encode(driver, "o", problem.o, o_box_rows, params.o);
}

void fill(const Problem& problem, const Schedule& schedule, const WorkspaceLayout& layout, void* workspace,
          ForwardParams& params) {
  const Selection& selection = schedule.selection;
  params.o_data = static_cast<uint16_t*>(problem.o.data);
  params.o_stride_batch = problem.o.stride[0];
  params.o_stride_row = problem.o.stride[1];
  params.o_stride_head = problem.o.stride[2];
  params.lse = problem.wants_lse ? static_cast<float*>(problem.lse.data) : nullptr;
  params.lse_stride_batch = problem.lse.stride[0];
  params.lse_stride_head = problem.lse.stride[1];
  params.lse_stride_row = problem.lse.stride[2];
  params.workspace = static_cast<Workspace*>(workspace);
  params.tickets = reinterpret_cast<Tickets*>(static_cast<char*>(workspace) + layout.tickets);
  params.partials = static_cast<char*>(workspace) + layout.partials;
  params.seqlen_q = static_cast<int32_t>(problem.seqlen_q);
  params.seqlen_k = static_cast<int32_t>(problem.seqlen_k);
  params.head_dim = static_cast<int32_t>(problem.head_dim);
  params.heads = Divisor::of(static_cast<int32_t>(problem.heads));
  params.heads_per_kv = Divisor::of(static_cast<int32_t>(problem.heads_per_kv()));
  params.causal_offset = static_cast<int32_t>(problem.causal_offset);
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softmax_scale_log2 = static_cast<float>(problem.softmax_scale * 1.4426950408889634);
  params.q_blocks = selection.q_blocks;
  params.q_origin = selection.q_origin;
  params.batch_heads = selection.batch_heads;
  const int32_t section_heads = selection.section_heads, last_heads = selection.batch_heads % section_heads;
  params.section_heads = Divisor::of(section_heads);
  params.section_tiles = Divisor::of(section_heads * selection.q_blocks);
  params.last_heads = Divisor::of(last_heads ? last_heads : section_heads);
  params.split = schedule.split;
}

}  // namespace

fa3_status launch(const Problem& problem, const Selection& selection, void* workspace, size_t workspace_bytes,
                  CUstream stream) {
  const Driver* driver;
  Context* context;
  CUfunction function;
  if (fa3_status status = get_driver(driver)) return status;
  if (fa3_status status = current_context(*driver, context)) return status;
  const Schedule schedule = make_schedule(problem, selection, context->multiprocessors);
  const Variant& variant = schedule.selection.variant();
  const WorkspaceLayout layout = workspace_layout(schedule);
  if (fa3_status status = validate_workspace(problem, workspace, workspace_bytes, layout.bytes)) return status;
  if (fa3_status status = get_function(*driver, *context, schedule.selection.row, stream, function)) return status;

  ForwardParams params;
  if (fa3_status status = encode_maps(*driver, problem, variant, params)) return status;
  fill(problem, schedule, layout, workspace, params);
  void* arguments[] = {&params};
  const unsigned blocks = grid(schedule, context->multiprocessors);
  if (CUresult result = driver->launch_kernel(function, blocks, 1, 1, variant.threads(), 1, 1, variant.smem_bytes(),
                                              stream, arguments, nullptr))
    return cuda_error(*driver, result, "cuLaunchKernel");
  return FA3_OK;
}

}  // namespace fa3
