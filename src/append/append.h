// fa3_append: its rules, what it launches, and the same on the CPU.
#pragma once
#include "integers.h"
#include "params/append_params.h"
#include "problem.h"
#include "rules/call.h"

namespace fa3 {

struct Device;

// Q, K or V: new rows, and where they go. Absent tensors have data null and dims 0; packed rows are a batch of 1.
struct Appended {
  View x;          // (batch, rows, heads, head_dim)
  View y;          // of Q as x, otherwise (caches or pages, rows, heads, head_dim)
  bool has_scale;  // y is e4m3
  View scale;      // (batch or 1, heads or 1, 1, 1)
};

// The caller's parameters after validation. Numbers of the device are views of int32 or int64, absent ones have dims 0.
struct AppendProblem {
  Appended q, k, v;
  Rotary rotary;
  View positions;  // of each sequence's first row, or of each row
  View cu_seqlens, seqused, cache_seqlens, cache_batch_idx, slots;
  View page_table;           // (batch, pages of a sequence, 1, 1)
  bool packed, has_pages;
  bool rows_alone;           // packed rows without sequences
  int64_t batch;             // sequences
  int64_t sequence_rows;     // of each, where they are not packed
  int64_t rows;              // of all sequences
  int64_t caches, cache_rows;  // or pages
  int64_t capacity;          // positions of a sequence's cache, as far as they fit int32

  bool empty() const {
    return rows == 0 || (packed && !rows_alone && batch == 0) || (rotary.dim > 0 && rotary.cos.dim[0] == 0) ||
           (q.x.empty() && k.x.empty() && v.x.empty());
  }
};

// Every rule of fa3.h. fa3_reference_append has those of the device.
fa3_status validate(const fa3_append_params* params, AppendProblem& problem);

// Of a head, and of all heads of a row. V has a rotary_dim of 0.
inline AppendQuads quads_of_head(const Appended& tensor, int64_t rotary_dim) {
  return {narrow(tensor.x.dim[3] / append_columns), narrow(rotary_dim / append_columns)};
}
inline int64_t quads_of_row(const Appended& tensor, int64_t rotary_dim) {
  return divide_up(tensor.x.dim[2], append_heads) * quads_of_head(tensor, rotary_dim).count();
}

// What a call launches: one kernel. A function of the problem.
struct AppendPlan {
  int row;
  int32_t q_end, k_end, quads;  // as in AppendParams
  AppendSegments segments;
  int32_t grid;  // thread blocks; 0: nothing is launched
};
AppendPlan plan(const AppendProblem& problem);

fa3_status launch(const AppendProblem& problem, const AppendPlan& plan, const Device& device, fa3_stream stream);

fa3_status reference_append(const AppendProblem& problem);

}  // namespace fa3
