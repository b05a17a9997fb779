// One point of a benchmark: a shape and its place in tables.
#pragma once
#include <cstdint>
#include <string>

#include "fa3.h"

namespace fa3::bench {

enum class Direction { forward, backward };
const char* name(Direction direction);  // as in tables: fwd, bwd

// What only e4m3 has.
enum class VForm { rows, tiles };           // how V lies in memory
enum class Scales { tensor, head, block };  // what one scale is for
const char* name(VForm form);
const char* name(Scales scales);
inline constexpr int64_t v_tile_keys = 16;

struct Point {
  fa3_dtype dtype = FA3_DTYPE_BF16;
  int64_t head_dim = 128;
  bool causal = false;
  int64_t batch = 1, seqlen = 512, seqlen_k = 512, heads = 16, kv_heads = 16;
  std::string kernel = {};  // its name; empty: the library chooses
  VForm v = VForm::rows;
  Scales scales = Scales::tensor;
  bool two_level = false;  // FA3_FLAG_TWO_LEVEL
  Direction direction = Direction::forward;
  bool deterministic = false;  // FA3_FLAG_DETERMINISTIC, of the backward pass
  int64_t head_dim_v = 0;      // of v and o; 0: head_dim
  std::string set = {};        // of points.h that it is of; empty: none

  bool library_chooses() const { return kernel.empty(); }
  bool is_backward() const { return direction == Direction::backward; }
  bool is_fp8() const { return dtype == FA3_DTYPE_E4M3; }
  fa3_dtype o_dtype() const { return is_fp8() ? FA3_DTYPE_BF16 : dtype; }
  std::string kind() const;   // "bf16 d64 causal", "bwd bf16 d192x128 full"
  std::string form() const;   // of e4m3: " v tiles", " v rows scales block two-level"; " deterministic"; else empty
  std::string label() const;  // everything, in one line
  // 4 N^2 d H B, half if causal (the paper's count); with unequal lengths, the pairs that the mask leaves. Of the
  // backward pass 2.5 times that: five products, not two. The head dimension of v is that of one of the two products,
  // and of two of the five.
  double flop() const;
  int64_t v_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
  // Is V the first columns of K, as in caches of multi-head latent attention?
  bool v_in_k() const { return head_dim > 512; }
  int64_t q_elements() const { return batch * seqlen * heads * head_dim; }
  int64_t k_elements() const { return batch * seqlen_k * kv_heads * head_dim; }
  int64_t v_elements() const { return v_in_k() ? 0 : batch * seqlen_k * kv_heads * v_dim(); }
  int64_t o_elements() const { return batch * seqlen * heads * v_dim(); }
  int64_t lse_elements() const { return batch * heads * seqlen; }
  int64_t v_groups() const { return (seqlen_k + v_tile_keys - 1) / v_tile_keys; }
  // Elements of the largest of the tensors of scales; 0 if there are none.
  int64_t scale_elements() const;
  // Keys that query i sees: the causal mask ends in the bottom right corner.
  int64_t visible_keys(int64_t i) const;
  // Of the forward pass; of a point of the backward pass, the forward pass before it, by the library's choice. Tensors
  // packed as (batch, seqlen, heads, head_dim), or v as tiles. All scales are read from the same memory, as many floats
  // as scale_elements(). Valid while this point is: it has the kernel's name.
  fa3_forward_params params(void* q, void* k, void* v, void* o, void* lse, void* scales) const;
  // Of the backward pass, after this forward pass. Valid as those.
  fa3_backward_params backward_params(const fa3_forward_params& forward, void* dout, void* dq, void* dk,
                                      void* dv) const;
  // Those of a point that is only asked about: nothing lies in memory.
  fa3_forward_params shapes() const { return params(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr); }
  fa3_backward_params backward_shapes() const { return backward_params(shapes(), nullptr, nullptr, nullptr, nullptr); }
};

}  // namespace fa3::bench
