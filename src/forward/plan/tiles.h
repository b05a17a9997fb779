// A problem's tiles on a row of the table (ptx/plan/work.h has the words).
#pragma once
#include "device/card.h"
#include "forward/candidate.h"
#include "plan/work.h"
#include "rules/attention.h"
#include "table/row.h"

namespace fa3 {

// Kernels claim up to one tile too many for each thread block, in int32.
constexpr int64_t max_tiles = INT32_MAX - 65536;

// Are rows and tiles, and the blocks of rows that are in no tile, few enough for the kernels' counters? Everything
// below takes only problems that fit, and that are not empty.
bool tiles_fit(const Candidate& candidate);

// With so many causal tiles for each multiprocessor, all multiprocessors end at about the same time, whichever the
// tiles are.
inline constexpr int64_t balanced = 4;

// Are causal sections so small that long and short tiles run beside each other (section_heads in tiles.cpp)? Then the
// last tiles should be claimed from the longest to the shortest. q_blocks: those of a head.
bool mixes_lengths(const Candidate& candidate, int64_t q_blocks, int64_t multiprocessors);

Tiles tiles_of(const Candidate& candidate, const Card& card);

// Blocks of rows that are in no tile, of all heads.
int64_t empty_blocks(const Tiles& tiles, const ForwardRow& row);

// Tickets for so many tiles, and so many slots behind them, in a workspace that is taken up to byte `begin`.
WorkspaceLayout place_parts(const Candidate& candidate, size_t begin, int64_t ticket_tiles, int64_t slots);

}  // namespace fa3
