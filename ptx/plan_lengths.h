// The planner for packed lengths (sequence.h): from lengths that only the device knows to a list of pieces (Planned in
// work.h), the longest first. Plain C++, read by both sides: a thread block runs it on the device, tests and fa3-bench
// run the same on the host.
//
// One number decides what is split: the unit. A tile with more K/V blocks than the unit becomes parts of about the same
// length, none longer than the unit. Small units balance better and cost more, as every part is written and read. All
// units that cut the longest tile into 1, 2, 3, .. parts are tried: how long would the multiprocessors take for what
// each makes of all tiles? Or the unit is a constant, for a caller who wants that a sequence's bits do not depend on
// what it is batched with; a sequence of several query blocks has so many pieces anyway, and its unit is so many times
// as long.
//
// Grid and workspace must not depend on lengths: how many entries and slots there may be follows from what the host
// knows (most_tiles, most_slots). Whatever the lengths are, the list keeps within these.
//
// The steps are loops whose rounds do not depend on each other: over sequences, over tiles, over pairs of a trial and a
// bucket of lengths, over trials. `threads` says how they run:
//   each(count, f)              f(0) .. f(count - 1), in any order or at once; all have ended when it returns
//   add(sum, n)                 sum += n as one step, from inside such rounds; returns what the sum was before
//   raise(largest, n)           largest = max(largest, n), likewise
//   prefix_sums(x, count, most) x[i] becomes the sum of all before it, or `most` if that is less; x[count] that of all
// What is read outside of rounds is the same for all threads.
#pragma once
#include <cstdint>

#include "piece_costs.h"
#include "planned.h"

