// The launch of fa3_append's plan, and what it is passed.
#include <algorithm>

#include "append/append.h"
#include "device/enqueue.h"
#include "device/modules.h"

namespace fa3 {
namespace {

AppendTensor tensor_of(const Appended& of, int64_t rotary_dim) {
  const View &x = of.x, &y = of.y, &scale = of.scale;
  AppendTensor t{};
  t.x = static_cast<const uint16_t*>(x.data);
  t.x_stride_batch = x.stride[0], t.x_stride_row = x.stride[1], t.x_stride_head = x.stride[2];
  t.y = y.data;
  t.y_stride_batch = y.stride[0], t.y_stride_row = y.stride[1], t.y_stride_head = y.stride[2];
  t.scale = of.has_scale ? static_cast<const float*>(scale.data) : nullptr;
  t.scale_stride_batch = scale.stride[0], t.scale_stride_head = scale.stride[1];
  t.heads = narrow(x.dim[2]);
  t.quads = quads_of_head(of, rotary_dim);
  t.quads_of_head = Divisor::of(t.quads.count());
  return t;
}

const int32_t* numbers(const View& view) { return static_cast<const int32_t*>(view.data); }

AppendParams params_of(const AppendProblem& problem, const AppendPlan& plan) {
  const Rotary& rotary = problem.rotary;
  AppendParams p{};
  p.tensors[0] = tensor_of(problem.q, rotary.dim), p.tensors[1] = tensor_of(problem.k, rotary.dim);
  p.tensors[2] = tensor_of(problem.v, 0);
  p.q_end = plan.q_end, p.k_end = plan.k_end, p.quads = plan.quads;
  p.lane_shift = plan.segments.lane_shift, p.segments = Divisor::of(plan.segments.per_row);
  p.rows = narrow(problem.rows);
  p.rows_of_sequence = Divisor::of(narrow(problem.packed ? problem.rows : problem.sequence_rows));
  p.batch = narrow(problem.batch);
  p.cu_seqlens = numbers(problem.cu_seqlens), p.seqused = numbers(problem.seqused);
  p.cache_seqlens = numbers(problem.cache_seqlens), p.cache_batch_idx = numbers(problem.cache_batch_idx);
  p.page_table = numbers(problem.page_table), p.page_table_stride = problem.page_table.stride[0];
  p.slots = problem.slots.data, p.slots_64 = problem.slots.dtype == FA3_DTYPE_INT64;
  p.positions = problem.positions.data, p.positions_64 = problem.positions.dtype == FA3_DTYPE_INT64;
  p.positions_of_rows = problem.rows_alone;
  if (rotary.dim > 0) {
    p.rotary_cos = static_cast<const float*>(rotary.cos.data), p.cos_stride = rotary.cos.stride[0];
    p.rotary_sin = static_cast<const float*>(rotary.sin.data), p.sin_stride = rotary.sin.stride[0];
    p.angles = narrow(std::min(rotary.cos.dim[0], rotary.sin.dim[0]));
  }
  p.caches = narrow(problem.caches), p.capacity = narrow(problem.capacity);
  p.cache_rows = Divisor::of(narrow(problem.cache_rows));
  p.bf16 = (problem.k.x.empty() ? problem.q : problem.k).x.dtype == FA3_DTYPE_BF16;
  p.interleaved = rotary.interleaved;
  return p;
}

}  // namespace

fa3_status launch(const AppendProblem& problem, const AppendPlan& plan, const Device& device, CUstream stream) {
  CUfunction function;
  if (fa3_status status = get_function(device, plan.row, stream, function)) return status;
  AppendParams params = params_of(problem, plan);
  return enqueue(*device.driver, rows[plan.row], function, plan.grid, &params, false, stream);
}

}  // namespace fa3
