// Which keys a query row sees: the only place that knows causal masks, windows and the ends of the sequences from each
// other. Masks, scheduler, empty rows and planner ask here. Plain C++, read by both sides.
#pragma once
#include <cstdint>

#include "packing.h"

namespace fa3 {

// [begin, end), empty if begin >= end.
struct Range {
  int32_t begin, end;

  constexpr bool none() const { return begin >= end; }
};
using Keys = Range;    // of keys
using Rows = Range;    // of query rows
using Blocks = Range;  // of K/V blocks, Bc keys each
using QTiles = Range;  // of tiles of Br query rows

// Row i sees key j, both counted from 0, if i - left <= j <= i + right; a side that is not bounded has no such
// condition. left and right may be negative. Kernels set the two flags to what their row of the table says, so that a
// side without a bound costs no instruction. With packed heads (packing.h) each query has several rows; left and right
// count queries.
struct Visible {
  int32_t seqlen_q, seqlen_k;
  int32_t left, right;
  bool bounded_left, bounded_right;
  Packing packing;

  constexpr int32_t rows() const { return static_cast<int32_t>(packing.rows(seqlen_q)); }

  // The keys that the row sees. It need not be a row of the problem.
  constexpr Keys of(int32_t row) const {
    const int32_t i = packing.query(row);
    int32_t begin = 0, end = seqlen_k;
    if (bounded_left && i - left > 0) begin = i - left;
    if (bounded_right && i + right + 1 < end) end = i + right + 1;
    return {begin, end};
  }

  // From the first to the last key that the rows first .. last see, as far as these are rows of the problem. (Each key
  // between is seen by one of them, too, unless left + right < 0, when no row sees any.)
  constexpr Keys any(int32_t first, int32_t last) const {
    const int32_t top = first > 0 ? first : 0, bottom = last < rows() ? last : rows() - 1;
    if (top > bottom) return {0, 0};
    return {of(top).begin, of(bottom).end};
  }

  // The keys that every one of the rows first .. last sees. They need not be rows of the problem.
  constexpr Keys all(int32_t first, int32_t last) const { return {of(last).begin, of(first).end}; }

  // The same question asked of keys: from the first to the last row of the problem that sees any of the keys
  // first .. last, of which the first is one of the problem. If there is none, begin may lie behind the last row, and
  // end before row 0. (Each row between sees one of the keys, too, unless left + right < 0.)
  constexpr Rows rows_of(int32_t first, int32_t last) const {
    const int32_t bottom = last < seqlen_k ? last : seqlen_k - 1;
    int32_t begin = 0, end = seqlen_q;
    if (bounded_right && first > right) begin = first - right;
    if (bounded_left && bottom < end - 1 - left) end = bottom + left + 1;
    return {static_cast<int32_t>(packing.rows(begin)), static_cast<int32_t>(packing.rows(end))};
  }

  // Does the row see the key, and does each of the rows see each of the keys? Rows need not be of the problem, nor keys
  // behind its last one.
  constexpr bool sees(int32_t row, int32_t key) const {
    const int32_t i = packing.query(row);
    return !(key >= seqlen_k || (bounded_right && key > i + right) || (bounded_left && key < i - left));
  }
  constexpr bool all_see_all(Rows rows, Keys keys) const {
    return !((bounded_right && keys.end - 1 > packing.query(rows.begin) + right) || keys.end > seqlen_k ||
             (bounded_left && keys.begin < packing.query(rows.end - 1) - left));
  }

  // Do later rows see more keys, so that earlier keys are seen by more rows? Then tiles, and key blocks, take unequal
  // times. Without bounds, or with both, all see about as many.
  constexpr bool later_rows_see_more() const { return bounded_right && !bounded_left; }

  // How many rows, from row 0 on, see no key because the right bound leaves none.
  constexpr int32_t empty_rows() const {
    if (seqlen_k <= 0) return rows();
    if (!bounded_right || right >= 0) return 0;
    return -right < seqlen_q ? static_cast<int32_t>(packing.rows(-right)) : rows();
  }
};

// The K/V blocks that hold the keys.
constexpr Blocks blocks_of(Keys keys, int32_t Bc) {
  if (keys.none()) return {0, 0};
  return {keys.begin / Bc, (keys.end + Bc - 1) / Bc};
}

// The tiles of Br rows that hold the rows.
constexpr QTiles tiles_of(Rows rows, int32_t Br) { return {rows.begin / Br, (rows.end + Br - 1) / Br}; }

}  // namespace fa3
