// The parameter blocks of the kernels: what the host passes by value at each launch. Plain C++, read by both sides.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../plan/divisor.h"
#include "../plan/planned_piece.h"
#include "../plan/work.h"
#include "../table/row.h"
#include "score_transforms.h"
#include "tensor_map_bytes.h"

namespace fa3 {

// O and LSE, for what writes them without TMA.
struct Output {
  void* o;
  int64_t o_stride_batch, o_stride_head, o_stride_row;  // in elements
  float* lse;                                           // null: not wanted
  int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
  int32_t head_dim;  // of o; the kernel's may be larger
  Dtype dtype;       // of o; a row that stores float32 does not read it
};

// The beginning of the device memory that each call in flight has for itself. Its contents before and after a launch
// mean nothing (tile/schedule.cuh). Where tiles are split, tickets and slots follow (src/forward/plan/split.cpp).
struct Workspace {
  unsigned long long state;  // whether the two counters are prepared
  unsigned int next_piece;   // the next one to be claimed
  unsigned int finished;     // thread blocks that claim no more
};

// Of 64 rows of a split tile, with a byte for the 16 rows of each warp: how many parts have taken a ticket, and how
// many have written their result into their slot (tile/epilogue/combine.cuh).
struct Tickets {
  uint32_t taken, written;
};

// What all forward kernels take.
struct ForwardParams {
  // 4-D maps, innermost first: {head_dim, seqlen, heads, batch}, 128-byte swizzle, out-of-bounds reads are zero. Their
  // boxes are in row.h. With packed heads q is 5-D (its heads: those of a K/V head, and K/V heads), and there is no o.
  TensorMap q, k, v, o;
  Output output;
  Workspace* workspace;
  Tickets* tickets;  // a split tile has one for each 64 rows; 16-byte aligned
  // The slots, each of Br / 16 times ForwardRow::partial_bytes(), or with packed heads of its rows
  // (Packing::slot_rows) times ForwardRow::packed_row_bytes(); 16-byte aligned.
  void* partials;

  Visible visible;
  Divisor heads_per_kv;      // query heads that share a K/V head
  float softmax_scale;
  float softmax_scale_log2;  // softmax_scale * log2(e)
  Tiles tiles;
  Pieces pieces;
  int32_t blocks_in_flight;  // so many K/V blocks of all thread blocks memory serves best (with packed heads)
};

// The same for kernels that take split tiles.
struct ListedForwardParams : ForwardParams {
  Listed list[list_capacity];
};
static_assert(sizeof(ListedForwardParams) <= 4096);

// The same for sequences with lengths of their own (Trait::planned). Of `visible` they take the packing, and with
// packed heads seqlen_q, the most of any sequence, from which slots have their rows; of `tiles` the heads (first_row is
// 0); of `pieces` nothing.
//
// What lies behind a sequence's end belongs to another one. So its last block of V, and the last rows of O of a warp,
// come and go in boxes of 1, 2, 4, ... rows, few enough for the rows that there are. The rest of V's block comes in
// others that lie wholly outside of the tensor, as zeros (0 times a neighbour's NaN would be NaN).
struct PlannedForwardParams : ForwardParams {
  static constexpr int v_boxes = 7, o_boxes = 4;
  TensorMap v_rows[v_boxes], o_rows[o_boxes];  // maps of v and o; those numbered i have boxes of 1 << i rows
  const PlannedPiece* entries;  // there is room for as many entries as thread blocks may have for first pieces
  const PlannedCounts* counts;

  // Where K and V lie in pages (null: they do not), their maps are those of the pages: {head_dim, page_size, heads,
  // pages}, in boxes of box_rows rows, which divides page_size, Bc and the first key of every sequence. What follows
  // means nothing without pages.
  const int32_t* page_table;  // sequence k_batch has the pages page_table[k_batch * table_stride ...]
  int32_t table_stride;  // in numbers
  int32_t box_rows;
  Divisor page_size;

  // Not 0: a row's bits follow from its query and the keys that it sees alone, whatever rows share its tile (mask.cuh).
  int32_t invariant;
  int32_t tile_rows;  // Br, for the pass that adds parts up

  // A row's sum of exponentials has exp(sinks[head * sinks_stride]) as one more addend; null: none.
  const float* sinks;
  int64_t sinks_stride;

