// What fa3_quantize launches: the pass that writes y. Where a scale follows from more than 64 rows, or a mean is
// wanted, passes that measure come first.
#include <algorithm>

#include "quantize/quantize.h"

namespace fa3 {
namespace {

using Granularity = QuantizeParams::Granularity;

// This pass of fa3_quantize's three, or -1.
constexpr int find_row(int64_t head_dim, bool rotates, Pass pass) {
  int found = -1;
  for (int n = first_pass; n < row_count; ++n) {
    const PassRow& row = pass_row(n);
    if (row.pass != pass || row.d < head_dim) continue;
    if (row.has(Trait::rotates) != (rotates && pass != Pass::finish)) continue;
    if (found < 0 || row.d < pass_row(found).d) found = n;
  }
  return found;
}
static_assert([] {
  for (const Pass pass : {Pass::quantize, Pass::measure, Pass::finish})
    for (const bool rotates : {false, true})
      if (find_row(256, rotates, pass) < 0) return false;
  return true;
}(), "a pass of fa3_quantize for the largest head dimension is missing");

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

}  // namespace

QuantizePlan plan(const QuantizeProblem& problem) {
  QuantizePlan plan{};
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  if (problem.empty()) return plan;
  const auto row_of = [&](Pass pass) { return find_row(problem.head_dim, problem.rotary.dim > 0, pass); };
  const auto add = [&](int row, int64_t grid, int64_t groups) {
    plan.launches[plan.launch_count++] = {row, grid, groups};
  };
  const int64_t heads = problem.batch * problem.heads;
  plan.measure = measure_of(problem);
  if (plan.measure != Measure::none) {
    const int row = row_of(Pass::measure);
    const QuantizeParts parts = QuantizeParts::of(pass_row(row), plan.measure, heads, problem.rows);
    add(row, parts.thread_blocks, parts.groups);
    if (problem.has_mean) add(row_of(Pass::finish), finishing_blocks(heads), 1);
    plan.parts = parts.parts;
    plan.largest_count = largest_count(problem.scales, problem.has_mean, heads, parts);
    plan.largest_of_head = problem.scales == Granularity::head ? plan.largest_count : 0;
    const int64_t largest = problem.scales == Granularity::head ? heads * plan.largest_count : plan.largest_count;
    plan.layout = QuantizeLayout::of(plan.measure, heads, parts.parts, problem.head_dim, largest);
    const auto needed = static_cast<size_t>(plan.layout.floats) * sizeof(float);
    plan.workspace_bytes = std::max<size_t>(plan.workspace_bytes, needed);
  }
  const int row = row_of(Pass::quantize);
  const int64_t groups = divided_up(heads, written_heads(pass_row(row)));
  add(row, groups * divided_up(problem.rows, rows_of_scale), groups);
  return plan;
}

}  // namespace fa3
