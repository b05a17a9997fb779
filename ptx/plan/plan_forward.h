// The planner for varlen sequences (sequence.h): from lengths that only the device knows to a list of pieces
// (planned_piece.h). Plain C++, read by both sides: a thread block runs it on the device (planned/plan_forward.cuh),
// tests and fa3-bench run the same on the host.
//
// What is split: a tile with more K/V blocks than the unit becomes parts of about the same length, none longer than the
// unit, if that is predicted to be done sooner (plan_unit.h). Or the unit is a constant, for a caller who wants that a
// row's bits depend on its own keys only: then tiles are cut wherever a multiple of the unit ends, counted from key 0,
// and rows of one tile see the same of these (Cuts::period).
//
// The order: where pieces are few, from the longest to the shortest. So also where sequences have one tile each, as in
// decoding: then no tiles share K and V, and none need to be numbered. Where pieces are many, each multiprocessor has
// several, and what counts is that K and V are in the L2 cache. So sequences follow in groups, those with the longest
// tiles first (groups are the finer the longer tiles are: what comes last fills what is left), and of a group in
// sections, as many sequences as have K and V of section_keys together: of a section first the last tiles of all
// sequences, then those before, and so on, so that what is under way together is about as long. Only where some tiles
// are split do the sequences that have such tiles come before all groups, their tiles from the longest to the shortest.
//
// The steps are loops whose rounds do not depend on each other: over sequences, over tiles, over pairs of a trial and
// an item. `threads` says how they run:
//   each(count, f)              f(0) .. f(count - 1), in any order or at once; all have ended when it returns
//   each_apart(count, f)        the same, but only rounds of the same 32 (0 .. 31, 32 .. 63, ..) have ended for each
//                               other when it returns, and all when the next step of another kind does
//   totals(s, count, f)         sets s.longest, s.all_tiles and s.work: the largest of what f(0) .. f(count - 1)
//                               return, and sums of that
//   read(numbers, i)            numbers[i], or 0 if numbers is null
//   add(sum, n)                 sum += n as one step, from inside such rounds; returns what the sum was before
//   add_among_alike(sum, n)     the same, where rounds often have the same sum
//   raise(largest, n)           largest = max(largest, n), likewise
//   lower(least, n)             least = min(least, n), likewise
//   prefix_sums(x, count, most, sums)  x[i] becomes the sum of all before it, or `most` if that is less; x[count] that
//                               of all
//   list(count, tile_of, piece_of, entries)  entries of the parts of all tiles tile_of(i), i < count, of which some may
//                               have none
// What is read outside of rounds is the same for all threads.
#pragma once
#include <cstdint>

#include "plan_unit.h"

