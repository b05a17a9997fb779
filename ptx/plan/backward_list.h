// The key blocks of a backward call whose sequences have lengths of their own (sequence.h): the list that the device
// makes of them (plan_backward.h), what the host says for that, and how many there may be. Plain C++, read by both
// sides.
//
// A sequence is cut down first to the rows that see a key, and to the keys that a row sees (seen_part). So each key
// block has query tiles, each query tile has key blocks, and nothing else of the tensors is read. What is left over has
// gradients of 0, which a pass writes (Unseen).
#pragma once
#include <cstdint>

#include "backward_work.h"
#include "divisor.h"
#include "sequence.h"

namespace fa3 {

// A key block of a sequence, for all heads of K and V, in a line of 64 bytes. Where heads of K and V are counted below,
// each is counted once for each of its parts (backward_work.h).
struct alignas(16) PlannedBlock {
  Sequence sequence;   // of which only what is seen is left
  int32_t key;         // the first
  int32_t first_tile;  // tile 0 of the sequence, among the tiles of Br rows that one head has of all sequences
  int32_t first, end;  // the tiles of the sequence that see any of the keys,
  int32_t start;       // and the one to begin with
  int32_t block, blocks;  // its number among the sequence's blocks, and how many there are in the list
  int32_t share;  // so many of the sequence's tiles of backward_tile_rows are the share of each; or 0, see below
};
static_assert(sizeof(PlannedBlock) == 64);

// The share of a block (backward_work.h): tiles of its sequence. Under bounds on both sides (share is 0) a block has
// the tiles for which it is the last of its sequence, as far as the bound on the right tells: then no block after it
// adds to their dQ.
constexpr QTiles share_of(const PlannedBlock& block, int32_t Bc) {
  const int32_t tiles = (block.sequence.seqlen_q + backward_tile_rows - 1) / backward_tile_rows;
  if (block.share == 0) {
    const int32_t right = block.sequence.right;
    const auto before = [&](int32_t key) { return clamped((key - right) / backward_tile_rows, 0, tiles); };
    return {before(block.key), block.block == block.blocks - 1 ? tiles : before(block.key + Bc)};
  }
  const int32_t begin = block.block * block.share, end = begin + block.share;
  return {begin < tiles ? begin : tiles, end < tiles ? end : tiles};
}

// Which tile of which sequence one of the tiles of Br rows is that a head has of all sequences.
struct PlannedTile {
  int32_t sequence, tile;  // sequence < 0: of none
};

// How many key blocks there are: of each head of K and V; and of the heads of a section, which come before those of the
// next section (section_heads).
struct BlockCounts {
  int32_t blocks;
  Divisor section;  // 1 if there are none
};
static_assert(sizeof(BlockCounts) == 16);

// What thread blocks take, one after the other: section by section of heads of K and V, of each all entries of the
// list, and of each of these all heads of the section. `heads`: of a section.
struct ListedBlock {
  int32_t entry, head;
};
constexpr ListedBlock listed_block(const BlockCounts& counts, const Divisor& heads, int32_t number) {
  const int32_t section = number / counts.section, within = number - section * counts.section;
  const int32_t entry = within / heads;
  return {entry, section * heads + within - entry * heads};
}

// Is each block counted for itself when it has added all its dQ, and not all blocks of a sequence together?
constexpr bool counts_blocks(const Window& window) { return window.left >= 0 && window.right >= 0; }

// The entry of block 0 of the sequence that an entry is of.
constexpr int32_t first_block_entry(DqOrder dq, int32_t entry, int32_t block) {
  return dq == DqOrder::from_diagonal ? entry + block : entry - block;
}

// What the host says for all lengths.
struct PlanBackwardParams {
  Lengths lengths;
  Window window;
  Cuts cuts;
  int32_t total_q, total_k;            // rows of tensors of all sequences; 0 where they are batched
  int32_t entry_rows_q, entry_rows_k;  // rows of a batch entry
  Divisor Br, Bc;
  Divisor sequences;       // lengths.batch * cuts.each, at least 1
  int32_t most_tiles, most_blocks;  // so many tiles and key blocks a head has of all of them, at most
  int32_t section_heads;   // of K and V
  DqOrder dq;              // with from_diagonal the key blocks of a sequence follow each other from the last one on
};

// Where the plan goes, in device memory.
struct BackwardListMemory {
  BlockCounts* counts;
  PlannedBlock* blocks;   // most_blocks of them
  PlannedTile* tiles;     // most_tiles
  Sequence* sequences;    // of which only what is seen is left
  int32_t* numbers;       // only where these do not fit into BackwardPlanScratch, else null
};

// What the pass takes.
struct PlanBackwardPassParams {
  PlanBackwardParams call;
  BackwardListMemory list;
  int32_t spread_shift;  // of orders that go down: as in Spread; 31: all begin at their last tile
};

// What the thread block needs beside its parameters, in shared memory. Its contents before do not matter.
struct BackwardPlanScratch {
  static constexpr int32_t most_sequences = 4096, groups = 4;
  // Prefix sums are made in steps of 16 bytes.
  alignas(16) int32_t blocks[groups * most_sequences + 4];  // before each sequence of a group, and in groups before it
  alignas(16) int32_t first_tile[most_sequences + 4];
  int32_t longest_block[most_sequences];  // in tiles
  int32_t sums[32];
  int32_t longest;
};
// The same numbers for more sequences: blocks, first tiles, longest blocks.
constexpr int64_t numbers_beyond_scratch(int64_t sequences) {
  const auto in_steps = [](int64_t count) { return (count + 4) / 4 * 4; };  // and one more
  if (sequences <= BackwardPlanScratch::most_sequences) return 0;
  return in_steps(BackwardPlanScratch::groups * sequences) + 2 * in_steps(sequences);
}

// In one piece of device memory, aligned to 64 bytes.
constexpr int64_t list_bytes(const PlanBackwardParams& p) {
  const int64_t sequences = int32_t{p.sequences};
  return 64 + 64 * int64_t{p.most_blocks} + 32 * sequences + (8 * int64_t{p.most_tiles} + 15) / 16 * 16 +
         4 * numbers_beyond_scratch(sequences);
}
inline BackwardListMemory list_at(void* memory, const PlanBackwardParams& p) {
  unsigned char* bytes = static_cast<unsigned char*>(memory);
  const int64_t sequences = int32_t{p.sequences};
  BackwardListMemory list{};
  list.counts = reinterpret_cast<BlockCounts*>(bytes), bytes += 64;
  list.blocks = reinterpret_cast<PlannedBlock*>(bytes), bytes += 64 * int64_t{p.most_blocks};
  list.sequences = reinterpret_cast<Sequence*>(bytes), bytes += 32 * sequences;
  list.tiles = reinterpret_cast<PlannedTile*>(bytes), bytes += (8 * int64_t{p.most_tiles} + 15) / 16 * 16;
  if (numbers_beyond_scratch(sequences) > 0) list.numbers = reinterpret_cast<int32_t*>(bytes);
  return list;
}

// A bound that follows from what the host knows: the tiles or blocks of `size` rows of so many sequences of up to `max`
// rows each, which lie in so many rows together.
constexpr int64_t most_pieces(int64_t sequences, int64_t max, int64_t rows, int64_t size) {
  const int64_t by_max = sequences * ((max + size - 1) / size);
  const int64_t nonempty = sequences < rows ? sequences : rows, by_rows = (rows - nonempty) / size + nonempty;
  return by_max < by_rows ? by_max : by_rows;
}
// The part of the sequence that is seen: its rows that see a key, and its keys that a row sees; or none of either.
constexpr Sequence seen_part(Sequence s) {
  Sequence none = s;
  none.seqlen_q = none.seqlen_k = 0;
  if (s.seqlen_q <= 0 || s.seqlen_k <= 0) return none;
  const Rows rows = visible_of(s, true, true, {0}).rows_of(0, s.seqlen_k - 1);
  if (rows.begin >= rows.end || rows.begin >= s.seqlen_q || rows.end <= 0) return none;
  s = with_rows(s, rows.begin, rows.end);
  const Keys keys = visible_of(s, true, true, {0}).any(0, s.seqlen_q - 1);
  if (keys.none()) return none;
  s.k_row += keys.begin, s.seqlen_k = keys.end - keys.begin;
  if (s.left != no_bound) s.left += keys.begin;
  if (s.right != no_bound) s.right -= keys.begin;
  return s;
}

// Rows of q or k of a sequence of the call, as rows of their batch entry: all that are its own, also behind those in
// use; those in use; and of these the ones that are seen, one after the other. The others' gradients are 0.
struct Unseen {
  int32_t batch;
  Range all, used, seen;

