// One point of a benchmark: a shape and its place in tables.
#pragma once
#include <cstdint>
#include <string>

#include "fa3.h"

namespace fa3::bench {

struct Point {
  fa3_dtype dtype = FA3_DTYPE_BF16;
  int64_t head_dim = 128;
  bool causal = false;
  int64_t batch = 1, seqlen = 512, seqlen_k = 512, heads = 16, kv_heads = 16;
  std::string kernel = {};  // its name; empty: the library chooses

  bool library_chooses() const { return kernel.empty(); }
  std::string label() const;
  // 4 N^2 d H B, half if causal (the paper's count); with unequal lengths, the pairs that the mask leaves.
  double flop() const;
  int64_t q_elements() const { return batch * seqlen * heads * head_dim; }
  int64_t kv_elements() const { return batch * seqlen_k * kv_heads * head_dim; }
  // Keys that query i sees: the causal mask ends in the bottom right corner.
  int64_t visible_keys(int64_t i) const;
  // Tensors packed as (batch, seqlen, heads, head_dim). Valid while this point is: it has the kernel's name.
  fa3_forward_params params(void* q, void* k, void* v, void* o, void* lse) const;
};

}  // namespace fa3::bench
