// The parameters of the pass in front of the backward pass that makes q, k and v of 8 bits into 16 (fa3.h), and takes
// what the forward pass added to O and LSE off what the backward pass reads. Plain C++, read by both sides.
#pragma once
#include "divisor.h"
#include "row.h"
#include "v_tile.h"

namespace fa3 {

// Elements that a thread takes at a time, of a row; of V tiles it takes as many columns of one.
inline constexpr int widened_columns = 8;
inline constexpr int widened_pieces = 4;  // of rows, so many of each thread
// Rows of LSE and dLSE of a thread block, each by so many lanes.
inline constexpr int corrected_rows = 64, corrected_lanes = 16;

// One of q, k and v. Lines are rows, or V tiles, of all batch entries and heads, heads first.
struct WidenedTensor {
  const uint8_t* from;
  int64_t stride_batch, stride_row, stride_head;  // elements; stride_row is that of a tile
  uint16_t* to;                                   // (batch, rows, heads, head_dim) without gaps
  const float* scale;
  int32_t scale_stride_batch, scale_stride_head, scale_stride_block;  // blocks of 64 rows
  int32_t lines;          // of all; 0: the tensor has no elements
  int32_t lines_of_block;  // of a thread block
  int32_t thread_blocks;
  Divisor line_pieces;  // threads for a line
  Divisor heads;
  Divisor lines_of_head;  // of a batch entry
  int32_t rows, head_dim;
  const int32_t* cu_seqlens;  // packed, with scales of sequences: which rows are a sequence's; null: of batch entries
  int32_t tiles;              // not 0: V tiles (v_tile.h)
  int32_t reserved;
};

struct WidenParams {
  WidenedTensor tensors[3];  // q, k, v: thread blocks in that order, then those that correct LSE and dLSE
  // Each null where it is not wanted or not there. lse_to and dlse_to are (batch, heads, rows) without gaps.
  const uint16_t* dout;
  const float *lse, *dlse, *lse_offset, *v_mean;
  float *lse_to, *dlse_to;
  int64_t dout_stride_batch, dout_stride_row, dout_stride_head;
  int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
  int64_t dlse_stride_batch, dlse_stride_head, dlse_stride_row;
  int64_t offset_stride_batch, offset_stride_head, offset_stride_row;
  int64_t mean_stride_batch, mean_stride_head;
  const int32_t* cu_seqlens;  // of queries, with v_mean and packed rows
  Divisor rows, heads, heads_per_kv;
  int32_t head_dim_v, corrected;  // rows of all heads that are corrected, or 0
  int32_t batch, bf16;
};
static_assert(sizeof(WidenParams) <= 4096);

// Its thread blocks.
constexpr int64_t blocks_of(const WidenParams& p) {
  int64_t blocks = (int64_t{p.corrected} + corrected_rows - 1) / corrected_rows;
  for (const WidenedTensor& tensor : p.tensors) blocks += tensor.thread_blocks;
  return blocks;
}

}  // namespace fa3
