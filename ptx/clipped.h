// Clipped tensor maps. TMA knows where a tensor ends, but behind the end of a sequence in it lie the rows of another
// one. These maps end where the sequence does: TMA loads zeros behind it (0 times a neighbour's NaN would be NaN), and
// stores nothing there. Plain C++, read by both sides.
//
// Such a map has two dimensions for rows, both with the stride of a row. The first one has clipped_rows of them, the
// other one those of the tensor. For row r of a sequence of n rows, of which the first one behind is row `end` of the
// tensor, the coordinates are clipped_rows - n + r and `end`. So the first dimension ends where the sequence does. The
// sum of both is where the row lies, but for clipped_rows rows too many.
//
// These are taken back in two ways. A map for stores has an address that lies so far before the tensor. A map for loads
// must have an address where there is memory. So it has a third dimension, of which the coordinate is clipped_rows and
// the stride 2^34 bytes less a row: addresses have 64 bits, and 2^30 times 2^34 is beyond them.
#pragma once
#include <cstdint>

namespace fa3 {

inline constexpr int32_t clipped_rows = 1 << 30;
inline constexpr uint64_t clipped_stride = uint64_t(1) << 34;
static_assert(clipped_rows * clipped_stride == 0);

// Where rows lie, as the coordinates of a tensor map count: the first one, the head, and the batch entry or, in a
// clipped map, `end`.
struct Place {
  int32_t row, head, batch;
};

// In a clipped map: rows from `row` on, of a sequence of n rows that begins at row `first` of the tensor.
constexpr Place clipped(int32_t first, int32_t n, int32_t row, int32_t head) {
  return {clipped_rows - n + row, head, first + n};
}

}  // namespace fa3
