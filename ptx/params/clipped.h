// Clipped tensor maps. TMA knows where a tensor ends, but behind the end of a sequence in it lie the rows of another
// one. These maps end where the sequence does: TMA loads zeros behind it (0 times a neighbour's NaN would be NaN), and
// stores nothing there. Plain C++, read by both sides.
//
// Such a map has two dimensions for rows. The first one has the stride of a row, and clipped_rows of them; the other
// one has a stride of which those of rows and of batch entries are multiples (ClippedSteps), mostly that of a row. For
// row r of a sequence of n rows the coordinates are clipped_rows - n + r, and where the first row behind the sequence
// lies, in such steps. So the first dimension ends where the sequence does. Both together are where the row lies, but
// for clipped_rows rows too many.
//
// A third dimension takes these back: its coordinate is clipped_rows, and its stride a multiple of 2^34 bytes less a
// row. Addresses have 64 bits, and 2^30 times 2^34 is beyond them. So a map begins where its tensor does, wherever that
// is and however far apart rows are. (Seen on an H100 and an H200: loads and stores, at 0x302000000 and above 2^40, of
// rows 512 bytes to 96 GB apart.)
#pragma once
#include <cstdint>

namespace fa3 {

inline constexpr int32_t clipped_rows = 1 << 30;
inline constexpr uint64_t clipped_stride = uint64_t(1) << 34;
static_assert(clipped_rows * clipped_stride == 0);

// The stride of the third dimension, for rows that lie so many bytes apart.
constexpr uint64_t stride_back(uint64_t row_bytes) { return clipped_stride - row_bytes % clipped_stride; }

// Where rows lie, as the coordinates of a tensor map count: the first one, the head, and the batch entry or, in a
// clipped map, where the sequence ends.
struct Place {
  int32_t row, head, batch;
};

// How far rows, and batch entries, are from the next ones.
struct ClippedSteps {
  int32_t row, batch;

  // Of row `row` of a batch entry.
  constexpr int32_t at(int32_t entry, int32_t at_row) const { return entry * batch + at_row * row; }
};

// Rows from `row` on, of a sequence of n rows that ends there.
constexpr Place clipped(int32_t end, int32_t n, int32_t row, int32_t head) {
  return {clipped_rows - n + row, head, end};
}

}  // namespace fa3
