// The launch of fa3_combine's plan, and what it is passed.
#include "combine/combine.h"
#include "device/enqueue.h"
#include "device/modules.h"
#include "integers.h"

namespace fa3 {
namespace {

CombineDtype combine_dtype(fa3_dtype dtype) {
  return dtype == FA3_DTYPE_BF16 ? CombineDtype::bf16 : dtype == FA3_DTYPE_FP16 ? CombineDtype::fp16
                                                                                : CombineDtype::fp32;
}

CombineParams params_of(const CombineProblem& problem, const CombinePlan& plan) {
  const CombineTiles& tiles = plan.tiles;
  const View &part = problem.part, &lse_parts = problem.lse_parts, &o = problem.o, &lse = problem.lse;
  CombineParams p{};
  p.o_parts = part.data;
  p.o_parts_stride_part = problem.part_stride, p.o_parts_stride_batch = part.stride[0];
  p.o_parts_stride_row = part.stride[1], p.o_parts_stride_head = part.stride[2];
  p.lse_parts = static_cast<const float*>(lse_parts.data);
  p.lse_parts_stride_part = lse_parts.stride[0], p.lse_parts_stride_batch = lse_parts.stride[1];
  p.lse_parts_stride_head = lse_parts.stride[2], p.lse_parts_stride_row = lse_parts.stride[3];
  p.o = o.data;
  p.o_stride_batch = o.stride[0], p.o_stride_row = o.stride[1], p.o_stride_head = o.stride[2];
  p.lse = static_cast<float*>(lse.data);
  p.lse_stride_batch = lse.stride[0], p.lse_stride_head = lse.stride[1], p.lse_stride_row = lse.stride[2];
  p.parts_dtype = combine_dtype(part.dtype), p.o_dtype = combine_dtype(o.dtype);
  p.parts = narrow(problem.parts), p.batch_heads = narrow(problem.batch * problem.heads), p.rows = narrow(problem.rows);
  p.tile_heads = tiles.heads;
  p.pieces = Divisor::of(plan.chunks);
  p.shares = Divisor::of(tiles.shares), p.slots = Divisor::of(tiles.slots);
  p.head_slots = Divisor::of(tiles.head_slots);
  p.heads = Divisor::of(narrow(problem.heads));
  p.tiles_along_heads = Divisor::of(narrow(tiles.along_heads));
  return p;
}

}  // namespace

fa3_status launch(const CombineProblem& problem, const CombinePlan& plan, const Device& device, CUstream stream) {
  CUfunction function;
  if (fa3_status status = get_function(device, plan.row, stream, function)) return status;
  CombineParams params = params_of(problem, plan);
  return enqueue(*device.driver, rows[plan.row], function, plan.grid, &params, false, stream);
}

}  // namespace fa3