namespace fa3 {

// On the host: one after the other.
struct InTurn {
  template <class F>
  constexpr void each(int32_t count, F f) const {
    for (int32_t i = 0; i < count; i++) f(i);
  }
  template <class T>
  constexpr T add(T& sum, T n) const {
    const T before = sum;
    sum += n;
    return before;
  }
  constexpr void raise(int32_t& largest, int32_t n) const { largest = n > largest ? n : largest; }
  constexpr void prefix_sums(int32_t* x, int32_t count, int32_t most) const {
    int32_t sum = 0;
    for (int32_t i = 0; i <= count; i++) {
      const int32_t own = i < count ? x[i] : 0;
      x[i] = sum;
      sum = own < most - sum ? sum + own : most;
    }
  }
};

// What the host says for all lengths. Numbers of tiles and slots are those of one head.
struct PlanLengthsParams {
  Lengths lengths;
  Window window;
  int32_t total_q, total_k;  // rows of tensors of all sequences; 0 where they are batched
  Packing packing;
  int32_t Br, Bc;
  int32_t heads;            // of a batch entry, as tiles count them: with packed heads those of K and V
  int32_t multiprocessors;  // that share the pieces
  int32_t grain;            // of the list, in K/V blocks; all lengths of tiles and pieces below are in grains
  int32_t unit;             // a constant, or 0: from what pieces cost
  int32_t least_unit;       // otherwise: shorter parts are not worth their boundaries
  int32_t most_parts;       // of a tile, up to 127; 1: nothing is split
  int32_t most_tiles, most_slots;
  Costs together, behind;   // where every multiprocessor has one piece at most, and where pieces follow each other
  int32_t among, many;      // a piece's own first and last steps where keys are few and pieces more than so many; or 0
  int64_t block_bytes;      // of a K/V block, where these come from memory too slowly for few queries; otherwise 0
  double all_bytes;         // of all K/V blocks, at most
  int32_t packed_rows;      // that the last of a tile's parts adds up, with packed heads; otherwise 0
};

// Where the plan goes, in device memory.
struct LengthsPlan {
  Sequence* sequences;  // batch of them
  int32_t* first_tile;  // batch + 1 numbers: sequence b has the tiles first_tile[b] .. first_tile[b + 1] - 1
  Planned* entries;     // most_tiles + most_slots of them
  PlannedCounts* counts;
};

// What the pass takes.
struct PlanLengthsPassParams {
  PlanLengthsParams call;
  LengthsPlan plan;
};

// In one piece of device memory, aligned to 64 bytes: the counts, the entries, and what only the pass reads.
constexpr int64_t plan_bytes(const PlanLengthsParams& p) {
  return 64 * (int64_t{1} + p.most_tiles + p.most_slots) + 32 * int64_t{p.lengths.batch} + 4 * (p.lengths.batch + 1);
}
inline LengthsPlan plan_at(void* memory, const PlanLengthsParams& p) {
  unsigned char* const bytes = static_cast<unsigned char*>(memory);
  Planned* const entries = reinterpret_cast<Planned*>(bytes + 64);
  Sequence* const sequences = reinterpret_cast<Sequence*>(entries + p.most_tiles + p.most_slots);
  return {sequences, reinterpret_cast<int32_t*>(sequences + p.lengths.batch), entries,
          reinterpret_cast<PlannedCounts*>(bytes)};
}

// All pieces that a unit makes, by their lengths: class c has those of more than c and up to c + 1 eighths of the unit.
struct Trial {
  static constexpr int32_t classes = 8;
  int64_t pieces[classes], parts[classes], grains[classes], slots;
};

// What the thread block needs beside that, in shared memory. Its contents before do not matter.
struct PlanScratch {
  static constexpr int32_t buckets = 512, most_trials = Listed::most_packed_parts;
  int32_t count[buckets + 1];  // of tiles, then of entries of about the same length
  int64_t grains[buckets];     // of the tiles
  Trial trials[most_trials];   // trial i cuts the longest tile into i + 1 parts
  int64_t times[most_trials];
  int64_t slots;
  int32_t longest, longest_piece, unit;
  int64_t whole_time, time;    // predicted, with all tiles whole and as planned; 0 with a constant unit
};

// Bounds that follow from what the host knows. max: of a sequence; total: of the tensors that hold all sequences, below
// 0 where they are batched. Rows are those of tiles: with packed heads a query has several.
constexpr int64_t most_tiles(int64_t batch, int64_t max_rows, int64_t total_rows, int64_t Br) {
  const int64_t by_max = batch * ((max_rows + Br - 1) / Br);
  if (total_rows < 0) return by_max;
  // A sequence of n >= 1 rows has (n - 1) / Br + 1 tiles.
  const int64_t sequences = batch < total_rows ? batch : total_rows;
  const int64_t by_total = (total_rows - sequences) / Br + sequences;
  return by_max < by_total ? by_max : by_total;
}
// So many parts for each multiprocessor, at most: what fa3.h promises for the workspace.
inline constexpr int64_t most_parts_each = 3;
constexpr int64_t most_slots(int64_t multiprocessors, int64_t heads) {
  const int64_t slots = most_parts_each * multiprocessors / heads;
  return slots < 2 ? 0 : slots;
}
// With a constant unit. A sequence whose tiles have up to n grains has q query blocks and the unit u q. Its split tiles
// have n > u q, so q <= (n - 1) / u, and up to (n - 1) / (u q) + 1 parts each, which are 2 (n - 1) / u in all.
constexpr int64_t most_constant_slots(int64_t batch, int64_t max_k, int64_t total_k, int64_t Bc, int64_t grain,
                                      int64_t unit) {
  const int64_t keys = Bc * grain, grains = (max_k + keys - 1) / keys;
  const int64_t by_max = grains == 0 ? 0 : batch * 2 * ((grains - 1) / unit);
  const int64_t by_total = total_k < 0 ? by_max : 2 * (total_k / keys / unit);
  return by_max < by_total ? by_max : by_total;
}
constexpr int64_t most_entries(int64_t tiles, int64_t slots) { return tiles + slots; }

// A tile of the plan. Its length is in grains.
struct PlannedTile {
  int32_t sequence, q_block, q_blocks;  // q_blocks: of the sequence
  int32_t begin, length;
};

constexpr int32_t query_blocks(const PlanLengthsParams& p, const Sequence& sequence) {
  return static_cast<int32_t>((p.packing.rows(sequence.seqlen_q) + p.Br - 1) / p.Br);
}

constexpr Blocks tile_blocks(const PlanLengthsParams& p, const Sequence& sequence, int32_t q_block) {
  return tile_blocks(visible_of(sequence, true, true, p.packing), q_block * p.Br, p.Br, p.Bc);
}

constexpr PlannedTile planned_tile(const PlanLengthsParams& p, const LengthsPlan& plan, int32_t number) {
  // The last sequence that begins at or before the tile; those without rows begin where the next one does.
  int32_t sequence = 0;
  for (int32_t end = p.lengths.batch; end - sequence > 1;) {
    const int32_t middle = sequence + (end - sequence) / 2;
    if (plan.first_tile[middle] <= number) sequence = middle;
    else end = middle;
  }
  const Sequence& its = plan.sequences[sequence];
  const int32_t q_block = number - plan.first_tile[sequence];
  const Blocks blocks = tile_blocks(p, its, q_block);
  const int32_t begin = blocks.begin / p.grain;
  return {sequence, q_block, query_blocks(p, its), begin, (blocks.end + p.grain - 1) / p.grain - begin};
}

constexpr int32_t parts_of(const PlanLengthsParams& p, int64_t length, int64_t unit) {
  if (length <= unit) return 1;
  const int64_t parts = (length + unit - 1) / unit;
  return static_cast<int32_t>(parts < p.most_parts ? parts : p.most_parts);
}
constexpr int32_t parts_of(const PlanLengthsParams& p, const PlannedTile& tile, int32_t unit) {
  return parts_of(p, tile.length, p.unit ? int64_t{unit} * tile.q_blocks : unit);
}

// Where the part begins in the tile, and where the one before ends.
constexpr int32_t begin_of_part(const PlannedTile& tile, int32_t part, int32_t parts) {
  return tile.length * part / parts;
}
constexpr int32_t length_of_part(const PlannedTile& tile, int32_t part, int32_t parts) {
  return begin_of_part(tile, part + 1, parts) - begin_of_part(tile, part, parts);
}

// The longest are in bucket 0.
constexpr int32_t bucket_of(int32_t length, int32_t longest) {
  const int32_t width = (longest + PlanScratch::buckets - 1) / PlanScratch::buckets;
  return PlanScratch::buckets - 1 - (length - 1) / width;
}

constexpr int32_t unit_of_trial(int32_t trial, int32_t longest) { return (longest + trial) / (trial + 1); }

// What becomes of a bucket's tiles, each of which is taken for the average one.
template <class Threads>
constexpr void try_bucket(const Threads& threads, const PlanLengthsParams& p, PlanScratch& s, int32_t trial,
                          int32_t bucket) {
  const int64_t tiles = s.count[bucket], unit = unit_of_trial(trial, s.longest);
  if (tiles == 0) return;
  const int64_t length = (s.grains[bucket] + tiles - 1) / tiles, parts = parts_of(p, length, unit);
  const int64_t eighths = ((length + parts - 1) / parts * Trial::classes - 1) / unit;
  const int64_t its_class = eighths < Trial::classes ? eighths : Trial::classes - 1;
  Trial& made = s.trials[trial];
  threads.add(made.pieces[its_class], tiles * parts);
  threads.add(made.grains[its_class], s.grains[bucket]);
  if (parts > 1) threads.add(made.parts[its_class], tiles * parts), threads.add(made.slots, tiles * parts);
}

constexpr int64_t pieces_of(const PlanLengthsParams& p, const Trial& trial) {  // of all heads
  int64_t pieces = 0;
  for (int64_t of_class : trial.pieces) pieces += of_class * p.heads;
  return pieces;
}

// How long the multiprocessors take for a trial's pieces, which they claim from the longest to the shortest: at least
// their share of the work. And of the longest w * multiprocessors + 1 pieces, for any w, one multiprocessor has w + 1,
// at best the shortest of these.
constexpr int64_t time_of_trial(const PlanLengthsParams& p, const Trial& trial, int64_t most_parts) {
  const int64_t multiprocessors = p.multiprocessors, pieces = pieces_of(p, trial);
  const int64_t busy = pieces < multiprocessors ? pieces : multiprocessors;
  const Costs& costs = pieces <= multiprocessors ? p.together : p.behind;
  const int64_t piece = p.among && pieces > p.many ? p.among : costs.piece;
  const int64_t from_memory = p.block_bytes ? memory_time(p.block_bytes, busy, p.all_bytes) : 0;
  const int64_t block = from_memory > costs.block ? from_memory : costs.block;
  double last = 0, work = 0;  // in int64 the largest problems would overflow
  int64_t longer = 0, before = 0;
  for (int32_t c = Trial::classes - 1; c >= 0; c--) {
    if (trial.pieces[c] == 0) continue;
    const int64_t of_grain = p.grain * block;
    const int64_t each = trial.grains[c] / trial.pieces[c] * of_grain +
                         trial.grains[c] % trial.pieces[c] * of_grain / trial.pieces[c] + piece +
                         trial.parts[c] * costs.write / trial.pieces[c];
    const int64_t count = trial.pieces[c] * p.heads;
    const int64_t most = (before + count + multiprocessors - 1) / multiprocessors;  // on one multiprocessor
    const int64_t needed = (most - 1) * multiprocessors + 1 - before;  // so many of this class bring it there
    if (needed > 0) {
      const int64_t here = needed < most ? needed : most;
      const double time = static_cast<double>(here) * static_cast<double>(each) +
                          static_cast<double>(most - here) * static_cast<double>(longer);
      if (time > last) last = time;
    }
    work += static_cast<double>(each) * static_cast<double>(count);
    longer = each;
    before += count;
  }
  const double share = work / static_cast<double>(multiprocessors), time = share > last ? share : last;
  constexpr double most_time = 1e18;  // 30 years
  const int64_t read = most_parts == 1 ? 0
                       : p.packed_rows ? combine_time(most_parts, p.packed_rows, most_parts)
                                       : costs.read_all(most_parts);
  return launch_time + static_cast<int64_t>(time < most_time ? time : most_time) + read;
}

// The unit with which pieces are predicted to be done first.
template <class Threads>
constexpr void choose_unit(const Threads& threads, const PlanLengthsParams& p, const LengthsPlan& plan, int32_t tiles,
                           PlanScratch& s) {
  threads.each(tiles, [&](int32_t number) {
    const PlannedTile tile = planned_tile(p, plan, number);
    const int32_t bucket = bucket_of(tile.length, s.longest);
    threads.add(s.count[bucket], int32_t{1});
    threads.add(s.grains[bucket], int64_t{tile.length});
  });
  const int32_t trials = p.most_slots == 0 ? 1 : p.most_parts;
  threads.each(trials * PlanScratch::buckets, [&](int32_t pair) {
    try_bucket(threads, p, s, pair / PlanScratch::buckets, pair % PlanScratch::buckets);
  });
  threads.each(trials, [&](int32_t trial) { s.times[trial] = time_of_trial(p, s.trials[trial], trial + 1); });
  threads.each(1, [&](int32_t) {
    s.whole_time = s.time = s.times[0];
    s.unit = s.longest;
    for (int32_t i = 1; i < trials; i++) {
      const int32_t unit = unit_of_trial(i, s.longest);
      if (unit < p.least_unit || unit >= s.longest || s.trials[i].slots > p.most_slots) continue;
      // Where pieces follow each other, their time is the least that it may be, so that small gains are none.
      const bool together = pieces_of(p, s.trials[i]) <= p.multiprocessors;
      const int64_t most = together ? s.whole_time : s.whole_time - s.whole_time / 10;
      if (s.times[i] >= s.time || s.times[i] > most || !worth_splitting(s.times[i], s.whole_time)) continue;
      s.time = s.times[i];
      s.unit = unit;
    }
  });
}

template <class Threads>
constexpr void plan_lengths(const Threads& threads, const PlanLengthsParams& p, const LengthsPlan& plan,
                            PlanScratch& s) {
  const int32_t batch = p.lengths.batch;
  threads.each(batch, [&](int32_t b) {
    plan.sequences[b] = sequence_at(p.lengths, p.total_q, p.total_k, p.window, b);
    plan.first_tile[b] = query_blocks(p, plan.sequences[b]);
  });
  threads.prefix_sums(plan.first_tile, batch, p.most_tiles);
  // Only lengths that overlap have more tiles than there may be; the last of them are left out.
  const int32_t tiles = plan.first_tile[batch];
  threads.each(1, [&](int32_t) { s.longest = 1, s.whole_time = s.time = 0, s.unit = p.unit; });
  threads.each(PlanScratch::buckets, [&](int32_t i) { s.count[i] = 0, s.grains[i] = 0; });
  threads.each(p.most_parts, [&](int32_t i) { s.trials[i] = {}; });
  threads.each(tiles, [&](int32_t number) { threads.raise(s.longest, planned_tile(p, plan, number).length); });
  if (p.unit == 0) choose_unit(threads, p, plan, tiles, s);

  // Trials take a bucket's tiles for their average one, and lengths that overlap may want any number of slots: then the
  // unit grows until slots suffice.
  for (;;) {
    threads.each(1, [&](int32_t) { s.slots = 0, s.longest_piece = 1; });
    threads.each(tiles, [&](int32_t number) {
      const PlannedTile tile = planned_tile(p, plan, number);
      const int32_t parts = parts_of(p, tile, s.unit);
      threads.raise(s.longest_piece, (tile.length + parts - 1) / parts);
      if (parts > 1) threads.add(s.slots, int64_t{parts});
    });
    if (s.slots <= p.most_slots) break;
    threads.each(1, [&](int32_t) { s.unit += s.unit / 8 + 1; });
  }

  threads.each(PlanScratch::buckets, [&](int32_t i) { s.count[i] = 0; });
  threads.each(tiles, [&](int32_t number) {
    const PlannedTile tile = planned_tile(p, plan, number);
    const int32_t parts = parts_of(p, tile, s.unit);
    for (int32_t part = 0; part < parts; part++)
      threads.add(s.count[bucket_of(length_of_part(tile, part, parts), s.longest_piece)], int32_t{1});
  });
  threads.prefix_sums(s.count, PlanScratch::buckets, p.most_tiles + p.most_slots);
  threads.each(1, [&](int32_t) {
    *plan.counts = {s.count[PlanScratch::buckets], static_cast<int32_t>(s.slots)};
    s.slots = 0;
  });
  threads.each(tiles, [&](int32_t number) {
    const PlannedTile tile = planned_tile(p, plan, number);
    const int32_t parts = parts_of(p, tile, s.unit);
    const int64_t slot = parts > 1 ? threads.add(s.slots, int64_t{parts}) : 0;
    for (int32_t part = 0; part < parts; part++) {
      int32_t& next = s.count[bucket_of(length_of_part(tile, part, parts), s.longest_piece)];
      const int32_t begin = (tile.begin + begin_of_part(tile, part, parts)) * p.grain;
      const int32_t end = (tile.begin + begin_of_part(tile, part + 1, parts)) * p.grain;
      const Sequence& sequence = plan.sequences[tile.sequence];
      const Blocks blocks = tile_blocks(p, sequence, tile.q_block);
      plan.entries[threads.add(next, int32_t{1})] = {
          sequence, tile.q_block, static_cast<int32_t>(slot), begin > blocks.begin ? begin : blocks.begin,
          end < blocks.end ? end : blocks.end, part, parts, {}};
    }
  });
}

}  // namespace fa3