namespace fa3 {

// Of sequences: how long the longest tile is, their tiles, and the K/V blocks of these.
struct Totals {
  int32_t longest, tiles, work;
};

// On the host: one after the other.
struct InTurn {
  template <class F>
  constexpr void each(int32_t count, F f) const {
    for (int32_t i = 0; i < count; i++) f(i);
  }
  template <class F>
  constexpr void each_apart(int32_t count, F f) const {
    each(count, f);
  }
  template <class F>
  constexpr void totals(PlanScratch& s, int32_t count, F f) const {
    Totals all{1, 0, 0};  // a longest tile of at least one block
    each(count, [&](int32_t i) {
      const Totals own = f(i);
      all.longest = own.longest > all.longest ? own.longest : all.longest;
      all.tiles += own.tiles, all.work += own.work;
    });
    s.longest = all.longest, s.all_tiles = all.tiles, s.work = all.work;
  }
  constexpr int32_t read(const int32_t* numbers, int32_t i) const { return read_or_zero(numbers, i); }
  constexpr int32_t add(int32_t& sum, int32_t n) const {
    const int32_t before = sum;
    sum += n;
    return before;
  }
  constexpr int32_t add_among_alike(int32_t& sum, int32_t n) const { return add(sum, n); }
  constexpr void raise(int32_t& largest, int32_t n) const { largest = n > largest ? n : largest; }
  constexpr void lower(int32_t& least, int32_t n) const { least = n < least ? n : least; }
  constexpr void prefix_sums(int32_t* x, int32_t count, int32_t most, int32_t*) const {
    int32_t sum = 0;
    for (int32_t i = 0; i <= count; i++) {
      const int32_t own = i < count ? x[i] : 0;
      x[i] = sum;
      sum = own < most - sum ? sum + own : most;
    }
  }
  template <class Tile, class Piece>
  constexpr void list(int32_t count, Tile tile_of, Piece piece_of, PlannedPiece* entries) const {
    list_in_rounds_of(*this, count, tile_of, piece_of, entries);
  }
  template <class Threads, class Tile, class Piece>
  static constexpr void list_in_rounds_of(const Threads& threads, int32_t count, Tile tile_of, Piece piece_of,
                                          PlannedPiece* entries) {
    threads.each(count, [&](int32_t i) {
      const auto tile = tile_of(i);
      for (int32_t part = 0; part < tile.parts.count; part++) entries[tile.entry_of(part)] = piece_of(tile, part);
    });
  }
};

// Where sequences are kept, and the numbers of tiles before them.
struct Room {
  Sequence* sequences;
  int32_t *tiles, *longest_tile;
  bool fills_last;  // the last tile of a sequence has all rows (tiles_of)
  bool by_sequence;  // sequences have one tile at most: the tile has its sequence's number, and none are counted
};
constexpr Room room_of(const PlanForwardParams& p, const PlannedPieces& plan, PlanScratch& s) {
  const int32_t count = p.sequences;
  if (count <= PlanScratch::most_sequences) return {s.sequences, s.tiles, s.longest_tile, true, false};
  return {plan.sequences, plan.tiles, plan.tiles + PlanScratch::groups * count + 1, true, false};
}
// So many groups of sequences are told apart by their longest tiles: as many as one step of prefix sums has room for.
constexpr int32_t groups_of(const Divisor& sequences) {
  return sequences > PlanScratch::most_sequences / 8 ? 4 : clamped(PlanScratch::most_sequences / 2 / sequences, 8, 16);
}
static_assert(PlanScratch::groups == 4);

// The tiles of a sequence. With a bound on the right later rows see more keys. So where rows do not fill all tiles, and
// pieces are many, it is better that the first one, with the fewest keys, has fewer rows: fills_last. But if all pieces
// are under way at once, the last one, with the most, is done sooner so.
struct SequenceTiles {
  int32_t rows, count;
  int32_t first_rows;  // so many rows has the first tile

  constexpr Rows rows_of(int32_t tile, int32_t Br) const {
    const int32_t end = first_rows + tile * Br;
    return {tile == 0 ? 0 : end - Br, end < rows ? end : rows};
  }
};
constexpr SequenceTiles tiles_of(const PlanForwardParams& p, const Sequence& sequence, bool fills_last) {
  const int32_t rows = static_cast<int32_t>(p.packing.rows(sequence.seqlen_q)), count = (rows + p.Br - 1) / p.Br;
  return {rows, count, fills_last && sequence.right != no_bound ? rows - (count - 1) * p.Br : int32_t{p.Br}};
}

// A tile, numbered within its sequence: the K/V blocks that it sees, at least one, as for kernels (tile_blocks in
// work.h), and how long that is.
struct SeenBlocks : Blocks {
  int32_t weight;  // of each, in 64ths

  constexpr int32_t count() const { return end - begin; }
  constexpr int32_t length(int32_t blocks) const {
    return static_cast<int32_t>((int64_t{blocks} * weight + 63) >> 6);
  }
  constexpr int32_t length() const { return length(count()); }
};
constexpr SeenBlocks seen_blocks(const PlanForwardParams& p, const Sequence& sequence, const Rows& rows) {
  const Keys keys = visible_of(sequence, true, true, p.packing).any(rows.begin, rows.end - 1);
  const Blocks blocks = keys.none() ? Blocks{0, 0} : Blocks{keys.begin / p.Bc, (keys.end + p.Bc - 1) / p.Bc};
  const int32_t warpgroups = (rows.end - rows.begin + 63) / 64;
  return {{blocks.begin, blocks.end > blocks.begin ? blocks.end : blocks.begin + 1}, p.weight[warpgroups - 1]};
}

// Where it stands for kernels, to which the first row of a tile is a multiple of Br: a first tile with fewer rows is a
// sequence of its own.
struct PlacedTile {
  Sequence sequence;
  int32_t q_block;
};
constexpr PlacedTile placed_tile(const PlanForwardParams& p, const Sequence& sequence, bool fills_last, int32_t tile) {
  const SequenceTiles tiles = tiles_of(p, sequence, fills_last);
  if (tiles.first_rows == p.Br || tiles.count == 1) return {sequence, tile};
  const int32_t first = p.packing.query(tiles.first_rows);
  if (tile == 0) return {with_rows(sequence, 0, first), 0};
  return {with_rows(sequence, first, sequence.seqlen_q), tile - 1};
}

// Into which parts a tile is cut: of a unit each, from its first block on or, with a constant unit, from key 0 on. The
// last has what is left, or all, if it is the last that there may be.
struct Parts {
  int32_t origin, unit, longer;  // part n > 0 begins n units behind the origin, and so many blocks as parts before it
                                 // are longer by one, which are the first ones
  int32_t count;

