// The parameter blocks of the kernels: what the host passes by value at each launch. Plain C++, read by both sides.
#pragma once
#include <cstdint>

#include "work.h"

namespace fa3 {

// Same size and alignment as the driver's CUtensorMap.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// O and LSE, for what writes them without TMA.
struct Output {
  uint16_t* o;
  int64_t o_stride_batch, o_stride_head, o_stride_row;  // in elements
  float* lse;                                           // null: not wanted
  int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
  int32_t head_dim;  // of o; the kernel's may be larger
  int32_t reserved;  // keeps the struct's size a multiple of 8 bytes
};

// The beginning of the device memory that each call in flight has for itself. Its contents before and after a launch
// mean nothing (tile/schedule.cuh). Where tiles are split, tickets and slots follow (src/plan.cpp).
struct Workspace {
  unsigned long long state;  // whether the two counters are prepared
  unsigned int next_piece;   // the next one to be claimed
  unsigned int finished;     // thread blocks that claim no more
};

// Of 64 rows of a split tile, with a byte for the 16 rows of each warp: how many parts have taken a ticket, and how
// many have written their result into their slot (tile/combine.cuh).
struct Tickets {
  uint32_t taken, written;
};

// What all forward kernels take.
struct ForwardParams {
  // 4-D maps, innermost first: {head_dim, seqlen, heads, batch}, 128-byte swizzle, out-of-bounds reads are zero. Their
  // boxes are in row.h.
  TensorMap q, k, v, o;
  Output output;
  Workspace* workspace;
  Tickets* tickets;  // a split tile has one for each 64 rows; 16-byte aligned
  void* partials;    // the slots, each of Br / 16 times Row::partial_bytes(); 16-byte aligned

  Visible visible;
  Divisor heads_per_kv;      // query heads that share a K/V head
  float softmax_scale;
  float softmax_scale_log2;  // softmax_scale * log2(e)
  Tiles tiles;
  Pieces pieces;
};

// The same for kernels that take split tiles.
struct ListedForwardParams : ForwardParams {
  Listed list[list_capacity];
};
static_assert(sizeof(ListedForwardParams) <= 4096);

// For the pass that writes O = 0 and LSE = -inf where there are no keys.
inline constexpr int empty_rows_block = 256;  // rows that a warp writes at a time
struct EmptyRowsParams {
  Output output;
  int32_t rows;         // the first ones of each head
  int32_t batch_heads;  // batch * heads
  Divisor heads;
};

}  // namespace fa3
