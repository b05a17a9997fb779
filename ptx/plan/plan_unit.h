// What the planner for varlen sequences (plan_forward.h) splits: how long would the multiprocessors take for what
// becomes of all tiles? Plain C++, read by both sides; all in integers, so that both come to the same. Times are in
// nanoseconds.
//
// Up to 64 units are tried, from the longest tile's length on. Tiles are taken as items: of up to 64 tiles each is one;
// of more those of about the same length, for the longest.
//
// Where all tiles are about as long, and more than multiprocessors, the last round may have few of them. Then these,
// the tail of the list, may be split, each into as many parts.
#pragma once
#include <cstdint>

#include "plan_params.h"

namespace fa3 {

inline constexpr int32_t longest_time = 1 << 30;  // more is taken for that
constexpr int32_t clamped_time(int64_t time) { return time < longest_time ? static_cast<int32_t>(time) : longest_time; }

// Of all heads; and no more than can be counted.
constexpr int32_t times_heads(const PlanForwardParams& p, int64_t pieces) {
  constexpr int64_t most = 1 << 30;
  return static_cast<int32_t>(pieces * p.heads < most ? pieces * p.heads : most);
}

// Only lengths that overlap have more tiles than there may be; the last of them are left out.
constexpr int32_t listed_tiles(const PlanForwardParams& p, const PlanScratch& s) {
  return s.all_tiles < p.most_tiles ? s.all_tiles : p.most_tiles;
}

// What pieces cost if there are so many, of all heads.
constexpr Costs costs_of(const PlanForwardParams& p, int32_t pieces) {
  if (pieces > p.multiprocessors) {
    Costs costs = p.behind;
    if (p.among && pieces > p.many) costs.piece = p.among;
    return costs;
  }
  Costs costs = p.together;
  const int32_t for_all = static_cast<int32_t>(int64_t{pieces} * p.memory_each >> 10);
  if (for_all > costs.block) costs.block = for_all;
  return costs;
}
// What adding up a tile's parts takes: with packed heads behind all pieces, otherwise as so many blocks of the last
// part, if one takes so many 16ths of a block.
constexpr int32_t read_blocks(int32_t parts, int32_t read_length) {
  return (parts == 2 ? 1 : parts) * read_length / 16;
}
constexpr int32_t read_length(const PlanForwardParams& p, const Costs& costs) {
  if (p.packed_rows) return 0;
  return static_cast<int32_t>(static_cast<float>(16 * costs.read) / static_cast<float>(costs.block));
}
constexpr int32_t read_behind(const PlanForwardParams& p, int32_t parts) {
  return p.packed_rows && parts > 1 ? static_cast<int32_t>(combine_time(parts, p.packed_rows, parts)) : 0;
}

// Pieces of one length, of all heads.
struct Alike {
  int32_t pieces, time;
};

// When multiprocessors that take first the longer ones, then the others, one by one, are done.
constexpr int32_t end_of(const Divisor& multiprocessors, const Alike& longer, const Alike& shorter) {
  const int32_t all = multiprocessors, rounds = longer.pieces / multiprocessors;
  const int32_t late = longer.pieces - rounds * all, early = all - late;  // late: have one more
  const int64_t early_time = int64_t{rounds} * longer.time;
  const int64_t late_time = late > 0 ? early_time + longer.time : early_time;
  if (shorter.pieces == 0) return clamped_time(late_time);
  const int32_t each = late > 0 ? longer.time / shorter.time : 0;  // of the early ones before the late ones are free
  const int64_t sooner = int64_t{each} * early;
  if (shorter.pieces <= sooner) return clamped_time(late_time);
  // Then all take as many, the early ones first.
  const int32_t left = shorter.pieces - static_cast<int32_t>(sooner), more = left / multiprocessors;
  const int32_t last = left - more * all;
  const int64_t early_end = early_time + int64_t{each + more + (last > 0)} * shorter.time;
  const int64_t late_end = late_time + int64_t{more + (last > early)} * shorter.time;
  return clamped_time(early_end > late_end ? early_end : late_end);
}

// Is it better than leaving all tiles whole? If packed heads wait for memory, multiprocessors are at different places,
// which makes up for what a few more rounds seem to gain, unless tiles take longer than that.
constexpr bool is_better(const PlanForwardParams& p, const PlanScratch& s, int32_t time, int32_t whole_time,
                         int32_t pieces) {
  constexpr int32_t long_tile = 100'000;
  const bool is_sure =
      !p.packed_rows || pieces <= p.multiprocessors || int64_t{s.longest} * p.behind.block > long_tile;
  return time < (is_sure ? whole_time : whole_time - whole_time / 10) && worth_splitting(time, whole_time);
}

constexpr int32_t upper_half(uint32_t a, uint32_t b) { return static_cast<int32_t>(uint64_t{a} * b >> 32); }

constexpr int32_t parts_of(const PlanForwardParams& p, int32_t length, int32_t unit) {
  if (length <= unit) return 1;
  const int32_t parts = (length + unit - 1) / unit;
  return parts < p.most_parts ? parts : p.most_parts;
}

// Into how many parts the longest tile may be cut.
constexpr int32_t most_cut(const PlanForwardParams& p, int32_t longest) {
  int32_t most = p.most_parts < p.most_slots ? p.most_parts : p.most_slots;
  if (most > longest >> p.least_unit) most = longest >> p.least_unit;
  return most < 1 ? 1 : most;
}
// So many trials, as a power of two.
constexpr int32_t columns_of(const PlanForwardParams& p, const PlanScratch& s) {
  return most_cut(p, s.longest) > 15 ? 6 : 5;
}
// The unit of a trial, and into how many parts it cuts the longest tile: 1, 1 1/8, 1 1/3, 1 1/2, 1 3/4, 2, 2 1/2, 3,
// .., of which the last is the shorter one. If there may be more parts than half of the trials, later ones are tried in
// steps.
struct Unit {
  int32_t length, parts;
};
constexpr Unit unit_of(int32_t trial, int32_t columns, int32_t longest, int32_t most) {
  if (trial < 5) {
    // In 64ths of the longest tile, a byte each.
    constexpr uint64_t sixty_fourths = 64 | 56 << 8 | 48 << 16 | 43 << 24 | uint64_t{37} << 32;
    const int32_t length = static_cast<int32_t>((int64_t{longest} * (sixty_fourths >> 8 * trial & 255) + 63) / 64);
    return {length > 2 ? length : 2, trial == 0 ? 1 : 2};
  }
  const int32_t pairs = 1 << (columns - 1), n = trial / 2;
  const int32_t halves = trial - 1 + 2 * (most >= pairs ? (most + 1 - pairs) * n * n * 9 >> 13 : 0);
  const int32_t length = (2 * longest + halves - 1) / halves;
  return {length > 2 ? length : 2, (halves + 1) / 2};
}

// What becomes of the tiles of an item and of every so many-th one behind it: parts of a unit each, and the last part
// or the whole tile. Lengths are summed up in 1 << shift blocks.
template <class Threads>
constexpr void try_items(const Threads& threads, const PlanForwardParams& p, PlanScratch& s, int32_t shift,
                         int32_t items, int32_t first, int32_t step, int32_t trial, int32_t unit) {
  Trials& made = s.trials;
  const uint32_t multiplier = UINT32_MAX / static_cast<uint32_t>(unit) + 1;  // n / unit: the upper half of n times that
  int32_t read = 0;  // what reading a part takes, in 16ths of a block
  if (!p.packed_rows) {
    const int32_t pieces = s.all_tiles + upper_half(static_cast<uint32_t>(s.work), multiplier);  // about
    read = read_length(p, costs_of(p, times_heads(p, pieces)));
  }
  int32_t units_in_all = 0, longest_part = 0, longest_whole = 0;
  int64_t blocks_in_all = 0;
  for (int32_t item = first; item < items; item += step) {
    const int32_t tiles = s.item_count[item], length = s.item_length[item];
    if (tiles == 0) continue;
    int32_t units = upper_half(static_cast<uint32_t>(length - 1), multiplier), last = length - units * unit;
    if (units >= p.most_parts) units = p.most_parts - 1, last = unit;
    if (units > 0) {
      constexpr int32_t most = 1 << 22;
      const int32_t parts = tiles < most / 128 ? tiles * units : most;
      units_in_all += parts, blocks_in_all += int64_t{parts} * unit;
      last += read_blocks(units + 1, read);
    }
    if (units > 0 && last > longest_part) longest_part = last;
    if (units == 0 && last > longest_whole) longest_whole = last;
    int32_t its_class = upper_half(static_cast<uint32_t>(8 * last - 1), multiplier);
    if (its_class >= Trials::classes) its_class = Trials::classes - 1;
    threads.add((units > 0 ? made.parts : made.whole)[trial][its_class], tiles);
    const int64_t blocks = units > 0 ? int64_t{tiles} * last : s.item_blocks[item];
    threads.add(made.blocks[trial][its_class], static_cast<int32_t>(blocks >> shift));
  }
  if (longest_whole > 0) threads.raise(made.longest_whole[trial], longest_whole);
  if (units_in_all == 0) return;
  threads.raise(made.longest_part[trial], longest_part > unit ? longest_part : unit);
  threads.add(made.parts[trial][Trials::classes - 1], units_in_all);
  threads.add(made.blocks[trial][Trials::classes - 1], static_cast<int32_t>(blocks_in_all >> shift));
}

// What a piece of a class takes, on average.
constexpr void time_class(const PlanForwardParams& p, Trials& trials, int32_t trial, int32_t its_class, int32_t shift) {
  int32_t whole = 0, parts = 0;
  for (int32_t c = 0; c < Trials::classes; c++) whole += trials.whole[trial][c], parts += trials.parts[trial][c];
  const int32_t all = times_heads(p, int64_t{whole} + parts);
  const Costs costs = costs_of(p, all);
  if (its_class == 0) {
    const int64_t cut = costs.part(trials.longest_part[trial]), uncut = costs.whole(trials.longest_whole[trial]);
    trials.pieces[trial] = all, trials.slots[trial] = parts;
    trials.longest[trial] = clamped_time(parts > 0 && cut > uncut ? cut : uncut);
  }
  const int32_t own_parts = trials.parts[trial][its_class], own = trials.whole[trial][its_class] + own_parts;
  trials.all[trial][its_class] = times_heads(p, own);
  if (own == 0) return;
  const int64_t time = (int64_t{trials.blocks[trial][its_class]} << shift) * costs.block +
                       int64_t{own_parts} * costs.write;
  const float each = static_cast<float>(time) / static_cast<float>(own);
  trials.time[trial][its_class] = costs.piece + (each < longest_time ? static_cast<int32_t>(each) : longest_time);
}

constexpr Alike alike_in(const Trials& trials, int32_t trial, int32_t its_class) {
  return {trials.all[trial][its_class], trials.time[trial][its_class]};
}

// When the last piece of a class is done, if there are up to two pieces for each multiprocessor: so many, up to `end`,
// are as long or longer.
constexpr int32_t end_of_class(const PlanForwardParams& p, const Trials& trials, int32_t trial, int32_t its_class,
                               int32_t end) {
  constexpr int32_t last_class = Trials::classes - 1;
  const int32_t all = p.multiprocessors, longest = trials.longest[trial];
  if (end <= all) return longest;
  // The last one of a class is shorter than the average, but for the last class, which has the parts of a unit.
  const int32_t block = costs_of(p, trials.pieces[trial]).block;
  const int32_t shorter = its_class == last_class ? 0 : clamped_time(int64_t{trials.unit[trial]} * block / 16);
  const int32_t own = trials.time[trial][its_class] - shorter;
  // It comes behind the first piece that is as far from the last of all first ones as it is from the first of all
  // others.
  const int32_t place = 2 * all - end;
  int64_t work = -own;  // of all before it
  int32_t start = 0;
  for (int32_t c = last_class, before = 0; c >= its_class; c--) {
    const Alike alike = alike_in(trials, trial, c);
    work += int64_t{alike.pieces} * alike.time, before += alike.pieces;
    if (before > place && start == 0) start = alike.time;
  }
  // But if some have ended two pieces before others end one, these others have no more, and some share what is left.
  int32_t some = all;
  for (int32_t c = last_class; c > its_class; c--) {
    const Alike alike = alike_in(trials, trial, c);
    if (alike.pieces == 0) continue;  // nobody has written its time
    if (alike.pieces >= some || int64_t{alike.time} * some <= work) break;
    some -= alike.pieces, work -= int64_t{alike.pieces} * alike.time;
  }
  if (end - all > some) {
    const float share = static_cast<float>(work) / static_cast<float>(some);
    start = (share < longest_time ? static_cast<int32_t>(share) : longest_time) - own / 2;
  }
  return start + own > longest ? start + own : longest;
}

// What a class of a trial's pieces says of when all are done, at least. If there are one or two classes, that is known,
// and about so if there are up to two pieces for each multiprocessor. Otherwise
//   - of the longest w * multiprocessors + 1 pieces, for any w, one multiprocessor has w + 1, at best the shortest;
//   - while some have the last of the longest, others have the rest, from the longest to the shortest: a piece for
//     which they have no time comes behind the longest, or part of it does;
//   - all have a share of the work, which some exceed by half of the shortest piece.
template <class Threads>
constexpr void bound_class(const Threads& threads, const PlanForwardParams& p, Trials& trials, int32_t trial,
                           int32_t its_class) {
  constexpr int32_t last_class = Trials::classes - 1;
  Alike longer{0, 0}, longest{0, 0}, own{0, 0};  // longer: all longer ones, the time is that of the next class
  int32_t classes = 0;
  int64_t rest = 0;  // time of all from this class on but the longest
  bool is_last = true;
  for (int32_t c = last_class; c >= 0; c--) {
    const Alike alike = alike_in(trials, trial, c);
    if (alike.pieces == 0) continue;
    classes++;
    if (c == last_class) longest = alike;
    else if (c >= its_class) rest += int64_t{alike.pieces} * alike.time;
    if (c > its_class) longer = {longer.pieces + alike.pieces, alike.time};
    if (c == its_class) own = alike;
    if (c < its_class) is_last = false;
  }
  if (own.pieces == 0) return;
  if (trials.pieces[trial] <= p.multiprocessors) {
    if (is_last) trials.least[trial] = trials.longest[trial];
    return;
  }
  if (classes <= 2) {
    if (!is_last) return;
    if (longer.pieces == 0) longer = own, own.pieces = 0;
    const int32_t end = end_of(p.multiprocessors, longer, own);
    trials.least[trial] = end > trials.longest[trial] ? end : trials.longest[trial];
    return;
  }
  const int32_t end = longer.pieces + own.pieces;
  if (trials.pieces[trial] <= 2 * p.multiprocessors) {
    threads.raise(trials.least[trial], end_of_class(p, trials, trial, its_class, end));
    return;
  }
  const int32_t most = (end + p.multiprocessors - 1) / p.multiprocessors;
  const int32_t needed = (most - 1) * p.multiprocessors + 1 - longer.pieces;  // so many of these make it so many
  const int32_t taken = needed < most ? needed : most;
  const int64_t least = needed > 0 ? int64_t{taken} * own.time + int64_t{most - taken} * longer.time : 0;

  const int32_t rounds = (longest.pieces + p.multiprocessors - 1) / p.multiprocessors;
  const int64_t idle = int64_t{rounds} * p.multiprocessors - longest.pieces;
  const int64_t too_much = rest - idle * trials.longest[trial];
  int64_t behind = trials.longest[trial] + (rounds > 1 ? int64_t{rounds - 1} * longest.time : 0);
  if (its_class < last_class && too_much > 0) behind += too_much < idle * own.time ? own.time / 2 : own.time;
  threads.raise(trials.least[trial], clamped_time(least > behind ? least : behind));

  const float share = static_cast<float>(int64_t{own.pieces} * own.time) /
                      static_cast<float>(int32_t{p.multiprocessors});
  threads.add(trials.share[trial], (share < longest_time / 8 ? static_cast<int32_t>(share) : longest_time / 8) +
                                       (is_last ? own.time / 2 : 0));
}
constexpr int32_t time_of_trial(const PlanForwardParams& p, const PlanScratch& s, int32_t trial) {
  const Trials& trials = s.trials;
  int32_t time = trials.least[trial] > trials.share[trial] ? trials.least[trial] : trials.share[trial];
  // Of more than two rounds of parts and tiles less is known.
  if (trial > 0 && trials.pieces[trial] > 2 * p.multiprocessors) time += time / 32;
  return clamped_time(int64_t{launch_time} + time);
}

// Of times that one of a few has, and which of them, in one number: the least one is that of the shortest time. Times
// up to 16 ms are told apart exactly.
struct TimeOf {
  static constexpr int32_t none = INT32_MAX;
  static constexpr int32_t packed(int32_t time, int32_t number, int32_t shift) { return time >> shift << 6 | number; }
  static constexpr int32_t shift(int32_t longest) {
    int32_t shift = 0;
    while (longest >> shift >= 1 << 24) shift++;
    return shift;
  }
};

struct Tail {
  int32_t tiles, parts;

