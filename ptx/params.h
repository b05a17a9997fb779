// The parameter blocks of the kernels: what the host passes by value at each launch. Plain C++, read by both sides.
#pragma once
#include <cstdint>

#include "work.h"

namespace fa3 {

// Same size and alignment as the driver's CUtensorMap.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// O and LSE, for those who write them without TMA.
struct Output {
  uint16_t* o;
  int64_t o_stride_batch, o_stride_head, o_stride_row;  // in elements
  float* lse;                                           // may be null
  int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
  int32_t head_dim;  // of o; the kernel's may be larger
  int32_t reserved;  // keeps the struct's size a multiple of 8 bytes
};

// The head of the device memory of one call in flight. Contents before and after a launch mean nothing
// (ptx/tile/schedule.cuh). Where tiles are split, tickets and partial results follow (src/workspace.cpp).
struct Workspace {
  unsigned long long state;  // who prepares the counters
  unsigned int next_piece;   // the next one to be claimed
  unsigned int finished;     // thread blocks that claim no more
};

// Of 64 rows of a split tile, a byte for each warp's 16: how many of their parts have taken a ticket, and are in the workspace
// (ptx/tile/combine.cuh).
struct Tickets {
  uint32_t taken, written;
};

// What all forward kernels take.
struct ForwardParams {
  // 4-D maps, innermost first: {head_dim, seqlen, heads, batch}, 128-byte swizzle, out-of-bounds reads are zero. Boxes: row.h.
  TensorMap q, k, v, o;
  Output output;
  Workspace* workspace;
  Tickets* tickets;  // of split tiles, for 64 rows each; 16-byte aligned
  void* partials;    // a slot has Br / 16 of Row::partial_bytes(); 16-byte aligned

  Visible visible;
  Divisor heads_per_kv;      // query heads that share a K/V head
  float softmax_scale;
  float softmax_scale_log2;  // softmax_scale * log2(e)
  Tiles tiles;
  Pieces pieces;  // of all tiles
};

// And those that take split tiles.
struct ListedForwardParams : ForwardParams {
  Listed list[list_capacity];
};
static_assert(sizeof(ListedForwardParams) <= 4096);

// Of the pass that writes O = 0 and LSE = -inf where no row sees a key.
inline constexpr int empty_rows_block = 256;  // rows that a warp writes at a time
struct EmptyRowsParams {
  Output output;
  int32_t rows;         // of each head, the first ones
  int32_t batch_heads;  // batch * heads
  Divisor heads;
};

}  // namespace fa3
