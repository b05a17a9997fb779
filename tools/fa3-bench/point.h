// One point of a benchmark: a shape and its place in tables.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fa3.h"

namespace fa3::bench {

struct Point {
  fa3_dtype dtype = FA3_DTYPE_BF16;
  int64_t head_dim = 128;
  bool causal = false;
  int64_t batch = 1, seqlen = 512, seqlen_k = 512, heads = 16, kv_heads = 16;
  std::string kernel = {};  // its name; empty: the library chooses

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

// The kernel of this build that `wanted` means for this point: a kernel's name, or its first cell (alg2), which means
// the kernel with the smallest head_dim of those that fit. "" if none fits.
std::string fitting_kernel(const Point& point, const std::string& wanted);

// The cells that fitting_kernel knows, "fwd, alg1".
std::string kernel_cells();
// Does `wanted` name any kernel of this build, whatever the point?
bool is_kernel(const std::string& wanted);

// Values to combine; an empty list or 0 means the paper's choice: 16384 tokens in all, hidden size 2048.
struct Grid {
  std::vector<fa3_dtype> dtypes = {FA3_DTYPE_BF16, FA3_DTYPE_FP16};
  std::vector<int64_t> head_dims = {64, 128, 256}, seqlens = {512, 1024, 2048, 4096, 8192, 16384};
  std::vector<bool> causal = {false, true};
  int64_t tokens = 16384, hidden = 2048, batch = 0, seqlen_k = 0, heads = 0, kv_heads = 0;
  std::vector<std::string> kernels;  // each point once for each of them; empty: the library chooses
  std::string filter;                // part of a label

  // left_out: receives a line for every point that a kernel does not fit.
  std::vector<Point> points(std::vector<std::string>* left_out = nullptr) const;
};

}  // namespace fa3::bench
