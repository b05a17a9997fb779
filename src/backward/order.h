// In which order thread blocks of the backward pass take key blocks, and how these add to dQ (ptx/plan/backward_work.h
// has the words).
//
// Sections. Key blocks are taken section by section; of a section first block 0 of all its heads, then block 1 of all,
// and so on. Here with 4 blocks of keys a head and 2 heads a section:
//
//     taken      0   1   2   3   4   5   6   7  |  8   9  10  11  12  13  14  15  | 16 ...
//     section    0                              |  1                              |  2
//     head       0   1   0   1   0   1   0   1  |  2   3   2   3   2   3   2   3  |  4
//     block      0   0   1   1   2   2   3   3  |  0   0   1   1   2   2   3   3  |  0
//
// Beside its products, a thread block prepares the query rows (LSE and D) of the section `ahead` sections later, and
// rounds dQ of the section `behind` sections earlier, of each section the share of the block with its own number there.
// Passes do what is left at both ends. Here with 5 sections, ahead 1 and behind 2:
//
//                 pass before |  thread blocks of section         | pass after
//                             |    0      1      2      3      4  |
//     prepare rows of      0  |    1      2      3      4         |
//     products of             |    0      1      2      3      4  |
//     round dQ of             |                  0      1      2  |  3  4
//
// Tiles. A key block visits all query tiles that see it, and adds to the dQ of each. Below, a column is a key block and
// a row a query tile of one head, 4 of each and of the same size; the number is the turn in which the block can add to
// that tile, if all blocks begin together. In a fixed order (DqOrder) it waits there until the blocks before it have
// added.
//
//     any, no mask          downwards, no mask    downwards, Spread     downwards, causal     from_diagonal
//     no two at one tile    each waits for the    none waits            each waits            none waits
//                           block before it       * to second sums
//
//      t3   3  2  1  0       t3   0  1  2  3       t3   1* 2* 3* 0       t3   0  1  2  3      t3   3  2  1  0
//      t2   2  1  0  3       t2   1  2  3  4       t2   2* 3* 0  1       t2   1  2  3         t2   2  1  0
//      t1   1  0  3  2       t1   2  3  4  5       t1   3* 0  1  2       t1   2  3            t1   1  0
//      t0   0  3  2  1       t0   3  4  5  6       t0   0  1  2  3       t0   3               t0   0
//          b0 b1 b2 b3           b0 b1 b2 b3           b0 b1 b2 b3           b0 b1 b2 b3          b0 b1 b2 b3
//
// Downwards, block 0 is the first to add to each tile; from the diagonal, it is the last block that sees the tile.
#pragma once
#include "backward/backward.h"
#include "table/row.h"

namespace fa3 {

constexpr int64_t max_rows = INT32_MAX;  // query rows of all heads, tiles rounded up, are counted in int32

// How the query tiles that read a K/V head are divided. A part is some of the query heads (then ranges is 1), or a
// range of the tiles of one.
struct HeadParts {
  int64_t parts = 1, ranges = 1;  // of a K/V head, of a query head
  int64_t range_tiles;            // of Br rows, in a range

  // Query heads that a part reads.
  int64_t readers(int64_t heads_per_kv) const { return heads_per_kv * ranges / parts; }
};
// Tiles of Br rows that the key blocks of a K/V head visit of one query head: all of them, and the longest block.
struct Visits {
  int64_t all = 0, longest = 0;
};
Visits visits_of(const Visible& seen, int64_t key_blocks, const BackwardRow& row);

// What a key block takes beside these, in turns: if its head has one part, and if it has several. Several must not give
// more than so many key blocks in all, as their sums take memory.
inline constexpr int64_t block_turns = 2, part_turns = 5, most_part_blocks = 2112;

// tiles: those of a query head, of Br rows; key_blocks: those of a K/V head.
HeadParts parts_of(const BackwardProblem& problem, const BackwardRow& row, int64_t key_blocks, int64_t tiles);

// All but the counters, which are null: launch.cpp puts them into the workspace.
KeyOrder key_order_of(const BackwardProblem& problem, const BackwardRow& row, const HeadParts& parts,
                      int64_t key_blocks);

// The order of blocks that add nothing up: those of the kernel that computes dQ alone.
BlockOrder block_order_of(int64_t batch_heads, int64_t blocks, const Visible& seen);

}  // namespace fa3
