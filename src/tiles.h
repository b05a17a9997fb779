// A problem's tiles on a row of the table (ptx/work.h has the words).
#pragma once
#include "problem.h"
#include "row.h"
#include "work.h"

namespace fa3 {

// Kernels claim up to one tile too many for each thread block, in int32.
constexpr int64_t max_tiles = INT32_MAX - 65536;

Visible visible_of(const Problem& problem);

// Are the tiles, and the blocks of rows that are in no tile, few enough for the kernels' counters? Everything below
// takes only problems that fit, and that are not empty.
bool tiles_fit(const Problem& problem, const Row& row);

Tiles tiles_of(const Problem& problem, const Row& row);

// Blocks of rows that are in no tile, of all heads.
int64_t empty_blocks(const Tiles& tiles, const Row& row);

}  // namespace fa3
