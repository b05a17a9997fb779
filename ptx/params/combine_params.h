// fa3_combine's work, how thread blocks share it, and the parameter block of its kernel. Plain C++, read by both sides.
//
//   row      of O: the output of one query and one head
//   part     one of the results that are merged; it has all rows
//   piece    so many columns of a row as are 16 bytes in a part: what one load brings. A thread has a piece of each of
//            combine_rows rows of a head. It goes over the parts and keeps the sums in registers
//   slot     as many threads as a row has pieces: together they have combine_rows rows
//   tile     the rows of all slots of a thread block: consecutive queries of one head, or, where a head has too few for
//            that, all queries of several heads
//   share    where tiles are too few for the machine, several groups of a thread block's threads have the same rows. Of
//            `shares` groups each takes every shares-th part, and in the end they put their sums together
#pragma once
#include <cstdint>

#include "../plan/divisor.h"
#include "../table/row.h"

namespace fa3 {

enum class CombineDtype : int32_t { bf16, fp16, fp32 };
constexpr int32_t bytes_of(CombineDtype dtype) { return dtype == CombineDtype::fp32 ? 4 : 2; }

inline constexpr int32_t combine_rows = 2;   // of a thread
inline constexpr int32_t combine_batch = 2;  // parts that it loads at once

struct CombineTiles {
  int32_t shares;
  int32_t slots;         // of a share
  int32_t head_slots;    // of a head in a tile. The rows of a slot are so far apart
  int32_t heads;         // of a tile
  int64_t along_queries, along_heads;  // tiles: of a head, and for the heads of all batch entries

  constexpr int64_t count() const { return along_queries * along_heads; }

  static constexpr CombineTiles with(const PassRow& row, int32_t pieces, int32_t shares, int64_t queries,
                                     int64_t heads) {
    CombineTiles t{};
    t.shares = shares;
    t.slots = row.threads() / (pieces * shares);
    const int64_t most = (queries + combine_rows - 1) / combine_rows;
    t.head_slots = most < t.slots ? int32_t(most) : t.slots;
    t.heads = t.slots / t.head_slots;
    t.along_queries = (most + t.head_slots - 1) / t.head_slots;
    t.along_heads = (heads + t.heads - 1) / t.heads;
    return t;
  }

  // As few shares as fill the machine, with a batch of parts or more each. The machine is an H200, so that results are
  // the same everywhere.
  static constexpr CombineTiles of(const PassRow& row, int32_t pieces, int64_t parts, int64_t queries, int64_t heads) {
    constexpr int32_t multiprocessors = 132;
    int32_t shares = 1;
    CombineTiles tiles = with(row, pieces, shares, queries, heads);
    while (tiles.count() < multiprocessors * row.resident_blocks() && 2 * shares * pieces <= row.threads() &&
           2 * shares * combine_batch <= parts)
      tiles = with(row, pieces, shares *= 2, queries, heads);
    return tiles;
  }
};

// Strides count elements.
struct CombineParams {
  const void* o_parts;
  int64_t o_parts_stride_part, o_parts_stride_batch, o_parts_stride_row, o_parts_stride_head;
  const float* lse_parts;
  int64_t lse_parts_stride_part, lse_parts_stride_batch, lse_parts_stride_head, lse_parts_stride_row;
  void* o;
  int64_t o_stride_batch, o_stride_row, o_stride_head;
  float* lse;  // null: not wanted
  int64_t lse_stride_batch, lse_stride_head, lse_stride_row;
  CombineDtype parts_dtype, o_dtype;
  int32_t parts, batch_heads, rows;
  int32_t tile_heads;
  Divisor pieces;             // of a row
  Divisor shares, slots, head_slots;
  Divisor heads;              // of a batch entry
  Divisor tiles_along_heads;
};

}  // namespace fa3
