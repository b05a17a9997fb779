// The sequences of a call in which each has lengths of its own ("varlen sequences"), which only the device knows: where
// a sequence lies, how long it is and which keys its rows see. Plain C++, read by both sides.
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

// The rows of a tensor that a sequence has: of a packed one those given, else all of a batch entry; of these the first
// ones, if `used` says how many.
constexpr Range rows_of_sequence(bool packed, Range given, int32_t total, int32_t max, int32_t used, bool has_used) {
  Range rows{0, max};
  if (packed) {
    rows.begin = clamped(given.begin, 0, total);
    rows.end = clamped(given.end, rows.begin, total);
    if (rows.end - rows.begin > max) rows.end = rows.begin + max;
  }
  if (has_used) rows.end = rows.begin + clamped(used, 0, rows.end - rows.begin);
  return rows;
}

// What the caller's lengths say of sequence b, 0 where they say nothing. read(numbers, i) returns numbers[i], or 0 if
// numbers is null. All are read before one is needed: each is a microsecond on its way.
struct Given {
  Range q, k;
  int32_t used_q, used_k, leftpad_k, batch_k;
};
template <class Read>
constexpr Given given(const Lengths& lengths, int32_t b, Read read) {
  return {{read(lengths.cu_q, b), read(lengths.cu_q, b + 1)}, {read(lengths.cu_k, b), read(lengths.cu_k, b + 1)},
          read(lengths.used_q, b), read(lengths.used_k, b), read(lengths.leftpad_k, b), read(lengths.batch_k, b)};
}
constexpr int32_t read_or_zero(const int32_t* numbers, int32_t i) { return numbers ? numbers[i] : 0; }

// Sequence b. total_q and total_k are the rows of the tensors of all sequences (0 where they are batched). Whatever
// numbers lie in device memory, the sequence lies within the tensors and is not longer than the maxima: rows outside
// are left out, an end before its start is taken for the start, a count of rows in use below 0 or beyond the end for
// that limit, padding beyond the keys in use for all of these, and a batch entry that there is not has no keys.
constexpr Sequence sequence_of(const Lengths& lengths, const Given& given, int32_t total_q, int32_t total_k,
                               const Window& window, int32_t b) {
  const Range q = rows_of_sequence(lengths.cu_q, given.q, total_q, lengths.max_q, given.used_q, lengths.used_q);
  Range k = rows_of_sequence(lengths.cu_k, given.k, total_k, lengths.max_k, given.used_k, lengths.used_k);
  int32_t k_batch = lengths.cu_k ? 0 : b;
  if (lengths.batch_k) {
    const bool exists = given.batch_k >= 0 && given.batch_k < lengths.caches;
    k_batch = exists ? given.batch_k : 0;
    if (!exists) k.end = k.begin;
  }
  if (lengths.leftpad_k) k.begin += clamped(given.leftpad_k, 0, k.end - k.begin);
  const int32_t seqlen_q = q.end - q.begin, seqlen_k = k.end - k.begin;
  const int32_t offset = window.bottom_right ? seqlen_k - seqlen_q : 0;  // of a key at the query's own position
  // A window that reaches beyond the sequence has no bound. So sums stay within int32, however large it is.
  const bool bounded_left = window.left >= 0 && window.left < seqlen_q + offset;
  const bool bounded_right = window.right >= 0 && window.right < seqlen_k - offset;
  return {q.begin, lengths.cu_q ? 0 : b, k.begin, k_batch, seqlen_q, seqlen_k,
          bounded_left ? window.left - offset : no_bound, bounded_right ? window.right + offset : no_bound};
}
constexpr Sequence sequence_at(const Lengths& lengths, int32_t total_q, int32_t total_k, const Window& window,
                               int32_t b) {
  return sequence_of(lengths, given(lengths, b, read_or_zero), total_q, total_k, window, b);
}

// How each sequence becomes several, one after the other, of some of its rows each: some may have none.
struct Cuts {
  int32_t each = 1;    // so many
  int32_t chunk = 0;   // FA3_MASK_CHUNK: positions of a chunk, whose rows see the keys of that chunk only; or 0
  int32_t period = 0;  // otherwise, where rows are cut so that those of one of them see the same periods of so many
                       // keys, all counted from key 0; or 0
};

