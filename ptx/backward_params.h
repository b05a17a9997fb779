// The parameter block of the backward pass's kernels. Plain C++, read by both sides.
#pragma once
#include "backward_work.h"
#include "tensor_map_bytes.h"
#include "visible.h"

namespace fa3 {

// For the backward pass. Query rows come in tiles, and what the workspace holds for them goes up to a whole tile of
// each head: behind its last row lse_log2 is +inf and delta 0, so that P is 0.
// What is read and written for query rows before and behind the kernel that computes gradients.
struct RowStrides {
  int64_t batch, head, row;  // in elements
};
struct BackwardRows {
  const uint16_t *o, *dout;
  RowStrides o_stride, dout_stride;
  const float *lse, *dlse;  // dlse null: 0
  RowStrides lse_stride, dlse_stride;
  uint16_t* dq;
  RowStrides dq_stride;
  float* lse_log2;  // LSE times log2(e)
  float* delta;     // D of fa3.h
  float* dq_sums;   // tile/bwd/rows.cuh says how they lie; null if nothing is summed up
  int32_t rows, head_dim;
  int32_t bf16;
  Divisor tiles, heads;   // of a head; query heads
  int32_t tiles_at_once;  // of the kernel: Br / backward_tile_rows
};

// Of the tiles that a thread block visits at once, one number says how many thread blocks have come, and with this bit
// that the first one's dQ is stored.
inline constexpr uint32_t dq_is_stored = 1u << 31;

// The same for all its kernels.
struct BackwardParams {
  TensorMap q, k, v, dout;  // as in ForwardParams; boxes of a tile's rows of Q and dO, of Bc rows of K and V
  TensorMap dk, dv;         // boxes of 64 rows
  TensorMap dq;             // the same, where a kernel of its own computes dQ
  BackwardRows rows;
  KeyOrder order;
  BlockOrder query_order;  // of that kernel: blocks of query rows, of all query heads
  uint32_t* visits;
  Visible visible;
  int32_t heads_per_kv;  // query heads that share a K/V head
  float softmax_scale;
  float softmax_scale_log2;  // softmax_scale * log2(e)
};
static_assert(sizeof(BackwardParams) <= 4096);

}  // namespace fa3
