// What the problems of all functions are made of. A problem is the caller's parameters after validation, with every
// default resolved, as the rest of the library sees them.
#pragma once
#include <cstdint>

#include "fa3.h"
#include "plan/sequence.h"
#include "table/row.h"

namespace fa3 {

// A tensor with explicit strides. lse and lse_offset have three dims; their fourth is 1.
struct View {
  void* data;
  fa3_dtype dtype;
  int64_t dim[4];
  int64_t stride[4];  // elements; 0 for a dim of size 1

  bool empty() const { return dim[0] == 0 || dim[1] == 0 || dim[2] == 0 || dim[3] == 0; }
};

// Rotary embedding of the first `dim` columns; 0: none.
struct Rotary {
  View cos, sin;  // (positions, dim / 2, 1, 1) of fp32
  int64_t dim;
  bool interleaved;  // partners are 2 i and 2 i + 1, otherwise i and i + dim / 2
};

// What forward and backward pass have in common.
struct AttentionShape {
  int64_t batch, heads, heads_kv, seqlen_q, seqlen_k;
  int64_t head_dim, head_dim_v;  // of Q and K, of V and O
  bool causal;
  int64_t causal_offset;  // query i sees key j if j <= i + causal_offset
  double softmax_scale;

  Mask mask() const { return causal ? Mask::causal : Mask::full; }
  bool operator==(const AttentionShape&) const = default;
  int64_t heads_per_kv() const { return heads_kv == 0 ? 1 : heads / heads_kv; }
};

// And of that, lengths, windows, chunks and sinks (fa3.h). A problem that has none of these, nor pages and what else
// makes it so, is not planned, and the rest means nothing. Packed tensors are views with dim[0] = 1; seqlen_q and
// seqlen_k are the most that a sequence has. Where data pointers are not looked at (Rules::shapes), those of tensors
// that are there may be null; dims and what follows from them (total_q, total_k) are not. The mask of a planned problem
// is its window and chunk: causal is false.
struct PlannedShape : AttentionShape {
  bool planned;
  Lengths lengths;           // on the device, of the references on the host
  Window window;
  int64_t chunk;             // positions of a chunk; 0: none
  int64_t total_q, total_k;  // rows of packed tensors; below 0: batched ones
  View sinks;                // (heads, 1, 1, 1); dims 0: none
  double softcap;            // 0: none
  View alibi_slopes;         // (batch, heads, 1, 1), with stride 0 where all sequences have the same; dtype
                             // FA3_DTYPE_NONE: none
};

// What comes with e4m3. Absent tensors have data null and dims 0. Scales are (batch or 1, heads or 1, blocks or 1, 1),
// with strides 0 where they are 1, and batch counts sequences where the problem is planned; o_scale is (1, 1, 1, 1);
// v_mean is (batch, heads_kv, head_dim_v, 1); lse_offset lies as LSE does. Where v alone is of e4m3, a latent cache,
// its scales are latent_scale, which lies as v does, and not v_scale.
struct ProblemScales {
  View q_scale, k_scale, v_scale, o_scale, v_mean, lse_offset;
  View latent_scale;  // (batch, seqlen_k, heads_kv, groups of latent_scale_columns columns)
  bool v_tiles;    // v is (batch, groups of 16 keys, heads_kv, 16 head_dim_v): a tile is a row of bytes (fa3.h)
  bool kv_blocks;  // k_scale or v_scale has more than one block
};

// Of a tensor that kernels take.
inline Dtype dtype_of(fa3_dtype dtype) {
  return dtype == FA3_DTYPE_BF16 ? Dtype::bf16 : dtype == FA3_DTYPE_FP16 ? Dtype::fp16 : Dtype::e4m3;
}

inline int bytes_per_element(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_DTYPE_FP32:
    case FA3_DTYPE_INT32: return 4;
    case FA3_DTYPE_INT64: return 8;
    case FA3_DTYPE_E4M3:
    case FA3_DTYPE_E5M2: return 1;
    default: return 2;
  }
}

}  // namespace fa3