  static constexpr int32_t trials = 31;  // 2 parts, 3, .. 32
};
constexpr int32_t tail_tiles(const PlanForwardParams& p, const PlanScratch& s, int32_t tiles) {
  constexpr int32_t most_rounds = 32;  // beyond that there is little to gain
  const int32_t pieces = times_heads(p, tiles), rounds = pieces / p.multiprocessors;
  const int32_t last = pieces - rounds * p.multiprocessors;
  const bool are_alike = int64_t{s.work} * 10 >= int64_t{tiles} * s.longest * 9;
  if (!are_alike || rounds == 0 || rounds >= most_rounds || last == 0) return 0;
  const int32_t own = (last + p.heads - 1) / p.heads;
  return 2 * own <= p.most_slots ? own : 0;
}
constexpr int32_t time_of_tail(const PlanForwardParams& p, const PlanScratch& s, int32_t tiles, const Tail& tail) {
  const int32_t pieces = times_heads(p, tiles), in_tail = times_heads(p, tail.tiles);
  const Costs costs = costs_of(p, pieces);
  const int32_t part = clamped_time(costs.part((s.longest + tail.parts - 1) / tail.parts));
  const int32_t end = end_of(p.multiprocessors, {pieces - in_tail, clamped_time(costs.whole(s.longest))},
                             {in_tail * tail.parts, part});
  const int64_t read = p.packed_rows ? read_behind(p, tail.parts) : costs.read_all(tail.parts);
  return clamped_time(launch_time + end + read);
}

// Sequences of a section (plan_forward.h), as a power of two.
constexpr int32_t section_shift(const PlanForwardParams& p, int32_t longest) {
  constexpr int32_t most = 4;
  const int64_t keys = int64_t{longest} * p.Bc + p.section_rows;
  int32_t shift = 0;
  while (shift < most && keys << (shift + 1) <= p.section_keys) shift++;
  return shift;
}

// With so many pieces for each multiprocessor, or more, they are many; with fewer where not all K and V stay in the L2
// cache for the other tiles of their sequences.
inline constexpr int32_t few_rounds = 8, shared_rounds = 4;
constexpr bool are_many(const PlanForwardParams& p, const PlanScratch& s, int32_t tiles) {
  const int32_t count = p.sequences;
  const bool share = s.all_tiles >= int64_t{2} * count && count > 1 << section_shift(p, s.longest);
  return times_heads(p, tiles) >= int64_t{share ? shared_rounds : few_rounds} * p.multiprocessors;
}

// Sections of 1 << shift sequences each, but for the last one. That has two tiles for each multiprocessor, so that all
// end at about the same time, if K and V of so many sequences stay in the L2 cache.
struct Sections {
  int32_t shift;
  int32_t last;  // sequences of the last one
};
// The long tiles of a section, which come first, all wait for memory, and the short ones, which find K and V in the L2
// cache, all wait for the tensor cores. So where keys are few, and the last section is no great part of all, a section
// is one sequence, and tiles of all lengths run beside each other. (With still fewer keys all wait for memory all the
// time, and sections of several are faster.) Measured: tests/records/diary/varlen.md, the order of packed sequences.
constexpr Sections sections_of(const PlanForwardParams& p, const PlanScratch& s) {
  constexpr int32_t too_few_keys = 512, few_keys = 2048;
  const int64_t keys = int64_t{s.longest} * p.Bc, stay = int64_t{p.section_keys} * 5 / 4 / (keys + p.section_rows);
  const int32_t tiles = s.all_tiles < 1 ? 1 : s.all_tiles, last_tiles = 2 * p.multiprocessors / p.heads + 1;
  const int64_t wanted = (int64_t{last_tiles} * p.sequences + tiles - 1) / tiles;
  const bool is_one = keys >= too_few_keys && keys < few_keys && wanted * 2 < p.sequences;
  const int32_t most = clamped(stay < p.sequences ? static_cast<int32_t>(stay) : int32_t{p.sequences}, 1, 16);
  return {is_one ? 0 : section_shift(p, s.longest), wanted < most ? static_cast<int32_t>(wanted) : most};
}

constexpr int32_t time_of_whole(const PlanForwardParams& p, const PlanScratch& s, int32_t tiles) {
  if (s.tried) return time_of_trial(p, s, 0);
  const int32_t pieces = times_heads(p, tiles), rounds = (pieces + p.multiprocessors - 1) / p.multiprocessors;
  const Costs costs = costs_of(p, pieces);
  int64_t time = costs.whole(s.longest);
  if (!are_many(p, s, tiles) || tail_tiles(p, s, tiles) > 0) time *= rounds;
  const float work = static_cast<float>(int64_t{s.work} * p.heads) * static_cast<float>(costs.block);
  const float share = work / static_cast<float>(int32_t{p.multiprocessors});
  const int32_t blocks = share < longest_time ? static_cast<int32_t>(share) : longest_time;
  const int64_t all = int64_t{rounds} * costs.piece + blocks;
  return clamped_time(launch_time + (time > all ? time : all));
}

// Is it better to split the tail?
template <class Threads>
constexpr void try_tail(const Threads& threads, const PlanForwardParams& p, PlanScratch& s, const Tail& tail,
                        int32_t whole_time, int32_t shift) {
  const int32_t parts = tail.parts, tiles = listed_tiles(p, s);
  if (tail.tiles * parts > p.most_slots || parts > p.most_parts || parts << p.least_unit > s.longest) return;
  const int32_t time = time_of_tail(p, s, tiles, tail);
  if (is_better(p, s, time, whole_time, times_heads(p, tiles)))
    threads.lower(s.tail, TimeOf::packed(time, parts, shift));
}

// A tile of that length becomes one of so many items.
template <class Threads>
constexpr void add_to_items(const Threads& threads, PlanScratch& s, int32_t length, uint32_t per_longest) {
  const int32_t item_of = upper_half(static_cast<uint32_t>(length - 1) * PlanScratch::most_items, per_longest);
  const int32_t item = clamped(item_of, 0, PlanScratch::most_items - 1);
  threads.add_among_alike(s.item_count[item], int32_t{1});
  threads.raise(s.item_length[item], length);
  threads.add_among_alike(s.item_blocks[item], length);
}

// Tries all units for tiles of so many lengths: length_of(i), i < tiles, 0 if there is no such tile.
template <class Threads, class Length>
constexpr void try_units(const Threads& threads, const PlanForwardParams& p, int32_t tiles, PlanScratch& s,
                           Length length_of) {
  const int32_t most = most_cut(p, s.longest);
  const int32_t items = tiles < PlanScratch::most_items ? tiles : PlanScratch::most_items;
  const int32_t columns = columns_of(p, s);
  int32_t shift = 0;  // sums of all tiles are within int32
  while (int64_t{s.all_tiles} * s.longest >> shift >= 1 << 30) shift++;
  const uint32_t per_longest = tiles == items ? 0 : UINT32_MAX / static_cast<uint32_t>(s.longest) + 1;
  threads.each(tiles, [&](int32_t i) {
    const int32_t length = length_of(i);
    if (tiles == items) s.item_length[i] = s.item_blocks[i] = length, s.item_count[i] = length > 0;
    else if (length > 0) add_to_items(threads, s, length, per_longest);
  });
  // As many rounds as the pass has threads. Those of a trial are of the same 32.
  const int32_t team = 512 >> columns;
  const auto each_of_trials = [&](auto f) {
    threads.each_apart(512, [&](int32_t i) { f(i >> (9 - columns), i & (team - 1)); });
  };
  each_of_trials([&](int32_t trial, int32_t i) {
    Trials& made = s.trials;
    if (i < Trials::classes) made.whole[trial][i] = made.parts[trial][i] = made.blocks[trial][i] = 0;
    if (i == 0) made.least[trial] = made.share[trial] = made.longest_part[trial] = made.longest_whole[trial] = 0;
    if (trial == 0 && i == 0) s.tried = 1;
  });
  each_of_trials([&](int32_t trial, int32_t i) {
    const int32_t unit = unit_of(trial, columns, s.longest, most).length;
    if (i == 0) s.trials.unit[trial] = unit;
    try_items(threads, p, s, shift, items, i, team, trial, unit);
  });
  each_of_trials([&](int32_t trial, int32_t i) {
    if (i < Trials::classes) time_class(p, s.trials, trial, i, shift);
  });
  each_of_trials([&](int32_t trial, int32_t i) {
    if (i < Trials::classes) bound_class(threads, p, s.trials, trial, i);
  });
  threads.each(0, [](int32_t) {});  // from here on all trials are known to all
}

// Which unit of those that were tried is best, and how many parts of the tail, so many tiles?
template <class Threads>
constexpr void compare(const Threads& threads, const PlanForwardParams& p, PlanScratch& s, int32_t tail) {
  const int32_t whole_time = time_of_whole(p, s, listed_tiles(p, s)), shift = TimeOf::shift(whole_time);
  threads.each(Trials::count + (tail > 0 ? Tail::trials : 0), [&](int32_t i) {
    if (i >= Trials::count) return try_tail(threads, p, s, {tail, i - Trials::count + 2}, whole_time, shift);
    if (!s.tried || i >= 1 << columns_of(p, s)) return;
    const int32_t parts = unit_of(i, columns_of(p, s), s.longest, most_cut(p, s.longest)).parts;
    const int32_t time = clamped_time(int64_t{time_of_trial(p, s, i)} + read_behind(p, parts));
    const int32_t unit = s.trials.unit[i];
    // Tiles that are many balance themselves, unless some are much longer.
    const bool are_many = !p.packed_rows && 4 * s.trials.pieces[0] >= 7 * p.multiprocessors;
    const bool takes = unit >= 1 << p.least_unit && unit < s.longest && s.trials.slots[i] <= p.most_slots &&
                       (!are_many || time < whole_time - whole_time / 10) &&
                       is_better(p, s, time, whole_time, s.trials.pieces[i]);
    if (takes) threads.lower(s.best, TimeOf::packed(time, i, shift));
  });
}
constexpr bool has_unit(const PlanScratch& s) { return s.tried && s.best != TimeOf::none; }
constexpr int32_t best_trial(const PlanScratch& s) { return s.best & 63; }

constexpr Tail best_tail(const PlanScratch& s, int32_t tiles) {
  if (s.tail == TimeOf::none || (has_unit(s) && s.best >> 6 <= s.tail >> 6)) return {0, 1};
  return {tiles, s.tail & 63};
}

// What is predicted, with all tiles whole and as planned; of a constant unit nothing.
struct PredictedTimes {
  int32_t whole, planned;
};
constexpr PredictedTimes predicted_times(const PlanForwardParams& p, const PlanScratch& s) {
  if (p.unit) return {0, 0};
  const int32_t whole = time_of_whole(p, s, s.all_tiles);
  const int32_t shift = TimeOf::shift(whole);
  int32_t planned = has_unit(s) ? s.best >> 6 << shift : whole;
  if (s.tail >> 6 << shift < planned && s.tail != TimeOf::none) planned = s.tail >> 6 << shift;
  return {whole, planned};
}

}  // namespace fa3
