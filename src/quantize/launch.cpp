// The launches of fa3_quantize's plan, and what they are passed.
#include <cmath>

#include "device/enqueue.h"
#include "device/modules.h"
#include "integers.h"
#include "quantize/quantize.h"

namespace fa3 {
namespace {

int32_t largest_power_of_two_in(int64_t n) { return narrow(n & -n); }

QuantizeParams params_of(const QuantizeProblem& problem, const QuantizePlan& plan, void* workspace) {
  const View &x = problem.x, &y = problem.y, &scale = problem.scale, &lse = problem.lse_offset;
  QuantizeParams p{};
  p.x = static_cast<const uint16_t*>(x.data);
  p.x_stride_batch = x.stride[0], p.x_stride_row = x.stride[1], p.x_stride_head = x.stride[2];
  p.y = static_cast<uint8_t*>(y.data);
  p.y_stride_batch = y.stride[0], p.y_stride_row = y.stride[1], p.y_stride_head = y.stride[2];
  p.scale = static_cast<float*>(scale.data);
  p.scale_stride_batch = scale.stride[0], p.scale_stride_head = scale.stride[1], p.scale_stride_block = scale.stride[2];
  p.mean = static_cast<float*>(problem.mean.data);
  p.mean_stride_batch = problem.mean.stride[0], p.mean_stride_head = problem.mean.stride[1];
  const View &cos = problem.rotary.cos, &sin = problem.rotary.sin;
  p.rotary_cos = static_cast<const float*>(cos.data), p.rotary_sin = static_cast<const float*>(sin.data);
  p.cos_stride = cos.stride[0], p.sin_stride = sin.stride[0];
  p.k_mean = static_cast<const float*>(problem.k_mean.data);
  p.k_mean_stride_batch = problem.k_mean.stride[0], p.k_mean_stride_head = problem.k_mean.stride[1];
  p.lse_offset = static_cast<float*>(lse.data);
  p.lse_stride_batch = lse.stride[0], p.lse_stride_head = lse.stride[1], p.lse_stride_row = lse.stride[2];
  p.seed = problem.seed;
  p.batch = narrow(problem.batch), p.rows = narrow(problem.rows), p.head_dim = narrow(problem.head_dim);
  p.rotary_dim = narrow(problem.rotary.dim);
  p.hadamard = problem.incoherent ? largest_power_of_two_in(problem.head_dim) : 0;
  p.hadamard_scale = p.hadamard ? static_cast<float>(1 / std::sqrt(static_cast<double>(p.hadamard))) : 1;
  p.softmax_scale = static_cast<float>(problem.softmax_scale);
  p.heads = Divisor::of(narrow(problem.heads));
  p.heads_per_kv = Divisor::of(narrow(problem.has_lse_offset ? problem.heads / problem.heads_kv : 1));
  p.blocks = narrow(divided_up(problem.rows, rows_of_scale));
  p.scales = problem.scales;
  p.bf16 = x.dtype == FA3_DTYPE_BF16, p.tiles = problem.tiles, p.interleaved = problem.rotary.interleaved;
  if (plan.measure == Measure::none) return p;
  p.measure = plan.measure;
  p.parts = narrow(plan.parts);
  p.largest = static_cast<float*>(workspace);
  p.means = p.largest + plan.layout.means;
  p.partials = p.largest + plan.layout.partials;
  p.largest_of_head = narrow(plan.largest_of_head), p.largest_count = narrow(plan.largest_count);
  return p;
}

}  // namespace

fa3_status launch(const QuantizeProblem& problem, const QuantizePlan& plan, const Device& device, void* workspace,
                  CUstream stream) {
  CUfunction functions[QuantizePlan::most_launches];
  for (int i = 0; i < plan.launch_count; ++i)  // before any launch, so that all of the call is enqueued or nothing
    if (fa3_status status = get_function(device, plan.launches[i].row, stream, functions[i])) return status;
  QuantizeParams params = params_of(problem, plan, workspace);
  for (int i = 0; i < plan.launch_count; ++i) {
    const QuantizeLaunch& launch = plan.launches[i];
    params.groups = Divisor::of(narrow(launch.groups));
    if (fa3_status status =
            enqueue(*device.driver, rows[launch.row], functions[i], launch.grid, &params, i > 0, stream))
      return status;
  }
  return FA3_OK;
}

}  // namespace fa3