  // How many are not seen; and of these the n-th.
  constexpr int32_t count() const { return seen.begin - all.begin + all.end - seen.end; }
  constexpr int32_t row(int32_t n) const {
    const int32_t before = seen.begin - all.begin;
    return n < before ? all.begin + n : seen.end + n - before;
  }
};
struct UnseenRows {
  Unseen q, k;
};
constexpr UnseenRows unseen_rows(const PlanBackwardParams& p, int32_t b) {
  const Lengths& lengths = p.lengths;
  const Sequence whole = sequence_at(lengths, p.total_q, p.total_k, p.window, b);
  const auto all = [b](const int32_t* cu, int32_t total, int32_t max, int32_t entry_rows) {
    if (!cu) return Range{0, entry_rows};
    return rows_of_sequence(true, {cu[b], cu[b + 1]}, total, max, 0, false);
  };
  Sequence seen = seen_part(whole);
  if (p.cuts.chunk && seen.seqlen_q > 0) {
    // Of chunks the first with a query is seen from its first key on.
    seen = whole;
    const int32_t offset = whole.seqlen_k - whole.seqlen_q;
    if (offset < 0) seen = with_rows(whole, -offset, whole.seqlen_q);
    const int32_t before = offset < 0 ? 0 : offset / p.cuts.chunk * p.cuts.chunk;
    seen.k_row += before, seen.seqlen_k -= before;
  }
  return {{whole.q_batch, all(lengths.cu_q, p.total_q, lengths.max_q, p.entry_rows_q),
           {whole.q_row, whole.q_row + whole.seqlen_q}, {seen.q_row, seen.q_row + seen.seqlen_q}},
          {whole.k_batch, all(lengths.cu_k, p.total_k, lengths.max_k, p.entry_rows_k),
           {whole.k_row, whole.k_row + whole.seqlen_k}, {seen.k_row, seen.k_row + seen.seqlen_k}}};
}

}  // namespace fa3
