// fa3_quantize: its rules, what it launches, and the same on the CPU.
#pragma once
#include "params/quantize_work.h"
#include "problem.h"
#include "rules/call.h"

namespace fa3 {

struct Device;

// The caller's parameters after validation. Absent tensors have data null and dims 0.
struct QuantizeProblem {
  View x;  // (batch, rows, heads, head_dim)
  View y;  // as x, or as tiles (batch, groups of 16 rows, heads, 16 head_dim)
  View scale;                   // (batch or 1, heads or 1, blocks or 1, 1)
  View mean, k_mean;            // (batch, heads or heads_kv, head_dim, 1)
  Rotary rotary;                // a position for each row
  View lse_offset;              // (batch, heads, rows, 1)
  bool tiles, incoherent, has_mean, has_lse_offset;
  uint64_t seed;
  double softmax_scale;
  QuantizeParams::Granularity scales;
  int64_t batch, rows, heads, heads_kv, head_dim;

  bool empty() const { return x.empty(); }
};

// Every rule of fa3.h. fa3_reference_quantize has those of the device.
fa3_status validate(const fa3_quantize_params* params, Rules rules, QuantizeProblem& problem);
fa3_status validate_workspace(const QuantizeProblem& problem, void* workspace, size_t bytes, size_t needed);

// What a call launches, one after the other, and what of it measures: a function of the problem.
struct QuantizeLaunch {
  int row;
  int64_t grid;    // thread blocks
  int64_t groups;  // of heads that a thread block takes together
};
struct QuantizePlan {
  static constexpr int most_launches = 3;
  QuantizeLaunch launches[most_launches];
  int launch_count;  // 0 for a problem without elements
  QuantizeParams::Measure measure;
  int64_t parts;  // of the rows of a head, which are measured apart
  int64_t largest_of_head, largest_count;  // as in QuantizeParams
  QuantizeLayout layout;
  size_t workspace_bytes;
};
QuantizePlan plan(const QuantizeProblem& problem);

fa3_status launch(const QuantizeProblem& problem, const QuantizePlan& plan, const Device& device, void* workspace,
                  fa3_stream stream);

fa3_status reference_quantize(const QuantizeProblem& problem);

}  // namespace fa3
