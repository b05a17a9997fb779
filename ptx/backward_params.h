// The parameter block of the backward pass's kernels. Plain C++, read by both sides.
#pragma once
#include "backward_work.h"
#include "row.h"
#include "sequence.h"
#include "tensor_map_bytes.h"

namespace fa3 {

struct RowStrides {
  int64_t batch, head, row;  // in elements
};
// What the passes before and behind the products read and write for query rows. Row 0 is the first that sees a key.
// In the workspace each head has room for whole tiles. Behind its last row lse_log2 is +inf and delta 0, so that P is 0
// there.
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
  int32_t rows;  // that see a key
  int32_t head_dim, head_dim_v;  // of dq, of o and dout; the kernel's may be larger
  int32_t bf16;
  Divisor tiles, heads;   // of a head; query heads
  int32_t tiles_per_visit;  // of the kernel: Br / backward_tile_rows
};

// The rows before these, to which a causal mask leaves no key: they are in no tile, nothing of them is read, and their
// dQ is 0.
struct EmptyRows {
  int32_t rows;
  Divisor tiles;  // of backward_tile_rows, or 1
};

// Where a K/V head has several parts: what the pass behind the products adds up, and writes.
struct BackwardKeys {
  float* sums;  // tile/bwd/key_sums.cuh says how they lie; null if there is one part
  uint16_t *dk, *dv;
  RowStrides dk_stride, dv_stride;
  int32_t head_dim, head_dim_v;  // of dk, of dv
  Divisor tiles, heads;          // of 64 keys, of a head; of K and V
};

// The numbers in `visits`, one for the tiles of a visit. If key blocks add in any order, a number counts those that
// have come, and this bit says that the first one's dQ is stored, so that others may add. In a fixed order it counts
// those that have added.
inline constexpr uint32_t dq_is_stored = 1u << 31;

// The same for all kernels of the backward pass.
struct BackwardParams {
  TensorMap q, k, v, dout;  // as in ForwardParams; boxes of a tile's rows of Q and dO, of Bc rows of K and V
  TensorMap dk, dv;         // boxes of 64 rows
  TensorMap dq;             // the same, where a kernel of its own computes dQ
  BackwardRows rows;
  BackwardKeys keys;
  KeyOrder order;
  BlockOrder query_order;  // of that kernel: blocks of query rows, of all query heads
  uint32_t* visits;        // a number for each Br query rows, see above
  int32_t counters;        // so many numbers from order.added on, of which visits are the last, begin as 0
  Visible visible;
  int32_t heads_per_kv;  // query heads that share a K/V head
  int32_t readers;       // of each of its parts
  float softmax_scale;
  float softmax_scale_log2;  // softmax_scale * log2(e)
  EmptyRows empty;
};
static_assert(sizeof(BackwardParams) <= 4096);

// The same for sequences with lengths of their own (Trait::own_lengths), each with at most one block of keys. They take
// the place of batch entries, and of `visible` nothing is taken. All maps are clipped (clipped.h). LSE and D lie by
// query head, and of each by tiles of Br rows: those of a sequence from first_tile_of_sequence on, and rows.tiles
// counts those of all.
struct PlannedBackwardParams : BackwardParams {
  const Sequence* sequences;
  int32_t entry_rows_q, entry_rows_k;  // rows of a batch entry; the next one's follow without a gap

  // Rows of all batch entries before the sequence's first one.
  constexpr int32_t q_row(const Sequence& s) const { return s.q_batch * entry_rows_q + s.q_row; }
  constexpr int32_t k_row(const Sequence& s) const { return s.k_batch * entry_rows_k + s.k_row; }
};
static_assert(sizeof(PlannedBackwardParams) <= 4096);

// How much of that a row's kernel takes.
constexpr size_t parameter_bytes(const BackwardRow& row) {
  return row.has(Trait::own_lengths) ? sizeof(PlannedBackwardParams) : sizeof(BackwardParams);
}

// How many tiles of Br rows a sequence has, and where those of sequence b begin, of which this is the first row: behind
// those of all others before it, whatever their lengths, if they lie in their order. So nobody needs to add lengths up.
constexpr int32_t tiles_of_sequence(int32_t seqlen_q, int32_t Br) {
  return seqlen_q > 0 ? (seqlen_q + Br - 1) / Br : 1;
}
constexpr int32_t first_tile_of_sequence(int32_t row, int32_t b, int32_t Br) { return row / Br + b; }

}  // namespace fa3
