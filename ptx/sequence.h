// The sequences of a call in which each has lengths of its own ("packed lengths"), which only the device knows: where a
// sequence lies, how long it is and which keys its rows see. Plain C++, read by both sides.
#pragma once
#include <cstdint>

#include "visible.h"

namespace fa3 {

// The caller's lengths, in device memory. A pointer is null if the caller does not give it. Without cu_q or cu_k the
// tensor is a batched one: sequence b has all rows of batch entry b, which are max_q or max_k.
struct Lengths {
  const int32_t *cu_q, *cu_k;      // batch + 1 numbers: sequence b has the rows cu[b] .. cu[b + 1] - 1 of the tensor
  const int32_t *used_q, *used_k;  // batch numbers: only so many of these rows are in use, the first ones
  const int32_t* leftpad_k;        // batch numbers: so many of the keys in use are padding, the first ones
  const int32_t* batch_k;          // batch numbers: in which batch entry of K and V its keys lie; null: in its own
  int32_t batch, max_q, max_k;     // no sequence has more rows
  int32_t caches = 0;              // batch entries that K and V have, where batch_k is given
};

// Which keys a call's queries see: those from `left` before to `right` behind the query's own position; below 0: no
// bound on that side. Positions are the same from the start of a sequence on, or, if bottom_right, to its end.
struct Window {
  int32_t left, right;
  bool bottom_right;
};

// What a piece of work needs to know of its sequence. Queries are q_row .. q_row + seqlen_q - 1 of batch entry q_batch,
// keys likewise. left and right are those of Visible; a side without a bound has no_bound.
struct Sequence {
  int32_t q_row, q_batch, k_row, k_batch, seqlen_q, seqlen_k, left, right;
};

// Tensors have at most so many rows: then no sum of a row, a bound and a tile's rows is beyond int32.
inline constexpr int32_t most_packed_rows = (1 << 30) - 2048;

// A bound for `left` and `right` that hides nothing.
inline constexpr int32_t no_bound = 1 << 30;

constexpr int32_t clamped(int32_t x, int32_t least, int32_t most) { return x < least ? least : x > most ? most : x; }

// The rows of a tensor that are sequence b's.
constexpr Range rows_of_sequence(const int32_t* cu, const int32_t* used, int32_t total, int32_t max, int32_t b) {
  Range rows{0, max};
  if (cu) {
    rows.begin = clamped(cu[b], 0, total);
    rows.end = clamped(cu[b + 1], rows.begin, total);
    if (rows.end - rows.begin > max) rows.end = rows.begin + max;
  }
  if (used) rows.end = rows.begin + clamped(used[b], 0, rows.end - rows.begin);
  return rows;
}

// Sequence b. total_q and total_k are the rows of the tensors of all sequences (0 where they are batched). Whatever
// numbers lie in device memory, the sequence lies within the tensors and is not longer than the maxima: rows outside
// are left out, an end before its start is taken for the start, a count of rows in use below 0 or beyond the end for
// that limit, padding beyond the keys in use for all of these, and a batch entry that there is not has no keys.
constexpr Sequence sequence_at(const Lengths& lengths, int32_t total_q, int32_t total_k, const Window& window,
                               int32_t b) {
  const Range q = rows_of_sequence(lengths.cu_q, lengths.used_q, total_q, lengths.max_q, b);
  Range k = rows_of_sequence(lengths.cu_k, lengths.used_k, total_k, lengths.max_k, b);
  int32_t k_batch = lengths.cu_k ? 0 : lengths.batch_k ? lengths.batch_k[b] : b;
  if (lengths.batch_k && (k_batch < 0 || k_batch >= lengths.caches)) k_batch = 0, k.end = k.begin;
  if (lengths.leftpad_k) k.begin += clamped(lengths.leftpad_k[b], 0, k.end - k.begin);
  const int32_t seqlen_q = q.end - q.begin, seqlen_k = k.end - k.begin;
  const int32_t offset = window.bottom_right ? seqlen_k - seqlen_q : 0;  // of a key at the query's own position
  // A window that reaches beyond the sequence has no bound. So sums stay within int32, however large it is.
  const bool bounded_left = window.left >= 0 && window.left < seqlen_q + offset;
  const bool bounded_right = window.right >= 0 && window.right < seqlen_k - offset;
  return {q.begin, lengths.cu_q ? 0 : b, k.begin, k_batch, seqlen_q, seqlen_k,
          bounded_left ? window.left - offset : no_bound, bounded_right ? window.right + offset : no_bound};
}

// Which keys the sequence's rows see. A side may be taken as bounded for all sequences of a call: no_bound hides
// nothing.
constexpr Visible visible_of(const Sequence& sequence, bool bounded_left, bool bounded_right, Packing packing) {
  return {sequence.seqlen_q, sequence.seqlen_k, sequence.left, sequence.right, bounded_left, bounded_right, packing};
}

}  // namespace fa3
