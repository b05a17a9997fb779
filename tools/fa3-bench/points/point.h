// One point of a benchmark: a shape and its place in tables.
#pragma once
#include <cstdint>
#include <string>

#include "fa3.h"
#include "points/planned.h"

namespace fa3::bench {

enum class Direction { forward, backward };
const char* name(Direction direction);  // as in tables: fwd, bwd

// What only e4m3 has.
enum class VForm { rows, tiles };           // how V lies in memory
enum class Scales { tensor, head, block };  // what one scale is for
const char* name(VForm form);
const char* name(Scales scales);
inline constexpr int64_t v_tile_keys = 16;

// Where the tensors of a call lie; null: nowhere.
struct Addresses {
  void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr, *lse = nullptr, *scales = nullptr;
  void *cu_q = nullptr, *cu_k = nullptr, *used_k = nullptr, *page_table = nullptr;
  void *sinks = nullptr, *slopes = nullptr;
};
struct GradientAddresses {
  void *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr, *dsinks = nullptr;
};

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
  PlannedCall planned = {};    // with lengths of its own batch, seqlen and seqlen_k are their number and the longest

  bool library_chooses() const { return kernel.empty(); }
  bool is_backward() const { return direction == Direction::backward; }
  bool is_fp8() const { return dtype == FA3_DTYPE_E4M3; }
  bool is_planned() const { return planned.any(); }
  bool packed_q() const { return planned.has_lengths(); }
  bool packed_k() const { return planned.has_lengths() && planned.page == 0; }
  fa3_dtype o_dtype() const { return is_fp8() ? FA3_DTYPE_BF16 : dtype; }
  fa3_dtype key_dtype() const { return planned.e4m3_cache ? FA3_DTYPE_E4M3 : dtype; }
  std::string kind() const;   // "bf16 d64 causal", "bwd bf16 d192x128 full"
  // Of e4m3: " v tiles", " v rows scales block two-level"; " deterministic"; what a planned call has; else empty.
  std::string form() const;
  std::string label() const;  // everything, in one line
  // 4 N^2 d H B, half if causal (the paper's count); with unequal lengths, the pairs that the mask leaves. Of the
  // backward pass 2.5 times that: five products, not two. The head dimension of v is that of one of the two products,
  // and of two of the five.
  double flop() const;
  // Of K and V, as far as any query sees them, each once.
  double kv_bytes() const;
  int64_t v_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
  // Is V the first columns of K, as in caches of multi-head latent attention?
  bool v_in_k() const { return head_dim > 512; }
  int64_t queries(int64_t sequence) const { return packed_q() ? planned.lengths[size_t(sequence)] : seqlen; }
  int64_t keys(int64_t sequence) const { return packed_q() ? planned.lengths_k[size_t(sequence)] : seqlen_k; }
  int64_t pages_each() const { return planned.page ? (seqlen_k + planned.page - 1) / planned.page : 0; }
  int64_t pages() const;  // of all sequences
  // Of all sequences or pages together.
  int64_t query_rows() const;
  int64_t key_rows() const;
  int64_t q_elements() const { return query_rows() * heads * head_dim; }
  int64_t k_elements() const { return key_rows() * kv_heads * head_dim; }
  int64_t v_elements() const { return v_in_k() ? 0 : key_rows() * kv_heads * v_dim(); }
  int64_t o_elements() const { return query_rows() * heads * v_dim(); }
  int64_t lse_elements() const { return query_rows() * heads; }
  int64_t v_groups() const { return (seqlen_k + v_tile_keys - 1) / v_tile_keys; }
  // Elements of the largest of the tensors of scales; 0 if there are none.
  int64_t scale_elements() const;
  // Which keys query i sees. Masks end in the bottom right corner.
  struct Range {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
  };
  Range seen(int64_t sequence, int64_t i) const;
  // Of a head: the slope of ALiBi, 0 without; and the sink, -infinity without.
  float slope(int64_t head) const;
  float sink(int64_t head) const;
  // Of the forward pass; of a point of the backward pass, the forward pass before it, by the library's choice. Tensors
  // packed as (batch, seqlen, heads, head_dim), v maybe as tiles; as (rows, heads, head_dim) with lengths, and k and v
  // as (pages, page, kv_heads, head_dim) with pages. All scales are read from the same memory, as many floats as
  // scale_elements(). Valid while this point is: it has the kernel's name.
  fa3_forward_params params(const Addresses& at) const;
  // Of the backward pass, after this forward pass. Valid as those.
  fa3_backward_params backward_params(const fa3_forward_params& forward, const GradientAddresses& at) const;
  // Those of a point that is only asked about: nothing lies in memory.
  fa3_forward_params shapes() const { return params({}); }
  fa3_backward_params backward_shapes() const { return backward_params(shapes(), {}); }

 private:
  void add_scales(fa3_forward_params& params, const Addresses& at) const;
  void add_planned(fa3_forward_params& params, const Addresses& at) const;
};

}  // namespace fa3::bench
