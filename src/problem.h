// A problem as the rest of the library sees it: the caller's parameters after validation, with every default resolved.
#pragma once
#include <cstdint>

#include "fa3.h"

namespace fa3 {

// A tensor with explicit strides. lse has three dims; its fourth is 1.
struct View {
  void* data;
  fa3_dtype dtype;
  int64_t dim[4];
  int64_t stride[4];  // elements; 0 for a dim of size 1

  bool empty() const { return dim[0] == 0 || dim[1] == 0 || dim[2] == 0 || dim[3] == 0; }
};

struct Problem {
  View q, k, v, o, lse;  // (batch, seqlen, heads, head_dim); lse (batch, heads, seqlen_q)
  bool wants_lse;
  int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim;
  bool causal;
  int64_t causal_offset;  // query i sees key j if j <= i + causal_offset
  double softmax_scale;
  const char* kernel;  // the caller's; null: any that fits

  bool empty() const { return batch == 0 || heads == 0 || seqlen_q == 0; }
  int64_t heads_per_kv() const { return heads_kv == 0 ? 1 : heads / heads_kv; }
};

inline int bytes_per_element(fa3_dtype dtype) { return dtype == FA3_DTYPE_FP32 ? 4 : 2; }

}  // namespace fa3