  static constexpr size_t end = 2248;  // of the last member, where blocks may begin
};
static_assert(sizeof(PlannedForwardParams) <= 4096);

// Numbers in device memory, one for each block of 64 rows of a head; strides of 0 make one stand for many.
struct ScaleTensor {
  const float* data;
  int32_t stride_batch, stride_head, stride_block;
  int32_t reserved;  // keeps the struct's size a multiple of 8 bytes
};

// What kernels with scales take (fa3.h says what it means). In planned rows batch entries of scales and of v_mean are
// sequences (PlannedPiece::sequence_number), and lse_offset lies as LSE does.
struct Scales {
  ScaleTensor q, k, v;
  const float* o;       // null: 1
  const float* v_mean;  // null: none
  int32_t v_mean_stride_batch, v_mean_stride_head;
  const float* lse_offset;  // null: none
  int64_t lse_offset_stride_batch, lse_offset_stride_head, lse_offset_stride_row;
};

// The scales of V of e4m3 in a latent cache (VLayout::latent), each row's side by side, 16-byte aligned. They lie in
// pages if V does.
struct LatentScales {
  const float* data;
  int64_t stride_batch, stride_head, stride_row;     // in numbers
  int32_t batches, rows;                             // that there are
  int32_t bytes;                                     // of a row's, up to 16; what lies behind them is not read
  int32_t reserved;                                  // keeps the struct's size a multiple of 8 bytes
};

// The parameters of a row's kernel: ListedForwardParams, PlannedForwardParams or ForwardParams alone, and behind that
// those of these blocks that the row takes, in this order.
struct ScaleBlock {
  Scales scales;
};
struct TransformBlock {
  ScoreTransforms transforms;
};
struct QvBlock {
  TensorMap qv;  // of the second tensor of queries, as that of q. K then has the columns of q alone
};
struct LatentScaleBlock {
  LatentScales latent_scales;
};

struct ForwardBlocks {
  bool list = false, planned = false;  // one of them at most
  bool scales = false, transforms = false, qv = false, latent_scales = false;
};
constexpr ForwardBlocks blocks_of(const ForwardRow& row) {
  const bool planned = row.has(Trait::planned), scales = row.has_scales();
  return {!planned && (scales || row.has(Trait::splits)), planned, scales, row.transforms_scores(), row.has(Trait::qv),
          row.is_latent()};
}

// As a type, where the row is known.
template <class Block>
struct Without {};
template <ForwardBlocks taken>
struct ForwardParamsWith
    : std::conditional_t<taken.planned, PlannedForwardParams,
                         std::conditional_t<taken.list, ListedForwardParams, ForwardParams>>,
      std::conditional_t<taken.scales, ScaleBlock, Without<ScaleBlock>>,
      std::conditional_t<taken.transforms, TransformBlock, Without<TransformBlock>>,
      std::conditional_t<taken.qv, QvBlock, Without<QvBlock>>,
      std::conditional_t<taken.latent_scales, LatentScaleBlock, Without<LatentScaleBlock>> {};

// Where it is not: how many bytes all are, and where in them the blocks begin; 0: that one is not there.
struct ForwardLayout {
  size_t scales, transforms, qv, latent_scales, bytes;

  constexpr explicit ForwardLayout(ForwardBlocks taken) {
    size_t end = taken.planned ? PlannedForwardParams::end
                 : taken.list  ? sizeof(ListedForwardParams)
                               : sizeof(ForwardParams);
    const auto align = [&end](size_t alignment) { return end = (end + alignment - 1) / alignment * alignment; };
    const auto place = [&](bool is_taken, size_t size, size_t alignment) {
      if (!is_taken) return size_t{0};
      const size_t begin = align(alignment);
      end += size;
      return begin;
    };
    scales = place(taken.scales, sizeof(ScaleBlock), alignof(ScaleBlock));
    transforms = place(taken.transforms, sizeof(TransformBlock), alignof(TransformBlock));
    qv = place(taken.qv, sizeof(QvBlock), alignof(QvBlock));
    latent_scales = place(taken.latent_scales, sizeof(LatentScaleBlock), alignof(LatentScaleBlock));
    bytes = align(alignof(TensorMap));
  }
};
constexpr size_t parameter_bytes(const ForwardRow& row) { return ForwardLayout(blocks_of(row)).bytes; }

// For the pass that writes O = 0 and LSE = -inf where there are no keys.
inline constexpr int empty_rows_block = 256;  // rows that a warp writes at a time
struct EmptyRowsParams {
  Output output;
  int32_t rows;         // the first ones of each head
  int32_t batch_heads;  // batch * heads
  Divisor heads;
};

// For the pass that makes V into tiles (fa3.h), which lie there head by head without gaps.
constexpr int tiles_of_thread_block(const PassRow& row) { return row.threads() / (row.d / 2); }  // two columns a thread
struct TileVParams {
  const uint8_t* v;
  int64_t stride_batch, stride_row, stride_head;
  uint8_t* tiles;
  int32_t batch, keys, head_dim;
  Divisor heads;   // of K and V
  Divisor groups;  // of 16 keys, of a head
};

// For the passes that quantize. Strides count elements.
struct QuantizeParams {
  const uint16_t* x;
  int64_t x_stride_batch, x_stride_row, x_stride_head;
  uint8_t* y;
  int64_t y_stride_batch, y_stride_row, y_stride_head;  // of V's tiles, the stride of a tile stands for that of a row
  float* scale;
  int64_t scale_stride_batch, scale_stride_head, scale_stride_block;
  float* mean;  // null: not wanted
  int64_t mean_stride_batch, mean_stride_head;
  const float *rotary_cos, *rotary_sin;
  int64_t cos_stride, sin_stride;
  const float* k_mean;  // null: lse_offset is not wanted
  int64_t k_mean_stride_batch, k_mean_stride_head;
  float* lse_offset;
  int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
  uint64_t seed;
  int32_t batch, rows, head_dim;
  int32_t rotary_dim;  // 0: none
  int32_t hadamard;    // columns that are mixed with each other; 0: none
  float hadamard_scale;  // of what is mixed; 1 if nothing is
  float softmax_scale;
  Divisor heads, heads_per_kv;  // of a batch entry, of a K/V head
  Divisor groups;               // of this launch (quantize_work.h)
  int32_t blocks;               // of 64 rows, of a head
  enum class Granularity : int32_t { block, head, tensor } scales;
  bool bf16, tiles, interleaved;

  // Of calls that measure first: what is measured, and what lies in the workspace (QuantizeLayout).
  enum class Measure : int32_t { none, largest, sums, extremes } measure;
  int32_t parts;
  float *partials, *means, *largest;
  int32_t largest_of_head, largest_count;  // head n's range comes from the numbers largest[n * largest_of_head] and on
};

}  // namespace fa3
