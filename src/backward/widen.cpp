// Gradients of e4m3: a pass makes copies of 16 bits in the workspace, and the kernels for 16 bits run on these.
#include <algorithm>
#include <bit>

#include "backward/backward.h"
#include "device/widen.h"
#include "error.h"
#include "integers.h"

namespace fa3 {
namespace {

fa3_status check_rows(const char* name, const View& view) {
  if (rows_can_be_widened(view)) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED,
              "%s has %lld * %lld * %lld rows of all heads; the pass that widens e4m3 takes up to %lld", name,
              ll(view.dim[0]), ll(view.dim[1]), ll(view.dim[2]), ll(most_widened_rows));
}

}  // namespace

fa3_status plan_widening(const BackwardProblem& problem, BackwardPlan& plan) {
  Widening& widening = plan.widening;
  widening = {};
  if (!problem.is_e4m3()) return FA3_OK;
  // dk and dv have the rows of k and v, and are never tiles.
  const struct {
    const char* name;
    const View& view;
    size_t& at;
  } tensors[] = {{"q", problem.dq, widening.q}, {"k", problem.dk, widening.k}, {"v", problem.dv, widening.v}};
  const auto place = [&](int64_t bytes) {
    const size_t at = widening.bytes;
    widening.bytes += static_cast<size_t>(divide_up(bytes, 256)) * 256;
    return at;
  };
  for (const auto& [name, view, at] : tensors) {
    if (fa3_status status = check_rows(name, view)) return status;
    at = place(elements_of(view) * 2);
  }
  const int64_t numbers = elements_of(problem.lse) * int64_t{sizeof(float)};
  if (!problem.lse_offset.empty()) widening.lse = place(numbers);
  if (!problem.v_mean.empty()) widening.dlse = place(numbers);
  const int64_t blocks = blocks_of(widen_params(problem, widening, nullptr));
  if (blocks > 0) plan.widen = {BackwardStep::widen, widen_pass, narrow(blocks)};
  return FA3_OK;
}

BackwardProblem widened(const BackwardProblem& problem, const Widening& widening, char* workspace) {
  if (!problem.is_e4m3()) return problem;
  BackwardProblem copy = problem;
  static_cast<ProblemScales&>(copy) = {};
  const fa3_dtype dtype = problem.dout.dtype;
  copy.q = packed_copy(problem.dq, dtype, workspace, widening.q);
  copy.k = packed_copy(problem.dk, dtype, workspace, widening.k);
  copy.v = packed_copy(problem.dv, dtype, workspace, widening.v);
  if (!problem.lse_offset.empty()) copy.lse = packed_copy(problem.lse, FA3_DTYPE_FP32, workspace, widening.lse);
  if (!problem.v_mean.empty()) copy.dlse = packed_copy(problem.lse, FA3_DTYPE_FP32, workspace, widening.dlse);
  return copy;
}

WidenParams widen_params(const BackwardProblem& problem, const Widening& widening, char* workspace) {
  const BackwardProblem copy = widened(problem, widening, workspace);
  const Lengths& lengths = problem.lengths;
  WidenParams params{};
  params.tensors[0] = widened_rows(problem.q, copy.q, problem.q_scale, lengths.cu_q);
  params.tensors[1] = widened_rows(problem.k, copy.k, problem.k_scale, lengths.cu_k);
  params.tensors[2] = problem.v_tiles ? widened_tiles(problem.v, copy.v, problem.v_scale, lengths.cu_k)
                                      : widened_rows(problem.v, copy.v, problem.v_scale, lengths.cu_k);
  const View &dout = problem.dout, &lse = problem.lse, &dlse = problem.dlse;
  const View &offset = problem.lse_offset, &mean = problem.v_mean;
  params.batch = narrow(problem.batch), params.bf16 = dout.dtype == FA3_DTYPE_BF16;
  if (offset.empty() && mean.empty()) return params;
  // A warp has one row or several.
  const auto lanes = std::bit_ceil(static_cast<uint64_t>(divide_up(problem.head_dim_v, 8)));
  params.lanes_shift = std::bit_width(lanes) - 1;
  const int64_t block_lines = corrected_at_once * (rows[widen_pass].threads >> params.lanes_shift);
  params.blocks = blocks_of_heads(problem.q.dim[0], problem.heads, problem.q.dim[1], block_lines);
  params.rows = narrow(problem.q.dim[1]);
  params.heads_per_kv = Divisor::of(narrow(problem.heads_per_kv()));
  params.head_dim_v = narrow(problem.head_dim_v);
  if (!offset.empty()) {
    params.lse = static_cast<const float*>(lse.data), params.lse_to = static_cast<float*>(copy.lse.data);
    params.lse_stride_batch = lse.stride[0], params.lse_stride_head = lse.stride[1];
    params.lse_stride_row = lse.stride[2];
    params.lse_offset = static_cast<const float*>(offset.data);
    params.offset_stride_batch = offset.stride[0], params.offset_stride_head = offset.stride[1];
    params.offset_stride_row = offset.stride[2];
  }
  if (!mean.empty()) {
    params.dlse = static_cast<const float*>(dlse.data), params.dlse_to = static_cast<float*>(copy.dlse.data);
    params.dlse_stride_batch = dlse.stride[0], params.dlse_stride_head = dlse.stride[1];
    params.dlse_stride_row = dlse.stride[2];
    params.dout = static_cast<const uint16_t*>(dout.data);
    params.dout_stride_batch = dout.stride[0], params.dout_stride_row = dout.stride[1];
    params.dout_stride_head = dout.stride[2];
    params.v_mean = static_cast<const float*>(mean.data);
    params.mean_stride_batch = mean.stride[0], params.mean_stride_head = mean.stride[1];
    params.cu_seqlens = lengths.cu_q;
  }
  return params;
}

}  // namespace fa3
