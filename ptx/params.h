// The parameter block of the forward kernels: what the host passes by value at each launch. Plain C++, read by both sides.
#pragma once
#include <cstdint>

#include "split.h"

namespace fa3 {

// Same size and alignment as the driver's CUtensorMap.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// The head of the device memory of one call in flight. Contents before and after a launch mean nothing
// (ptx/tile/schedule.cuh). Where tiles are split, tickets and partial results follow (src/schedule.cpp).
struct Workspace {
  unsigned long long state;  // who prepares the counters
  unsigned int next_item;    // dynamic counter
  unsigned int leaving;      // thread blocks that claim no more
};

// Of 64 rows of a split tile, a byte for each warp's 16: how many of their parts have taken a ticket, and are in the workspace
// (ptx/tile/combine.cuh).
struct Tickets {
  uint32_t taken, written;
};

struct ForwardParams {
  // 4-D maps, innermost first: {head_dim, seqlen, heads, batch}, 16-bit elements, 128-byte swizzle, out-of-bounds reads
  // are zero. Boxes: variant.h.
  // With seqlen_k == 0, k and v are any valid maps (they are loaded and never used).
  TensorMap q, k, v, o;
  uint16_t* o_data;  // as in the map, for kernels that store O from registers
  int64_t o_stride_batch, o_stride_head, o_stride_row;  // in elements
  float* lse;                                           // may be null
  int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
  Workspace* workspace;
  Tickets* tickets;  // of split tiles, for 64 rows each; 16-byte aligned
  void* partials;    // Split::slots() times Br / 16 of Variant::partial_bytes(); 16-byte aligned

  int32_t seqlen_q, seqlen_k;
  int32_t head_dim;       // of the tensors; the kernel's may be larger
  Divisor heads;          // query heads
  Divisor heads_per_kv;   // query heads that share a K/V head
  int32_t causal_offset;  // causal kernels: query i sees keys j <= i + causal_offset
  float softmax_scale;
  float softmax_scale_log2;  // softmax_scale * log2(e)

  // Schedule (ptx/tile/schedule.cuh): tiles are numbered section by section; a section is `section_heads` consecutive
  // (batch, head) pairs, inside it query blocks are the outer and heads the inner index, longest causal block first.
  int32_t q_blocks;       // of a head
  int32_t q_origin;       // first row of the first query block, a multiple of 64: 0, or for causal kernels
                          // 64 * ceil(seqlen_q / 64) - q_blocks * Br, so that the block with fewer rows is the first. Rows
                          // before it see no key and are in no tile (ptx/tile/blind.cuh)
  int32_t batch_heads;    // batch * heads
  Divisor section_heads;  // 1 .. batch_heads
  Divisor section_tiles;  // section_heads * q_blocks
  Divisor last_heads;     // of the last section
  Split split;            // all q_blocks * batch_heads tiles, whole or split
};

}  // namespace fa3
