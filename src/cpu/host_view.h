// Tensors in host memory, as the CPU references read and write them, and the order of their rows.
#pragma once
#include <algorithm>

#include "cpu/number.h"
#include "problem.h"

namespace fa3 {

inline char* element(const View& view, int64_t batch, int64_t row, int64_t head) {
  const int64_t index = batch * view.stride[0] + row * view.stride[1] + head * view.stride[2];
  return static_cast<char*>(view.data) + index * bytes_per_element(view.dtype);
}

inline void read_row(const View& view, int64_t batch, int64_t row, int64_t head, double* out) {
  read_elements(element(view, batch, row, head), view.stride[3], static_cast<int>(view.dim[3]), view.dtype, out);
}
inline void write_row(const View& view, int64_t batch, int64_t row, int64_t head, const double* values) {
  write_elements(values, static_cast<int>(view.dim[3]), view.dtype, element(view, batch, row, head), view.stride[3]);
}

// A float32 number beside the tensors: view (a, b, c).
inline double number(const View& view, int64_t a, int64_t b, int64_t c) {
  return static_cast<const float*>(view.data)[a * view.stride[0] + b * view.stride[1] + c * view.stride[2]];
}

// Rows are those of the queries of all heads that read one head of K and V, in the order of the queries: so each sees
// as many keys as the one before, or more.
struct QueryRow {
  int64_t query, head;
};
inline QueryRow row_of(const AttentionShape& shape, int64_t head_kv, int64_t row) {
  const int64_t heads = shape.heads_per_kv();
  return {row / heads, head_kv * heads + row % heads};
}

// Counted here anew, not by ptx/plan/visible.h: what the kernels are compared with should not share their faults.
inline int64_t visible_keys(const AttentionShape& shape, int64_t query) {
  if (!shape.causal) return shape.seqlen_k;
  return std::clamp<int64_t>(query + shape.causal_offset + 1, 0, shape.seqlen_k);
}

}  // namespace fa3
