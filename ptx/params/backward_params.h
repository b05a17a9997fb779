// The parameter block of the backward pass's kernels. Plain C++, read by both sides.
#pragma once
#include "../plan/backward_list.h"
#include "../plan/backward_work.h"
#include "../plan/sequence.h"
#include "../table/row.h"
#include "clipped.h"
#include "score_transforms.h"
#include "tensor_map_bytes.h"

namespace fa3 {

struct RowStrides {
  int64_t batch, head, row;  // in elements
};
// How gradients are stored: rounded to q's dtype, in float32, or in float32 added to what is there.
enum class GradientStore : int32_t { rounded, fp32, added_fp32 };

// What the passes before and behind the products read and write for query rows. Row 0 is the first that sees a key.
// In the workspace each head has room for whole tiles. Behind its last row lse_log2 is +inf and delta 0, so that P is 0
// there.
struct BackwardRows {
  const uint16_t *o, *dout;
  RowStrides o_stride, dout_stride;
  const float *lse, *dlse;  // dlse null: 0
  RowStrides lse_stride, dlse_stride;
  uint16_t* dq;  // or float, see `store`
  RowStrides dq_stride;
  float* lse_log2;  // LSE times log2(e)
  float* delta;     // D of fa3.h
  float* dq_sums;   // backward/tile/rows.cuh says how they lie; null if nothing is summed up
  int32_t rows;  // that see a key
  int32_t head_dim, head_dim_v;  // of dq, of o and dout; the kernel's may be larger
  int32_t bf16;
  Divisor tiles, heads;   // of a head; query heads
  int32_t tiles_per_visit;  // of the kernel: Br / backward_tile_rows
  GradientStore store;      // of dq, dk and dv
};

// The rows before these, to which a causal mask leaves no key: they are in no tile, nothing of them is read, and their
// dQ is 0.
struct EmptyRows {
  int32_t rows;
  Divisor tiles;  // of backward_tile_rows, or 1
};

// Where a K/V head has several parts, or gradients are float32: what the pass behind the products adds up, and writes.
struct BackwardKeys {
  float* sums;        // backward/tile/key_sums.cuh says how they lie; null if order.key_sums is 1
  uint16_t *dk, *dv;  // or float, see BackwardRows::store
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

// A row's sum of exponentials has exp(sinks[head * sinks_stride]) as one more addend; null: none. The gradient is the
// sum over all rows of -exp(sink - LSE) D: each thread block of the pass in front adds up its rows, and the one behind
// adds these sums up, in a fixed order.
struct BackwardSinks {
  const float* sinks;
  float* dsinks;  // null: not wanted
  int64_t sinks_stride, dsinks_stride;
  float* sums;   // of each query head: of its tiles of backward_tile_rows, then of the thread blocks that write zeros
  int32_t each;  // so many
};

// Where thread blocks leave dK and dV in float32: in the gradients; or, if heads of K and V have several parts, each
// part's in the workspace, as if parts were heads, of the kernel's columns and neither scaled nor rounded.
struct UnroundedKeys {
  float *dk, *dv;
  RowStrides dk_stride, dv_stride;
  float dk_scale;
  int32_t adds;  // to what is there
};

// The maps of a backward call: those for loads come first.
enum class BackwardMap : int32_t { q, dout, k, v, dq, dk, dv };
inline constexpr int32_t backward_maps = 7, backward_load_maps = 4;
constexpr bool maps_queries(BackwardMap map) {
  return map == BackwardMap::q || map == BackwardMap::dout || map == BackwardMap::dq;
}

// The same for sequences with lengths of their own (Trait::planned), whose key blocks the device lists
// (backward_list.h). Of `visible` nothing is taken; of `order` heads, batch_heads (the same number), parts, key_sums,
// section_heads, section (the same number), dq, adders, behind (in blocks, of all that are listed), done_behind (0: a
// pass rounds all) and counters. `added` counts for each part of a head of K and V of each entry that is a sequence's
// first. Of `keys` sums is null, and tiles counts those of the list. LSE, D, sums and visits lie by query head, and of
// each by tiles of Br rows as the list numbers them: rows.tiles counts them, in tiles of backward_tile_rows. All maps
// are clipped (clipped.h).
struct PlannedBackwardParams : BackwardParams {
  PlanBackwardParams call;
  const BlockCounts* counts;
  const PlannedBlock* blocks;
  const PlannedTile* tiles;
  const Sequence* sequences;
  ClippedSteps steps[backward_maps];
  Divisor zero_slices;             // so many thread blocks write the zeros of a sequence
  int32_t zero_blocks;             // of all
  Divisor finish_sharers;          // so many thread blocks of the last pass round the share of a key block
  int32_t finish_blocks;           // of all these
  BackwardSinks sinks;
  UnroundedKeys unrounded;         // if order.key_sums > 1

  // Where the sequence ends, as the map counts.
  constexpr int32_t end_of(BackwardMap map, const Sequence& s) const {
    const ClippedSteps& of = steps[static_cast<int32_t>(map)];
    return maps_queries(map) ? of.at(s.q_batch, s.q_row + s.seqlen_q) : of.at(s.k_batch, s.k_row + s.seqlen_k);
  }
};
static_assert(sizeof(PlannedBackwardParams) <= 4096);

// And what rows take that change scores.
struct TransformedBackwardParams : PlannedBackwardParams {
  ScoreTransforms transforms;
  SoftcapTanh tanh;
};
static_assert(sizeof(TransformedBackwardParams) <= 4096);

// FA3_FLAG_CENTERED_K: a mean of the keys is that of so many at most, as any number is right in its place
// (backward/key_mean.cuh). The n-th of them is one in each of as many equal parts, at another place of each part, so
// that no period of the keys is met. The golden ratio, in 65536ths, spreads these places.
inline constexpr int32_t most_mean_keys = 64;
constexpr int32_t mean_key(int32_t n, int32_t keys) {
  if (keys <= most_mean_keys) return n;
  const uint32_t within = static_cast<uint32_t>(n) * 40503u % 65536;
  return static_cast<int32_t>((static_cast<uint64_t>(n) * 65536 + within) * static_cast<uint32_t>(keys) /
                              (65536 * most_mean_keys));
}

// And what rows take, and the pass before them, that take a mean of the keys off dQ (Trait::centered_k).
struct CenteredBackwardParams : PlannedBackwardParams {
  const uint16_t* k_rows;
  RowStrides k_stride;
  float* key_means;  // of each sequence of the call and each of its heads of K and V: one for each column

  // Of the columns that the kernels have, which may be more than the tensor's.
  constexpr float* key_mean(int32_t sequence, int32_t head_kv, int32_t columns) const {
    return key_means + (static_cast<int64_t>(sequence) * keys.heads + head_kv) * columns;
  }
};
static_assert(sizeof(CenteredBackwardParams) <= 4096);

// How much of that a row's kernel takes.
constexpr size_t parameter_bytes(const BackwardRow& row) {
  if (row.has(Trait::centered_k)) return sizeof(CenteredBackwardParams);
  if (row.transforms_scores()) return sizeof(TransformedBackwardParams);
  return row.has(Trait::planned) ? sizeof(PlannedBackwardParams) : sizeof(BackwardParams);
}

}  // namespace fa3
