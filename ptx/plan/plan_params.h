// What the planner for varlen sequences (plan_forward.h) is told, what it writes, and the memory that it needs. Plain
// C++, read by both sides.
//
// Grid and workspace must not depend on lengths: how many entries and slots there may be follows from what the host
// knows (most_tiles, most_slots). Whatever the lengths are, the list keeps within these.
#pragma once
#include <cstdint>

#include "divisor.h"
#include "piece_costs.h"
#include "planned_piece.h"

namespace fa3 {

// What the host says for all lengths. Numbers of tiles and slots are those of one head.
struct PlanForwardParams {
  Lengths lengths;
  Window window;
  Cuts cuts;
  int32_t total_q, total_k;  // rows of tensors of all sequences; 0 where they are batched
  Packing packing;
  Divisor Br, Bc;
  uint8_t weight[4];       // of a K/V block in a tile in which 1, 2, .. warpgroups have rows, in 64ths: such a tile
                           // takes less time. What is called a length here is in blocks of a tile with the most rows
  int32_t heads;           // of a batch entry, as tiles count them: with packed heads those of K and V
  Divisor multiprocessors;  // that share the pieces
  int32_t unit;            // a constant, in K/V blocks; or 0: from what pieces cost
  int32_t least_unit;      // otherwise: shorter parts than 1 << least_unit are not worth their boundaries; 1 at least
  int32_t most_parts;      // of a tile, up to 127; 1: nothing is split
  int32_t most_tiles, most_slots;
  Costs together, behind;  // where every multiprocessor has one piece at most, and where pieces follow each other
  int32_t among, many;     // a piece's own first and last steps where keys are few and pieces more than so many; or 0
  int32_t memory_each;     // of `together`: a block takes at least so many 1024ths of a nanosecond for each piece, as
                           // few queries wait for memory
  int32_t write_length;    // what writing a part takes where pieces follow each other, in 16ths of a block,
  int32_t read_length;     // and reading one; or 0, if that comes behind all pieces
  int32_t packed_rows;     // that the last of a tile's parts adds up, with packed heads; otherwise 0

  int32_t section_keys;    // K and V of so many keys stay in the L2 cache beside each other,
  int32_t section_rows;    // where Q and O of a tile of all heads count as so many keys

  Divisor sequences;       // lengths.batch * cuts.each
  int32_t most_each;       // INT32_MAX / sequences
};

// Where the plan goes, in device memory.
struct PlannedPieces {
  PlannedCounts* counts;
  PlannedPiece* entries;  // most_tiles + most_slots of them
  Sequence* sequences;    // these two only where they do not fit into PlanScratch, else null
  int32_t* tiles;
};

// What the pass takes.
struct PlanForwardPassParams {
  PlanForwardParams call;
  PlannedPieces plan;
};

// All tiles of a call, by the lengths that a unit makes of them: class c has the pieces of more than c and up to c + 1
// eighths of the unit. Of each class the pieces that are whole tiles and those that are parts, and the K/V blocks.
struct Trials {
  static constexpr int32_t count = 64, classes = 8;
  using OfClasses = int32_t[count][classes];
  alignas(16) OfClasses whole, parts, blocks;
  alignas(16) OfClasses all, time;      // all: pieces of all heads; time: of a piece
  int32_t unit[count];
  int32_t longest_whole[count], longest_part[count];
  int32_t pieces[count], slots[count];  // pieces: of all heads
  int32_t longest[count];               // time of the longest piece
  int32_t least[count], share[count];   // of the time until all are done, at least
};

// What the thread block needs beside its parameters, in shared memory. Its contents before do not matter.
struct PlanScratch {
  static constexpr int32_t most_sequences = 4096, groups = 4, buckets = 512, most_items = 64;
  Sequence sequences[most_sequences];
  // Prefix sums are made in steps of 16 bytes.
  alignas(16) int32_t tiles[groups * most_sequences + 1];  // before each sequence of a group, and in groups before it
  int32_t longest_tile[most_sequences];
  alignas(16) int32_t count[buckets + 1];  // of entries of about the same length
  int32_t item_length[most_items], item_count[most_items], item_blocks[most_items];  // tiles of about the same length:
                                                                                      // the longest, and all together
  Trials trials;
  int32_t sums[32], totals[3 * 32];

