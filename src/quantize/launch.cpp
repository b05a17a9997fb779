#include <algorithm>
#include <cmath>

#include "device/enqueue.h"
#include "device/modules.h"
#include "quantize/quantize.h"

namespace fa3 {
namespace {

using Granularity = QuantizeParams::Granularity;

// The pass with this trait of fa3_quantize's three, or with none of them; -1 if there is none.
constexpr int find_row(int64_t head_dim, bool rotates, Trait which) {
  int found = -1;
  for (int i = 0; i < row_count; ++i) {
    const Row& row = rows[i];
    if (!row.has(Trait::quantizes) || row.d < head_dim) continue;
    if (row.has(Trait::measures) != (which == Trait::measures)) continue;
    if (row.has(Trait::finishes) != (which == Trait::finishes)) continue;
    if (row.has(Trait::rotates) != (rotates && which != Trait::finishes)) continue;
    if (found < 0 || row.d < rows[found].d) found = i;
  }
  return found;
}
static_assert([] {
  for (const Trait which : {Trait::plain, Trait::measures, Trait::finishes})
    for (const bool rotates : {false, true})
      if (find_row(256, rotates, which) < 0) return false;
  return true;
}(), "a pass of fa3_quantize for the largest head dimension is missing");

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

int32_t largest_power_of_two_in(int64_t n) { return narrow(n & -n); }

Measure measure_of(const QuantizeProblem& problem) {
  const bool blocks = problem.scales == Granularity::block;
  if (problem.has_mean) return blocks ? Measure::sums : Measure::extremes;
  return blocks ? Measure::none : Measure::largest;
}

// How many numbers a range of more than 64 rows follows from.
int64_t largest_count(Granularity scales, bool has_mean, int64_t heads, const QuantizeParts& parts) {
  switch (scales) {
    case Granularity::block: return 0;
    case Granularity::head: return has_mean ? 1 : parts.parts;
    default: return has_mean ? finishing_blocks(heads) : parts.thread_blocks;
  }
}

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
  p.hadamard_scale = p.hadamard ? static_cast<float>(1 / std::sqrt(static_cast<double>(p.hadamard))) : 1;
  p.softmax_scale = static_cast<float>(problem.softmax_scale);
  p.heads = Divisor::of(narrow(problem.heads));
  p.heads_per_kv = Divisor::of(narrow(problem.has_lse_offset ? problem.heads / problem.heads_kv : 1));
  p.blocks = narrow(divided_up(problem.rows, rows_of_scale));
  p.scales = problem.scales;
  p.bf16 = x.dtype == FA3_DTYPE_BF16, p.tiles = problem.tiles, p.interleaved = problem.interleaved;
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

QuantizePlan plan(const QuantizeProblem& problem) {
  QuantizePlan plan{};
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  if (problem.empty()) return plan;
  const auto row_of = [&](Trait which) { return find_row(problem.head_dim, problem.rotary_dim > 0, which); };
  const auto add = [&](int row, int64_t thread_blocks, int64_t groups) {
    plan.launches[plan.count++] = {row, thread_blocks, groups};
  };
  const int64_t heads = problem.batch * problem.heads;
  plan.measure = measure_of(problem);
  if (plan.measure != Measure::none) {
    const int row = row_of(Trait::measures);
    const QuantizeParts parts = QuantizeParts::of(rows[row], plan.measure, heads, problem.rows);
    add(row, parts.thread_blocks, parts.groups);
    if (problem.has_mean) add(row_of(Trait::finishes), finishing_blocks(heads), 1);
    plan.parts = parts.parts;
    plan.largest_count = largest_count(problem.scales, problem.has_mean, heads, parts);
    plan.largest_of_head = problem.scales == Granularity::head ? plan.largest_count : 0;
    const int64_t largest = problem.scales == Granularity::head ? heads * plan.largest_count : plan.largest_count;
    plan.layout = QuantizeLayout::of(plan.measure, heads, parts.parts, problem.head_dim, largest);
    const auto needed = static_cast<size_t>(plan.layout.floats) * sizeof(float);
    plan.workspace_bytes = std::max<size_t>(plan.workspace_bytes, needed);
  }
  const int row = row_of(Trait::plain);
  const int64_t groups = divided_up(heads, written_heads(rows[row]));
  add(row, groups * divided_up(problem.rows, rows_of_scale), groups);
  return plan;
}

fa3_status launch(const QuantizeProblem& problem, const QuantizePlan& plan, void* workspace, CUstream stream) {
  const Driver* driver;
  Context* context;
  if (fa3_status status = get_driver(driver)) return status;
  if (fa3_status status = current_context(*driver, context)) return status;
  CUfunction functions[QuantizePlan::most_launches];
  for (int i = 0; i < plan.count; ++i)  // before any launch, so that all of the call is enqueued or nothing
    if (fa3_status status = get_function(*driver, *context, plan.launches[i].row, stream, functions[i])) return status;
  QuantizeParams params = params_of(problem, plan, workspace);
  for (int i = 0; i < plan.count; ++i) {
    const QuantizeLaunch& launch = plan.launches[i];
    params.groups = Divisor::of(narrow(launch.groups));
    if (fa3_status status =
            enqueue(*driver, rows[launch.row], functions[i], launch.thread_blocks, &params, i > 0, stream))
      return status;
  }
  return FA3_OK;
}

}  // namespace fa3
