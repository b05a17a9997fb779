// The planner for the backward pass of varlen sequences: from lengths that only the device knows to a list of key
// blocks (backward_list.h). Plain C++, read by both sides: a thread block runs it on the device
// (backward/passes/plan_backward.cu), tests run the same on the host. How its loops run, `threads`, is what
// plan_forward.h says.
//
// The order: the key blocks of a sequence follow each other, as Q, dO and the sums of dQ are then in the L2 cache; from
// the first to the last, as under a causal mask the first has the most tiles, or the other way round where DqOrder says
// so. Sequences follow in groups, those whose blocks have the most tiles first, so that what comes last fills what is
// left.
#pragma once
#include <cstdint>

#include "backward_list.h"
#include "plan_forward.h"

namespace fa3 {

// Where the numbers of all sequences are kept.
struct BackwardRoom {
  int32_t *blocks, *first_tile, *longest_block;
};
constexpr BackwardRoom room_of(const PlanBackwardParams& p, const BackwardListMemory& list, BackwardPlanScratch& s) {
  const int32_t count = p.sequences;
  if (count <= BackwardPlanScratch::most_sequences) return {s.blocks, s.first_tile, s.longest_block};
  int32_t* const first_tile = list.numbers + (BackwardPlanScratch::groups * count + 4) / 4 * 4;
  return {list.numbers, first_tile, first_tile + (count + 4) / 4 * 4};
}

// The tiles that see any of the keys of a block.
constexpr QTiles tiles_of_block(const PlanBackwardParams& p, const Sequence& s, int32_t block) {
  const int32_t key = block * p.Bc;
  const Rows rows = visible_of(s, true, true, {0}).rows_of(key, key + p.Bc - 1);
  return {rows.begin / p.Br, (rows.end + p.Br - 1) / p.Br};
}
constexpr int32_t blocks_of(const PlanBackwardParams& p, const Sequence& s) { return (s.seqlen_k + p.Bc - 1) / p.Bc; }
constexpr int32_t tiles_of(const PlanBackwardParams& p, const Sequence& s) { return (s.seqlen_q + p.Br - 1) / p.Br; }

// So many numbers of tiles a sequence takes: one more than it has where its rows fill all of them. Then tiles of
// sequences and heads are not a power of two apart in memory. (Measured, H100, d 64, 4 x 4096 without a mask: 1.06
// times as fast so.)
constexpr int32_t numbered_tiles(const PlanBackwardParams& p, const Sequence& s) {
  return s.seqlen_q > 0 ? s.seqlen_q / p.Br + 1 : 0;
}

// Tiles of backward_tile_rows that are the share of each block, if the list has so many of them.
constexpr int32_t share_of(const Sequence& s, int32_t blocks) {
  const int32_t tiles = (s.seqlen_q + backward_tile_rows - 1) / backward_tile_rows;
  return blocks > 0 ? (tiles + blocks - 1) / blocks : 0;
}

// Where a block goes downwards from, as KeyBlockWork has it.
constexpr int32_t down_from(int32_t shift, int32_t block, const QTiles& tiles) {
  if (block >= (tiles.end - 1) >> shift) return tiles.end - 1;
  const int32_t start = ((block + 1) << shift) - 1;
  return start < tiles.begin ? tiles.end - 1 : start;
}

constexpr PlannedBlock planned_block(const PlanBackwardParams& p, int32_t spread_shift, const Sequence& s,
                                     int32_t first_tile, int32_t block, int32_t blocks) {
  const QTiles tiles = tiles_of_block(p, s, block);
  int32_t start = tiles.begin;
  if (goes_down(p.dq)) start = down_from(spread_shift, block, tiles);
  // If all rows see all keys, the blocks of a sequence would come to the same tile at once, and wait for the first
  // one's dQ: so they begin apart.
  else if (p.dq == DqOrder::any && s.left == no_bound && s.right == no_bound)
    start += static_cast<int32_t>(int64_t{block} * (tiles.end - tiles.begin) / blocks);
  const int32_t share = counts_blocks(p.window) ? 0 : share_of(s, blocks);
  return {s, block * p.Bc, first_tile, tiles.begin, tiles.end, start, block, blocks, share};
}

// Sorts numbers, those with the least key(number) first, by Batcher's odd-even merges, whose exchanges of a round do
// not depend on each other.
template <class Threads, class Key>
constexpr void sort(const Threads& threads, int32_t* numbers, int32_t count, Key key) {
  for (int32_t merged = 1; merged < count; merged *= 2)
    for (int32_t apart = merged; apart > 0; apart /= 2)
      threads.each(count - apart, [&](int32_t i) {
        const int32_t skipped = apart % merged;  // 0 in a merge's first round
        const bool is_lower = i >= skipped && (i - skipped) / apart % 2 == 0;
        if (!is_lower || i / (2 * merged) != (i + apart) / (2 * merged)) return;
        const int32_t lower = numbers[i], upper = numbers[i + apart];
        if (key(upper) < key(lower)) numbers[i] = upper, numbers[i + apart] = lower;
      });
}

// Takes sequences that share rows of q or of k off the list. A sequence whose rows no other one has stays.
template <class Threads>
constexpr void drop_overlapping(const Threads& threads, const PlanBackwardParams& p, const BackwardRoom& room,
                                const BackwardListMemory& list, BackwardPlanScratch& s) {
  constexpr int32_t overlaps = -1;  // in place of the longest block
  const int32_t count = p.sequences;
  int32_t* const by_row = room.blocks;
  for (int32_t side = 0; side < 2; side++) {
    const bool is_q = side == 0;
    const auto rows_of = [&](int32_t number) {
      const Sequence& sequence = list.sequences[number];
      const int32_t first = is_q ? sequence.q_batch * p.entry_rows_q + sequence.q_row
                                 : sequence.k_batch * p.entry_rows_k + sequence.k_row;
      return Range{first, first + (is_q ? sequence.seqlen_q : sequence.seqlen_k)};
    };
    threads.each(count, [&](int32_t i) { room.first_tile[i] = list.sequences[i].seqlen_q > 0; });
    threads.prefix_sums(room.first_tile, count, count, s.sums);
    threads.each(count, [&](int32_t i) {
      if (list.sequences[i].seqlen_q > 0) by_row[room.first_tile[i]] = i;
    });
    const int32_t nonempty = room.first_tile[count];
    sort(threads, by_row, nonempty, [&](int32_t number) { return rows_of(number).begin; });
    threads.each(1, [&](int32_t) {
      int32_t last = 0, end = 0;  // of those before, the one that ends last
      for (int32_t i = 0; i < nonempty; i++) {
        const int32_t number = by_row[i];
        const Range rows = rows_of(number);
        if (rows.begin < end) room.longest_block[number] = room.longest_block[last] = overlaps;
        if (rows.end > end) last = number, end = rows.end;
      }
    });
  }
  threads.each(count, [&](int32_t i) {
    if (room.longest_block[i] != overlaps) return;
    room.longest_block[i] = list.sequences[i].seqlen_q = list.sequences[i].seqlen_k = 0;
  });
}

// The tiles before each sequence, and its key blocks, which are in a group with those of sequences whose longest blocks
// are about as long. False if there is no room for so many.
template <class Threads>
constexpr bool count_work(const Threads& threads, const PlanBackwardParams& p, const BackwardRoom& room,
                          const BackwardListMemory& list, BackwardPlanScratch& s) {
  const int32_t count = p.sequences, groups = groups_of(p.sequences);
  const uint32_t each = UINT32_MAX / static_cast<uint32_t>(s.longest);
  threads.each(count, [&](int32_t i) {
    const uint64_t shorter = static_cast<uint32_t>(s.longest - room.longest_block[i]) * each;
    const auto group = static_cast<int32_t>((shorter * shorter >> 32) * static_cast<uint32_t>(groups) >> 32);
    room.first_tile[i] = numbered_tiles(p, list.sequences[i]);
    const int32_t blocks = blocks_of(p, list.sequences[i]);
    for (int32_t g = 0; g < groups; g++) room.blocks[g * count + i] = g == group ? blocks : 0;
  });
  threads.prefix_sums(room.first_tile, count, p.most_tiles + 1, s.sums);
  threads.prefix_sums(room.blocks, groups * count, p.most_blocks + 1, s.sums);
  return room.first_tile[count] <= p.most_tiles && room.blocks[groups * count] <= p.most_blocks;
}

template <class Threads>
constexpr void plan_backward(const Threads& threads, const PlanBackwardParams& p, int32_t spread_shift,
                             const BackwardListMemory& list, BackwardPlanScratch& s) {
  const int32_t count = p.sequences, groups = groups_of(p.sequences);
  const BackwardRoom room = room_of(p, list, s);
  threads.each(1, [&](int32_t) { s.longest = 1; });
  threads.each(count, [&](int32_t i) {
    const Sequence sequence =
        seen_part(sequence_at(p.lengths, p.total_q, p.total_k, p.window, p.cuts, i));
    const int32_t blocks = blocks_of(p, sequence);
    // With bounds on both sides the longest is somewhere in the middle, or about as long as that one.
    int32_t longest = 0;
    if (blocks > 0) {
      const QTiles first = tiles_of_block(p, sequence, 0), middle = tiles_of_block(p, sequence, (blocks - 1) / 2);
      const int32_t first_length = first.end - first.begin, middle_length = middle.end - middle.begin;
      longest = first_length > middle_length ? first_length : middle_length;
    }
    list.sequences[i] = sequence;
    room.longest_block[i] = longest;
    threads.raise(s.longest, longest);
  });

  // Only lengths that overlap have more tiles, or blocks, than there may be.
  if (!count_work(threads, p, room, list, s)) {
    drop_overlapping(threads, p, room, list, s);
    count_work(threads, p, room, list, s);
  }
  const int32_t blocks = room.blocks[groups * count];
  threads.each(blocks, [&](int32_t number) {
    const int32_t place = sequence_of_tile(room.blocks, groups * count, number);
    const int32_t sequence = place - place / p.sequences * count;
    const int32_t first = room.blocks[place], all = room.blocks[place + 1] - first;
    const int32_t block = p.dq == DqOrder::from_diagonal ? first + all - 1 - number : number - first;
    list.blocks[number] =
        planned_block(p, spread_shift, list.sequences[sequence], room.first_tile[sequence], block, all);
  });
  threads.each(p.most_tiles, [&](int32_t number) {
    const int32_t sequence = sequence_of_tile(room.first_tile, count, number);
    const int32_t tile = number - room.first_tile[sequence];
    const bool exists = tile < tiles_of(p, list.sequences[sequence]);
    list.tiles[number] = {exists ? sequence : -1, exists ? tile : 0};
  });
  threads.each(1, [&](int32_t) {
    *list.counts = {blocks, Divisor::of(blocks * p.section_heads)};
  });
}

}  // namespace fa3