  int32_t all_tiles, longest, work;  // work: K/V blocks of all tiles
  int32_t slots, next_slot, next_entry;
  int32_t tried;       // were units tried?
  int32_t best, tail;  // the best trial, and the best number of parts for the tail (TimeOf in plan_unit.h)
  int32_t has_tail;                // is that what is taken?
};

// Bounds that follow from what the host knows. max: of a sequence; total: of the tensors that hold all sequences, below
// 0 where they are batched. Rows are those of tiles: with packed heads a query has several. each: Cuts::each.
constexpr int64_t most_tiles(int64_t batch, int64_t max_rows, int64_t total_rows, int64_t Br, int64_t each = 1) {
  // n >= 1 rows have (n - 1) / Br + 1 tiles, cut into m pieces at most (n - m) / Br + m.
  const int64_t cut = each < max_rows ? each : max_rows;
  const int64_t by_max = batch * ((max_rows - cut) / Br + cut);
  if (total_rows < 0) return by_max;
  const int64_t sequences = batch * each < total_rows ? batch * each : total_rows;
  const int64_t by_total = (total_rows - sequences) / Br + sequences;
  return by_max < by_total ? by_max : by_total;
}
// So many parts for each multiprocessor, at most: what fa3.h promises for the workspace. And so many of each tile, of
// which a part has 1 << least_unit K/V blocks or more.
inline constexpr int64_t most_parts_each = 3;
constexpr int64_t most_slots(int64_t multiprocessors, int64_t heads, int64_t tiles, int64_t blocks, int64_t least_unit,
                             int64_t most_parts) {
  const int64_t by_all = most_parts_each * multiprocessors / heads;
  if (by_all < 2 || most_parts < 2 || blocks >> least_unit < 2) return 0;
  const int64_t by_blocks = ((blocks - 1) >> least_unit) + 1, parts = by_blocks < most_parts ? by_blocks : most_parts;
  return by_all / parts < tiles ? by_all : tiles * parts;
}
// With a constant unit of so many keys each tile has the parts of all the keys that it sees; units: of which it sees
// keys, at most. tiles_each: of a sequence, at most. total_k: of all sequences, below 0 where these are batched.
constexpr int64_t most_constant_slots(int64_t tiles, int64_t tiles_each, int64_t units, int64_t total_k, int64_t unit,
                                      int64_t most_parts) {
  const int64_t parts = units < most_parts ? units : most_parts;
  if (parts < 2) return 0;
  const int64_t by_tiles = tiles * parts;
  if (total_k < 0) return by_tiles;
  // Sequences of n > unit keys, which have (n - 1) / unit + 1 parts.
  const int64_t split = total_k / (unit + 1), by_total = tiles_each * ((total_k - split) / unit + split);
  return by_tiles < by_total ? by_tiles : by_total;
}
constexpr int64_t most_entries(int64_t tiles, int64_t slots) { return tiles + slots; }

// In one piece of device memory, aligned to 64 bytes: counts, entries, and what only the pass reads.
constexpr int64_t plan_bytes(const PlanForwardParams& p) {
  const int64_t sequences = int32_t{p.sequences}, entries = most_entries(p.most_tiles, p.most_slots);
  const bool fit = sequences <= PlanScratch::most_sequences;
  return 64 * (1 + entries) + (fit ? 0 : 32 * sequences + 4 * (PlanScratch::groups + 1) * sequences + 4);
}
inline PlannedPieces plan_at(void* memory, const PlanForwardParams& p) {
  unsigned char* const bytes = static_cast<unsigned char*>(memory);
  PlannedCounts* const counts = reinterpret_cast<PlannedCounts*>(bytes);
  PlannedPiece* const entries = reinterpret_cast<PlannedPiece*>(bytes + 64);
  if (p.sequences <= PlanScratch::most_sequences) return {counts, entries, nullptr, nullptr};
  Sequence* const sequences = reinterpret_cast<Sequence*>(entries + most_entries(p.most_tiles, p.most_slots));
  return {counts, entries, sequences, reinterpret_cast<int32_t*>(sequences + p.sequences)};
}

}  // namespace fa3