  constexpr Blocks blocks(const Blocks& tile, int32_t part) const {
    return {part == 0 ? tile.begin : begin(part), part == count - 1 ? tile.end : begin(part + 1)};
  }
  constexpr int32_t begin(int32_t part) const { return origin + part * unit + (part < longer ? part : longer); }
};
constexpr Parts parts_of(const PlanForwardParams& p, const SeenBlocks& blocks, int32_t unit) {
  if (p.unit == 0) {
    const int32_t count = parts_of(p, blocks.length(), unit);
    if (count == 1 || blocks.weight == 64) return {blocks.begin, unit, 0, count};
    const int32_t all = 64 * unit, each = all / blocks.weight, rest = all - each * blocks.weight;
    return {blocks.begin, each, (count - 1) * rest / blocks.weight, count};
  }
  const int32_t most = p.most_parts - 1;
  const int32_t first = blocks.begin / unit, last = (blocks.end - 1) / unit;
  const int32_t from = first < most ? first : most, to = last < most ? last : most;
  return {from * unit, unit, 0, to - from + 1};
}
// So many of about the same length.
constexpr Parts equal_parts(const Blocks& blocks, int32_t parts) {
  const int32_t length = blocks.end - blocks.begin, count = parts < length ? parts : length;
  return {blocks.begin, length / count, length % count, count};
}

// A tile on its way into the list.
struct ListedTile {
  int32_t sequence, tile;     // within the sequence
  SeenBlocks blocks;
  Parts parts;
  int32_t entry, last_entry;  // of part 0, which those of others follow, and of the last part
  int32_t slot;               // of part 0; the others follow

