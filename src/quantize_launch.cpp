#include <algorithm>
#include <cmath>

#include "error.h"
#include "modules.h"
#include "quantize.h"

namespace fa3 {
namespace {

using Granularity = QuantizeParams::Granularity;

// Of a group of heads, as elements of x: two groups are in use at a time, beside what is written, and the two halves of
// the L2 cache (50 MB) may both hold them.
constexpr int64_t group_bytes = 8 << 20;

int find_row(const QuantizeProblem& problem, bool measures) {
  int found = -1;
  for (int i = 0; i < row_count; ++i) {
    const Row& row = rows[i];
    if (row.has(Trait::quantizes) && row.has(Trait::measures) == measures && row.d >= problem.head_dim &&
        row.has(Trait::rotates) == (problem.rotary_dim > 0) && (found < 0 || row.d < rows[found].d))
      found = i;
  }
  return found;
}

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

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
  p.rotary_cos = static_cast<const float*>(problem.rotary_cos.data);
  p.rotary_sin = static_cast<const float*>(problem.rotary_sin.data);
  p.cos_stride = problem.rotary_cos.stride[0], p.sin_stride = problem.rotary_sin.stride[0];
  p.k_mean = static_cast<const float*>(problem.k_mean.data);
  p.k_mean_stride_batch = problem.k_mean.stride[0], p.k_mean_stride_head = problem.k_mean.stride[1];
  p.lse_offset = static_cast<float*>(lse.data);
  p.lse_stride_batch = lse.stride[0], p.lse_stride_head = lse.stride[1], p.lse_stride_row = lse.stride[2];
  p.seed = problem.seed;
  p.batch = narrow(problem.batch), p.rows = narrow(problem.rows), p.head_dim = narrow(problem.head_dim);
  p.rotary_dim = narrow(problem.rotary_dim);
  p.hadamard = problem.incoherent ? largest_power_of_two_in(problem.head_dim) : 0;
  p.hadamard_scale = p.hadamard ? static_cast<float>(1 / std::sqrt(static_cast<double>(p.hadamard))) : 0;
  p.softmax_scale = static_cast<float>(problem.softmax_scale);
  p.heads = Divisor::of(narrow(problem.heads));
  p.heads_per_kv = Divisor::of(narrow(problem.has_lse_offset ? problem.heads / problem.heads_kv : 1));
  p.blocks = Divisor::of(plan.order.blocks);
  p.scales = problem.scales;
  p.bf16 = x.dtype == FA3_DTYPE_BF16, p.tiles = problem.tiles, p.interleaved = problem.interleaved;
  p.workspace = static_cast<Workspace*>(workspace);
  p.order = plan.order;
  p.layout = plan.layout;
  return p;
}

}  // namespace

QuantizePlan plan(const QuantizeProblem& problem) {
  QuantizePlan plan{};
  plan.measures = problem.has_mean || problem.scales != Granularity::block;
  plan.row = find_row(problem, plan.measures);
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  if (problem.empty()) return plan;
  const int64_t heads = problem.batch * problem.heads;
  const int64_t head_bytes = problem.rows * problem.head_dim * bytes_per_element(problem.x.dtype);
  // One scale for all is known when all is measured.
  const int64_t group_heads =
      problem.scales == Granularity::tensor ? heads : std::clamp<int64_t>(group_bytes / head_bytes, 1, heads);
  plan.order = QuantizeOrder::of(narrow(heads), narrow(problem.rows), narrow(group_heads));
  plan.items = plan.measures ? plan.order.count() : heads * plan.order.blocks;
  if (!plan.measures) return plan;
  const int64_t floats = !problem.has_mean                   ? 1
                         : problem.scales == Granularity::block ? problem.head_dim
                                                             : 3 * problem.head_dim;
  static_assert(sizeof(Workspace) <= FA3_FORWARD_WORKSPACE_BYTES);
  plan.layout = QuantizeLayout::of(FA3_FORWARD_WORKSPACE_BYTES, heads, plan.order.parts, problem.head_dim, floats);
  plan.workspace_bytes = static_cast<size_t>(plan.layout.bytes);
  return plan;
}

fa3_status launch(const QuantizeProblem& problem, void* workspace, CUstream stream) {
  const Driver* driver;
  Context* context;
  CUfunction function;
  if (fa3_status status = get_driver(driver)) return status;
  if (fa3_status status = current_context(*driver, context)) return status;
  const QuantizePlan plan = fa3::plan(problem);
  if (fa3_status status = get_function(*driver, *context, plan.row, stream, function)) return status;
  const Row& row = rows[plan.row];
  const int64_t resident = static_cast<int64_t>(context->multiprocessors) * row.resident_blocks();
  const auto grid = static_cast<unsigned>(plan.measures ? std::min(plan.items, resident) : plan.items);
  QuantizeParams params = params_of(problem, plan, workspace);
  void* arguments[] = {&params};
  if (CUresult result = driver->launch_kernel(function, grid, 1, 1, static_cast<unsigned>(row.threads()), 1, 1,
                                              static_cast<unsigned>(row.smem_bytes()), stream, arguments, nullptr))
    return cuda_error(*driver, result, "cuLaunchKernel");
  return FA3_OK;
}

}  // namespace fa3
