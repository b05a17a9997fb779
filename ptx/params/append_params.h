// fa3_append's work, how threads share it, and the parameter block of its kernel. Plain C++, read by both sides.
//
//   row      a new row of all heads of Q, K and V, as far as the call has them
//   chunk    so many columns of a head's row as are 16 bytes of x
//   quad     two chunks of each of two neighbouring heads, at the same columns, which have the same angles. Of columns
//            that are rotated, the chunks are partners. A thread takes whole quads, so that nobody else reads what it
//            overwrites in place. Quads are numbered through a row: all heads of Q, then of K, then of V
//   segment  32 quads of a row, one for each lane of a warp. A warp takes one; or, where a row has 16 quads or fewer,
//            several rows, as many as it has lanes for
#pragma once
#include <cstdint>

#include "../plan/divisor.h"
#include "../table/row.h"

namespace fa3 {

inline constexpr int32_t append_columns = 8, append_heads = 2;  // of a chunk, of a quad

// The chunks of a head as those of quads. The first `rotated` chunks are rotated, chunk n with chunk n + rotated / 2.
struct AppendQuads {
  int32_t chunks, rotated;

  constexpr int32_t rest() const { return (chunks - rotated + 1) / 2; }  // quads whose chunks are not rotated
  constexpr int32_t count() const { return rotated / 2 + rest(); }
  constexpr bool is_rotated(int32_t quad) const { return quad < rotated / 2; }
  constexpr int32_t first(int32_t quad) const { return is_rotated(quad) ? quad : quad + rotated / 2; }
  // Of the last quad it may not be there: then it is `chunks` or more.
  constexpr int32_t second(int32_t quad) const { return first(quad) + (is_rotated(quad) ? rotated / 2 : rest()); }
};

// How warps share the quads of `rows` rows.
struct AppendSegments {
  int32_t lane_shift;  // a row has 1 << lane_shift lanes of a warp
  int32_t per_row;
  int64_t warps;

  static constexpr AppendSegments of(int64_t rows, int64_t quads) {
    AppendSegments s{};
    while (s.lane_shift < 5 && int64_t{1} << s.lane_shift < quads) s.lane_shift++;
    const int64_t together = 32 >> s.lane_shift;  // rows of a warp
    s.per_row = int32_t((quads + 31) / 32);
    s.warps = (rows + together - 1) / together * s.per_row;
    return s;
  }
};

// Q, K or V: what is read and where it goes. Strides count elements; y_stride_batch is that from one cache, or page, to
// the next.
struct AppendTensor {
  const uint16_t* x;
  int64_t x_stride_batch, x_stride_row, x_stride_head;
  void* y;
  int64_t y_stride_batch, y_stride_row, y_stride_head;
  const float* scale;  // null: y has x's dtype; otherwise it is e4m3
  int64_t scale_stride_batch, scale_stride_head;
  int32_t heads;
  AppendQuads quads;      // of a head
  Divisor quads_of_head;  // their number
};

// Numbers that the caller has in device memory may be any. Pointers are null if he does not give them.
struct AppendParams {
  AppendTensor tensors[3];    // Q, K, V; without quads if they are absent
  int32_t q_end, k_end;       // quads of a row before those of K, and before those of V
  int32_t quads;              // of a row
  int32_t lane_shift;         // AppendSegments
  Divisor segments;           // of a row
  int32_t rows;               // of all sequences
  Divisor rows_of_sequence;   // where each has as many; packed: all of them
  int32_t batch;              // sequences of cu_seqlens
  const int32_t* cu_seqlens;  // batch + 1
  const int32_t* seqused;     // of a sequence, as the next two
  const int32_t* cache_seqlens;
  const int32_t* cache_batch_idx;
  const int32_t* page_table;
  int64_t page_table_stride;      // from a sequence to the next
  const void *slots, *positions;  // of a row; positions also of a sequence, its first row's
  const float *rotary_cos, *rotary_sin;  // null: nothing is rotated
  int64_t cos_stride, sin_stride;
  int32_t angles;      // positions that the tables have
  int32_t caches;      // or pages
  int32_t capacity;    // positions that the cache of a sequence has
  Divisor cache_rows;  // of a cache, or of a page
  bool bf16, interleaved, positions_of_rows, slots_64, positions_64;
};

}  // namespace fa3