  constexpr int32_t entry_of(int32_t part) const { return part == parts.count - 1 ? last_entry : entry + part; }
};

// The pieces of the longest times, in 16ths of a block, are in bucket 0.
constexpr int32_t bucket_of(int32_t length, int32_t width) {
  return clamped(PlanScratch::buckets - 1 - ((length - 1) >> width), 0, PlanScratch::buckets - 1);
}

// The sequence of a tile: the last of all `count` that begins at or before its number. Those without tiles begin where
// the next one does.
constexpr int32_t sequence_of_tile(const int32_t* tiles, int32_t count, int32_t number) {
  int32_t begin = 0;
  for (int32_t end = count; end - begin > 1;) {
    const int32_t middle = begin + (end - begin) / 2;
    if (tiles[middle] <= number) begin = middle;
    else end = middle;
  }
  return begin;
}

// How many entries of about the same time are before others: a tile's last part, or all of it, and parts of a unit.
struct Buckets {
  int32_t last, units;
};
constexpr Buckets buckets_of(const PlanForwardParams& p, const ListedTile& tile, int32_t width) {
  const int32_t parts = tile.parts.count;
  const Blocks last = tile.parts.blocks(tile.blocks, parts - 1);
  const int32_t length = 16 * tile.blocks.length(last.end - last.begin);
  if (parts == 1) return {bucket_of(length, width), 0};
  return {bucket_of(length + p.write_length + 16 * read_blocks(parts, p.read_length), width),
          bucket_of(16 * tile.blocks.length(tile.parts.unit) + p.write_length, width)};
}

// Sequences, how long their longest tiles are, and sums of all.
template <class Threads>
constexpr void survey(const Threads& threads, const PlanForwardParams& p, const Room& room, PlanScratch& s) {
  threads.each_apart(PlanScratch::buckets, [&](int32_t i) {
    s.count[i] = 0;
    if (i < PlanScratch::most_items) s.item_length[i] = s.item_count[i] = s.item_blocks[i] = 0;
    if (i == 0) s.slots = s.next_slot = s.next_entry = s.tried = 0, s.best = s.tail = TimeOf::none;
  });
  threads.totals(s, p.sequences, [&](int32_t i) {
    const auto read = [&](const int32_t* numbers, int32_t n) { return threads.read(numbers, n); };
    const Sequence sequence = sequence_at(p.lengths, p.total_q, p.total_k, p.window, p.cuts, i, read);
    room.sequences[i] = sequence;
    const SequenceTiles tiles = tiles_of(p, sequence, true);
    int32_t longest = 0;
    int64_t work = 0;
    const auto length_of = [&](int32_t tile) { return seen_blocks(p, sequence, tiles.rows_of(tile, p.Br)); };
    if (tiles.count > 0) {
      const SeenBlocks last = length_of(tiles.count - 1);
      work = longest = last.length();
      if (tiles.count > 1) {
        // With bounds on both sides the longest is somewhere in the middle, or about as long as that one, and with one
        // or none that one is about the average. The last one may have fewer rows than the one before.
        const int32_t middle = length_of((tiles.count - 1) / 2).length();
        work += int64_t{tiles.count - 1} * middle;
        longest = last.count() > middle ? last.count() : middle;
      }
    }
    room.longest_tile[i] = longest;
    // Whatever the lengths are, sums are within int32.
    const int32_t most = p.most_each;
    return Totals{longest, tiles.count < most ? tiles.count : most, work < most ? static_cast<int32_t>(work) : most};
  });
}

// The tiles before each sequence, group by group. Sequences whose tiles all stay whole, as none is longer than the
// unit, are in groups 1, 2, ..: by how much shorter their longest tile is than the unit, or than the longest of all,
// squared, so that groups of long tiles are about as wide as those of short ones are together. All others are in group
// 0.
template <class Threads>
constexpr void number_tiles(const Threads& threads, const PlanForwardParams& p, const Room& room, PlanScratch& s,
                            int32_t unit, int32_t groups) {
  const int32_t count = p.sequences, most = unit < s.longest ? unit : s.longest;
  const uint32_t each = UINT32_MAX / static_cast<uint32_t>(most);
  threads.each(count, [&](int32_t i) {
    const Sequence& sequence = room.sequences[i];
    const int32_t longest = room.longest_tile[i];
    // Of a constant unit's parts a short tile may have two.
    const bool stays_whole = (p.unit ? (sequence.seqlen_k + p.Bc - 1) / p.Bc : longest) <= unit;
    int32_t group = 0;
    if (groups > 1 && stays_whole) {
      const uint64_t shorter = static_cast<uint32_t>(longest < most ? most - longest : 0) * each;
      group = 1 + static_cast<int32_t>((shorter * shorter >> 32) * static_cast<uint32_t>(groups - 1) >> 32);
    }
    const int32_t tiles = tiles_of(p, sequence, true).count;
    for (int32_t g = 0; g < groups; g++) room.tiles[g * count + i] = g == group ? tiles : 0;
  });
  threads.prefix_sums(room.tiles, groups * count, p.most_tiles, s.sums);
}

// How many tiles of the group come before one that is so many tiles from the last one of its sequence. tiles: those
// before each sequence of the group.
constexpr int32_t place_in_section(const int32_t* tiles, int32_t count, const Sections& sections, int32_t sequence,
                                   int32_t from_last) {
  const int32_t before_last = count - sections.last;  // sequences
  const bool is_last = sequence >= before_last;
  const int32_t first = is_last ? before_last : sequence >> sections.shift << sections.shift;
  const int32_t next = first + (1 << sections.shift), end = is_last ? count : next < before_last ? next : before_last;
  int32_t before = tiles[first];
  for (int32_t i = first; i < end; i++) {
    const int32_t own = tiles[i + 1] - tiles[i];
    before += own < from_last ? own : from_last;
    if (i < sequence && own > from_last) before++;
  }
  return before;
}

// The numbers that tiles have before place n: of a sequence in a group, or behind the last one.
constexpr int32_t tiles_in(const Room& room, int32_t n) { return room.by_sequence ? n : room.tiles[n]; }

// What the list is made of: the tiles before each sequence of each group; the unit.
inline constexpr int32_t no_unit = 1 << 30;  // that splits nothing
struct Order {
  int32_t groups, unit;
  Tail tail;     // tiles of the last group
  bool at_once;  // are all pieces under way at once, so that their order does not matter?
};
template <class Threads>
constexpr Order choose_order(const Threads& threads, const PlanForwardParams& p, const Room& room, PlanScratch& s) {
  const int32_t count = p.sequences, pieces = times_heads(p, s.all_tiles);
  const bool many = are_many(p, s, s.all_tiles);
  // Parts may be few. So where pieces are many, only tiles that take longer than about half a share are worth it.
  const bool is_long = int64_t{s.longest} * p.multiprocessors * 2 > int64_t{s.work} * p.heads;
  bool may_split = p.unit == 0 && most_cut(p, s.longest) > 1 && (!many || is_long);
  const bool has_groups = many && !room.by_sequence;
  const int32_t tail = p.unit == 0 ? tail_tiles(p, s, listed_tiles(p, s)) : 0;
  Order order{has_groups && !may_split ? groups_of(p.sequences) : 1, p.unit ? p.unit : no_unit, {0, 1},
              p.unit == 0 && pieces <= p.multiprocessors};
  for (;;) {
    if (!room.by_sequence) number_tiles(threads, p, room, s, order.unit, order.groups);
    if (may_split)
      try_units(threads, p, tiles_in(room, count), s, [&](int32_t number) {
        if (room.by_sequence) return room.longest_tile[number];
        const int32_t sequence = sequence_of_tile(room.tiles, count, number);
        const Sequence& extent = room.sequences[sequence];
        const SequenceTiles all = tiles_of(p, extent, room.fills_last);
        return seen_blocks(p, extent, all.rows_of(number - room.tiles[sequence], p.Br)).length();
      });
    if (may_split || (tail > 0 && !s.tried)) compare(threads, p, s, tail);
    if (has_unit(s)) {
      order.unit = s.trials.unit[best_trial(s)];
      order.at_once = s.trials.pieces[best_trial(s)] <= p.multiprocessors;
    }
    if (!may_split || !has_groups) break;
    order.groups = groups_of(p.sequences), may_split = false;
  }
  order.tail = best_tail(s, tail);
  if (order.tail.tiles > 0) order.unit = no_unit;
  return order;
}

template <class Threads>
constexpr void plan_forward(const Threads& threads, const PlanForwardParams& p, const PlannedPieces& plan,
                            PlanScratch& s) {
  const int32_t count = p.sequences;
  Room room = room_of(p, plan, s);
  survey(threads, p, room, s);
  room.fills_last = times_heads(p, s.all_tiles) > p.multiprocessors;
  // A tail is of the last tiles, whatever the order of rounds: so where some sequences have none, they are numbered.
  const bool all_have_one = s.all_tiles == count, has_no_tail = p.unit > 0 || tail_tiles(p, s, s.all_tiles) == 0;
  room.by_sequence = p.packing.rows(p.lengths.max_q) <= p.Br && s.all_tiles <= p.most_tiles &&
                     (all_have_one || has_no_tail);
  const Order order = choose_order(threads, p, room, s);
  const bool has_tail = order.tail.tiles > 0;
  const int32_t places = order.groups * count, tiles = tiles_in(room, places);
  const int32_t tail = tiles - order.tail.tiles;
  const int32_t by_length = has_tail ? 0 : tiles_in(room, count);
  const int32_t longest = 16 * (s.longest + read_blocks(p.most_parts, p.read_length)) + p.write_length;  // of pieces
  int32_t width = 0;  // of a bucket, as a power of two
  for (int32_t bits = 16; bits > 0; bits /= 2)
    if ((longest - 1) >> (width + bits - 1) >= PlanScratch::buckets) width += bits;
  const Sections sections = sections_of(p, s);
  const bool sorts = by_length > 0 && !order.at_once;
  // Tiles that are sorted are counted first: then s.count[i] entries are before those of bucket i. Trials take tiles
  // for others of about the same length, and lengths that overlap may want any number of slots, so the unit grows until
  // slots suffice.
  bool counts = sorts;
  int32_t unit = order.unit, entries = 0;  // entries: of sorted tiles
  const auto tile_of = [&](int32_t number) {
    const int32_t place = room.by_sequence ? number : sequence_of_tile(room.tiles, places, number);
    const int32_t sequence = place - place / p.sequences * count;
    const Sequence& extent = room.sequences[sequence];
    const SequenceTiles all = tiles_of(p, extent, room.fills_last);
    if (all.count == 0) return ListedTile{};
    // In groups a sequence's last tile comes first.
    const int32_t from_last = number - tiles_in(room, place);
    const int32_t own = number < by_length ? from_last : all.count - 1 - from_last;
    const SeenBlocks blocks = seen_blocks(p, extent, all.rows_of(own, p.Br));
    ListedTile tile{sequence, own, blocks, {0, 0, 0, 1}, 0, entries + number - by_length, 0};
    if (number < by_length) {
      tile.parts = parts_of(p, blocks, unit);
      if (!sorts) {
        if (tile.parts.count > 1) tile.slot = threads.add(s.next_slot, tile.parts.count);
        // Trials take tiles for others of about the same length, so slots may not suffice.
        if (tile.slot + tile.parts.count > p.most_slots) tile.parts.count = 1;
        tile.entry = threads.add_among_alike(s.next_entry, tile.parts.count);
        tile.last_entry = tile.entry + tile.parts.count - 1;
        return tile;
      }
      const Buckets buckets = buckets_of(p, tile, width);
      tile.entry = tile.last_entry = threads.add_among_alike(s.count[buckets.last], 1);
      if (tile.parts.count > 1 && !(counts && s.slots > p.most_slots)) {
        tile.entry = threads.add(s.count[buckets.units], tile.parts.count - 1);
        tile.slot = threads.add(counts ? s.slots : s.next_slot, tile.parts.count);
      }
      if (counts) tile.parts.count = 0;  // not to be listed yet
      return tile;
    }
    if (!has_tail && !room.by_sequence) {
      const int32_t* const group_tiles = room.tiles + (place - sequence);
      tile.last_entry = entries + place_in_section(group_tiles, count, sections, sequence, from_last) - by_length;
    }
    if (number < tail) return tile;
    tile.parts = equal_parts(blocks, order.tail.parts);
    tile.slot = threads.add(s.next_slot, tile.parts.count);
    tile.entry = entries + tail - by_length + tile.slot;
    tile.last_entry = tile.entry + tile.parts.count - 1;
    return tile;
  };
  const auto piece_of = [&](const ListedTile& tile, int32_t part) {
    const Blocks blocks = tile.parts.blocks(tile.blocks, part);
    const Sequence& extent = room.sequences[tile.sequence];
    const PlacedTile placed = placed_tile(p, extent, room.fills_last, tile.tile);
    int32_t number = tile.sequence;
    if (p.cuts.each > 1) number /= p.cuts.each;
    return PlannedPiece{placed.sequence, placed.q_block,   tile.slot, blocks.begin, blocks.end,
                        part,            tile.parts.count, number,    0};
  };
  for (;;) {
    threads.list(counts ? by_length : tiles, tile_of, piece_of, plan.entries);
    if (!counts) break;
    if (s.slots <= p.most_slots) {
      threads.prefix_sums(s.count, PlanScratch::buckets, p.most_tiles + p.most_slots, s.sums);
      entries = s.count[PlanScratch::buckets], counts = false;
    } else {
      threads.each(0, [](int32_t) {});  // all have read that before it changes
      unit += unit / 16 + 1;
      threads.each(PlanScratch::buckets, [&](int32_t i) {
        s.count[i] = 0;
        if (i == 0) s.slots = 0;
      });
    }
  }
  threads.each(1, [&](int32_t) {
    s.has_tail = has_tail;
    if (room.by_sequence) room.tiles[count] = s.all_tiles;  // for those who look at what was done
    const int32_t in_groups = has_tail ? tail : tiles - by_length, in_tail = has_tail ? s.next_slot : 0;
    *plan.counts = {entries + s.next_entry + in_groups + in_tail,
                    s.next_slot < p.most_slots ? s.next_slot : p.most_slots};
  });
}

}  // namespace fa3
