// The parameters of the pass that makes q, k and v of 8 bits into 16 (fa3.h): for the backward pass, where it also
// takes what the forward pass added to O and LSE off what the backward pass reads; and for the forward pass with many
// queries of 16 bits, where it also gathers keys from pages and cache entries. Plain C++, read by both sides.
#pragma once
#include "../plan/divisor.h"
#include "../table/row.h"
#include "v_tile.h"

namespace fa3 {

// A thread takes pieces of so many elements of a row, several of them; or of V tiles one piece of so many columns.
inline constexpr int widened_columns = 8, widened_pieces = 4;
// Of rows of LSE it takes so many, of each with other lanes 8 columns.
inline constexpr int corrected_at_once = 4;

// Where a pass has thread blocks for each head of each batch entry: heads first, theirs are neighbours in memory.
struct HeadBlocks {
  int32_t count;  // of all
  Divisor per_head, heads;
  int32_t lines;  // of one of them: rows, or V tiles
};

// One of q, k and v.
struct WidenedTensor {
  const uint8_t* from;
  int64_t stride_batch, stride_row, stride_head;  // elements; stride_row is that of a V tile
  uint16_t* to;                                   // (batch, rows, heads, head_dim) without gaps
  const float* scale;  // null, for rows: there is none, and all become fp16
  int32_t scale_stride_batch, scale_stride_head, scale_stride_block;  // blocks of 64 rows
  int32_t lines;  // of a head: rows, or V tiles
  HeadBlocks blocks;
  Divisor pieces;  // of a line
  int32_t rows, head_dim;
  const int32_t* cu_seqlens;  // packed, with scales of sequences: which rows are a sequence's; null: of batch entries
  int32_t tiles;              // not 0: V tiles (v_tile.h)
  // Of batched keys of the forward pass. Rows beyond those in use, and what does not exist, are not copied.
  int32_t entries;            // batch entries, or pages, of `from`
  const int32_t* used;        // for each sequence: rows in use, the first ones; null: all
  const int32_t* entry_of;    // for each sequence: its batch entry of `from`; null: its own
  const int32_t* page_table;  // row j of b is in page page_table[b * table_stride + j / page_size]; null: no pages
  Divisor page_size;
  int32_t table_stride;

  constexpr int64_t heads_and_columns() const { return int64_t{blocks.heads} * head_dim; }
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
  HeadBlocks blocks;
  Divisor heads_per_kv;
  int32_t rows, head_dim_v;
  int32_t lanes_shift;  // 1 << this many lanes have a row
  int32_t batch, bf16;
  int32_t reserved;
};
static_assert(sizeof(WidenParams) <= 4096);

// Its thread blocks.
constexpr int64_t blocks_of(const WidenParams& p) {
  int64_t blocks = p.blocks.count;
  for (const WidenedTensor& tensor : p.tensors) blocks += tensor.blocks.count;
  return blocks;
}

}  // namespace fa3
