// Packed heads: the query heads that share a K/V head stand in the rows of the same tiles, so that K and V are read
// once for all of them. Plain C++, read by both sides.
//
// Each query has as many rows as it has such heads, rounded up to a power of two; the rows of the next query follow. So
// 64 rows are one box of TMA, whatever the number of heads, and their heads and queries come by shifts. Rows of heads
// that there are not hold zeros, as TMA gives them for what lies outside of a tensor, and nobody stores them.
#pragma once
#include <cstdint>

namespace fa3 {

struct Packing {
  uint8_t shift;  // a query has 1 << shift rows; 0 if nothing is packed, a row then is a query

  static constexpr Packing of(int64_t heads) {
    uint8_t shift = 0;
    while (int64_t{1} << shift < heads) shift++;
    return {shift};
  }

  constexpr int32_t query(int32_t row) const { return row >> shift; }
  constexpr int32_t head(int32_t row) const { return row & ((int32_t{1} << shift) - 1); }  // of those that are packed
  constexpr int64_t rows(int64_t queries) const { return queries << shift; }

  // So many rows has the slot of a part, a multiple of `unit`, if a head has so many in all.
  static constexpr int32_t slot_rows(int32_t rows, int32_t Br, int32_t unit) {
    return rows < Br ? (rows + unit - 1) / unit * unit : Br;
  }

  // Of a box of so many rows, a power of two.
  constexpr int32_t box_heads(int32_t rows) const { return int64_t{1} << shift < rows ? int32_t{1} << shift : rows; }
  constexpr int32_t box_queries(int32_t rows) const { return rows / box_heads(rows); }
};

// With more queries than these nothing is packed, unless the caller names such a kernel: the tiles of a single head are
// full enough then.
inline constexpr int64_t most_packed_queries = 64;

}  // namespace fa3