// How many each may become, at most. Without a chunk of positions, sides: of the window that have a bound.
constexpr int64_t most_chunks(int64_t max_q, int64_t max_k, int64_t chunk) {
  // Queries before the first key's position are a chunk of their own, which has no keys.
  const int64_t q_chunks = max_q == 0 ? 1 : (max_q + chunk - 2) / chunk + 1, k_chunks = (max_k + chunk - 1) / chunk + 1;
  return q_chunks < k_chunks ? q_chunks : k_chunks;
}
constexpr int64_t most_periods(int64_t max_q, int64_t sides, int64_t period) {
  return max_q == 0 ? 1 : 1 + sides * ((max_q + period - 2) / period);
}

// Of the sequence rows [begin, end) alone, which see what they saw.
constexpr Sequence with_rows(Sequence s, int64_t begin, int64_t end) {
  const int32_t first = begin < s.seqlen_q ? static_cast<int32_t>(begin) : s.seqlen_q;
  const int32_t last = end < s.seqlen_q ? static_cast<int32_t>(end) : s.seqlen_q;
  s.q_row += first, s.seqlen_q = last - first;
  if (s.left != no_bound) s.left -= first;
  if (s.right != no_bound) s.right += first;
  return s;
}

// The nth of those that a sequence becomes.
constexpr Sequence chunk_of(const Sequence& whole, int32_t chunk, int32_t nth) {
  const int32_t offset = whole.seqlen_k - whole.seqlen_q;  // position of query 0
  const int64_t number = (offset < 0 ? -1 : offset / chunk) + nth, begin = number < 0 ? offset : number * chunk;
  const int64_t first = begin > offset ? begin - offset : 0, end = (number + 1) * chunk - offset;
  Sequence s = with_rows(whole, first, end);
  const int32_t keys = number < 0 || begin >= whole.seqlen_k ? 0 : static_cast<int32_t>(whole.seqlen_k - begin);
  s.seqlen_k = keys < chunk ? keys : chunk;
  if (keys == 0) return s;
  s.k_row += static_cast<int32_t>(begin);
  if (s.right != no_bound) s.right -= static_cast<int32_t>(begin);
  return s;
}
constexpr Sequence period_of(const Sequence& whole, const Cuts& cuts, int32_t nth) {
  // Rows are cut before those from which on a bound lies in another period; with two bounds, at each in turn.
  const int32_t period = cuts.period;
  const auto first_cut = [period](int32_t bound) { return period - (bound % period + period) % period; };
  const bool right = whole.right != no_bound, left = whole.left != no_bound;
  const int32_t cut_right = right ? first_cut(whole.right) : whole.seqlen_q;
  const int32_t cut_left = left ? first_cut(-whole.left) : whole.seqlen_q;
  const int32_t sooner = cut_right < cut_left ? cut_right : cut_left;
  const int32_t later = cut_right < cut_left ? cut_left : cut_right;
  const auto start = [&](int32_t n) {
    if (n == 0) return int64_t{0};
    if (n == cuts.each) return int64_t{whole.seqlen_q};
    if (!(right && left)) return int64_t{n - 1} * period + (right ? cut_right : cut_left);
    return int64_t{(n - 1) / 2} * period + (n % 2 ? sooner : later);
  };
  return with_rows(whole, start(nth), start(nth + 1));
}
template <class Read>
constexpr Sequence sequence_at(const Lengths& lengths, int32_t total_q, int32_t total_k, const Window& window,
                               const Cuts& cuts, int32_t number, Read read) {
  int32_t b = number, nth = 0;
  if (cuts.each > 1) b = number / cuts.each, nth = number - b * cuts.each;
  const Sequence whole = sequence_of(lengths, given(lengths, b, read), total_q, total_k, window, b);
  if (cuts.each == 1 && !cuts.chunk) return whole;
  return cuts.chunk ? chunk_of(whole, cuts.chunk, nth) : period_of(whole, cuts, nth);
}
constexpr Sequence sequence_at(const Lengths& lengths, int32_t total_q, int32_t total_k, const Window& window,
                               const Cuts& cuts, int32_t number) {
  return sequence_at(lengths, total_q, total_k, window, cuts, number, read_or_zero);
}

// Which keys the sequence's rows see. A side may be taken as bounded for all sequences of a call: no_bound hides
// nothing.
constexpr Visible visible_of(const Sequence& sequence, bool bounded_left, bool bounded_right, Packing packing) {
  return {sequence.seqlen_q, sequence.seqlen_k, sequence.left, sequence.right, bounded_left, bounded_right, packing};
}

}  // namespace fa3
