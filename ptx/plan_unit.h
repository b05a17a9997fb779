// The unit with which the planner for packed lengths (plan_lengths.h) cuts tiles: 64 units are tried, those that cut the
// longest tile into 1, 2, 3, .. parts, and one between each two of them. How long would the multiprocessors take for
// what each makes of all tiles? Plain C++, read by both sides.
//
// Tiles are taken as items: of up to 128 tiles each is one; of more those of about the same length, for the longest.
#pragma once
#include <cstdint>

#include "plan_params.h"

namespace fa3 {

// What a K/V block, and a piece beside its blocks, take if there are so many pieces, of all heads.
struct Rates {
  int32_t block, piece;
  const Costs& costs;
};
constexpr Rates rates_of(const PlanLengthsParams& p, int32_t pieces) {
  const Costs& costs = pieces <= p.multiprocessors ? p.together : p.behind;
  const int32_t busy = pieces < p.multiprocessors ? pieces : int32_t{p.multiprocessors};
  const double bytes = static_cast<double>(p.block_bytes);
  const int32_t for_all = static_cast<int32_t>(bytes * busy * (fit_cache(p.all_bytes) ? 1. / of_cache : 1. / of_memory));
  const int32_t for_one = static_cast<int32_t>(bytes * (1. / of_one));
  int32_t block = costs.block;
  if (for_all > block) block = for_all;
  if (for_one > block) block = for_one;
  return {block, p.among && pieces > p.many ? p.among : costs.piece, costs};
}

// What the last of a tile's parts takes to add all up. With packed heads that comes behind all pieces, otherwise it is
// one of these.
constexpr int64_t read_time(const PlanLengthsParams& p, const Rates& rates, int64_t parts) {
  if (parts == 1) return 0;
  return p.packed_rows ? combine_time(parts, p.packed_rows, parts) : rates.costs.read_all(parts);
}
constexpr int64_t read_behind(const PlanLengthsParams& p, const Rates& rates, int64_t parts) {
  return p.packed_rows ? read_time(p, rates, parts) : 0;
}

// Of all heads; and no more than can be counted.
constexpr int32_t of_all_heads(const PlanLengthsParams& p, int64_t pieces) {
  constexpr int64_t most = 1 << 30;
  return static_cast<int32_t>(pieces * p.heads < most ? pieces * p.heads : most);
}

// With so many pieces for each multiprocessor, or more, they are many.
inline constexpr int32_t few_rounds = 8;

// What a piece of the longest tile takes, and a multiprocessor's share of all.
struct LeastTimes {
  double longest, share;
};
constexpr LeastTimes least_times(const PlanLengthsParams& p, const PlanScratch& s, int32_t pieces) {
  const Rates rates = rates_of(p, pieces);
  const double work = static_cast<double>(s.work) * p.heads * rates.block + static_cast<double>(pieces) * rates.piece;
  return {static_cast<double>(s.longest) * rates.block + rates.piece, work / int32_t{p.multiprocessors}};
}

constexpr int32_t upper_half(uint32_t a, uint32_t b) { return static_cast<int32_t>(uint64_t{a} * b >> 32); }

constexpr int32_t parts_of(const PlanLengthsParams& p, int32_t length, int32_t unit) {
  if (length <= unit) return 1;
  const int32_t parts = (length + unit - 1) / unit;
  return parts < p.most_parts ? parts : p.most_parts;
}

// Into how many parts the longest tile may be cut.
constexpr int32_t most_cut(const PlanLengthsParams& p, int32_t longest) {
  int32_t most = p.most_parts < p.most_slots ? p.most_parts : p.most_slots;
  if (most > longest / p.least_unit) most = longest / p.least_unit;
  return most < 1 ? 1 : most;
}
// Of so many parts, from which on all are tried in steps: those of trials 2 n.
constexpr int32_t parts_of_trial(int32_t n, int32_t most) {
  constexpr int32_t steps = Trials::count / 2 - 1;
  return n + 1 + (most > steps + 1 ? (most - steps - 1) * n * n / (steps * steps) : 0);
}
constexpr int32_t unit_of_trial(int32_t trial, int32_t longest, int32_t most) {
  const auto unit_of = [&](int32_t n) {
    const int32_t parts = parts_of_trial(n, most);
    return (longest + parts - 1) / parts;
  };
  return trial % 2 == 0 ? unit_of(trial / 2) : (unit_of(trial / 2) + unit_of(trial / 2 + 1) + 1) / 2;
}
constexpr int32_t trials_of(int32_t most) { return 2 * most - 1 < Trials::count ? 2 * most - 1 : Trials::count; }

// Lengths are counted in 1 << shift blocks here, so that sums of all tiles are within int32.
constexpr int32_t shift_of(const PlanScratch& s) {
  int32_t shift = 0;
  while (int64_t{s.all_tiles} * s.longest >> shift >= 1 << 30) shift++;
  return shift;
}

// What becomes of an item's tiles: parts of a unit each, and the last part or the whole tile.
template <class Threads>
constexpr void try_item(const Threads& threads, const PlanLengthsParams& p, PlanScratch& s, int32_t shift, int32_t item,
                        int32_t trial) {
  const int32_t tiles = s.item_count[item];
  if (tiles == 0) return;
  Trials& made = s.trials;
  const int32_t length = s.item_length[item], unit = made.unit[trial];
  const uint32_t multiplier = made.multiplier[trial];
  int32_t units = upper_half(static_cast<uint32_t>(length - 1), multiplier), last = length - units * unit;
  if (units >= p.most_parts) units = p.most_parts - 1, last = unit;
  const auto add = [&](bool is_part, int32_t its_class, int32_t pieces, int64_t blocks) {
    threads.add((is_part ? made.parts : made.whole)[its_class][trial], pieces);
    threads.add(made.blocks[its_class][trial], static_cast<int32_t>(blocks >> shift));
  };
  if (units > 0) {
    constexpr int32_t most = 1 << 22;
    add(true, Trials::classes - 1, tiles < most / 128 ? tiles * units : most, int64_t{tiles} * units * unit);
    last += (units == 1 ? 1 : units + 1) * s.read_length / 16;
  }
  const int32_t eighths = upper_half(static_cast<uint32_t>(8 * last - 1), multiplier);
  add(units > 0, eighths < Trials::classes ? eighths : Trials::classes - 1, tiles, int64_t{tiles} * last);
}

// All that a trial makes.
struct Made {
  int32_t pieces, parts;
  double blocks;
};
constexpr Made made_of(const Trials& trials, int32_t trial, int32_t shift) {
  int32_t whole = 0, parts = 0, blocks = 0;
  for (int32_t c = 0; c < Trials::classes; c++)
    whole += trials.whole[c][trial], parts += trials.parts[c][trial], blocks += trials.blocks[c][trial];
  return {whole + parts, parts, static_cast<double>(int64_t{blocks} << shift)};
}

// Times that are compared are in nanoseconds.
constexpr int32_t longest_time = 1 << 30;
constexpr int32_t rounded_time(double time) { return time < longest_time ? static_cast<int32_t>(time) : longest_time; }

// What a piece of a class takes, on average.
constexpr int32_t time_of_piece(const PlanLengthsParams& p, const Trials& trials, int32_t trial, int32_t its_class,
                                int32_t shift) {
  const int32_t parts = trials.parts[its_class][trial], pieces = trials.whole[its_class][trial] + parts;
  if (pieces == 0) return 0;
  const Rates rates = rates_of(p, of_all_heads(p, made_of(trials, trial, shift).pieces));
  const double blocks = static_cast<double>(int64_t{trials.blocks[its_class][trial]} << shift);
  return rounded_time((blocks * rates.block + static_cast<double>(parts) * rates.costs.write) / pieces + rates.piece);
}

// When multiprocessors that take pieces of two times one by one, the longer ones first, are done. At any time some are
// free sooner than others: these are taken for two groups, of which each is free at once.
class Rounds {
 public:
  constexpr explicit Rounds(const Divisor& multiprocessors) : all_(multiprocessors), early_(multiprocessors) {}

  // The next pieces, as many of the same time.
  constexpr void add(int32_t time, int32_t pieces) {
    const int32_t each = (late_time_ - early_time_) / time;  // of the early ones before the late ones are free
    if (pieces <= int64_t{each} * early_) {
      early_time_ += rounded_time(static_cast<double>(pieces) * time / early_);
      return;
    }
    // Then all take as many, the early ones first.
    const int32_t left = pieces - each * early_, rounds = left / all_, last = left - rounds * all_;
    const int32_t late = all_ - early_;
    const double of_rounds = static_cast<double>(rounds) * time;
    const double early = early_time_ + static_cast<double>(each) * time + of_rounds, behind = late_time_ + of_rounds;
    if (last <= early_) {
      late_time_ = rounded_time(last > 0 ? early + time : behind > early ? behind : early);
      early_time_ = rounded_time(((early_ - last) * early + late * behind) / (last < all_ ? all_ - last : 1));
      early_ = all_ - last;
    } else {
      late_time_ = rounded_time(behind + time);
      early_time_ = rounded_time((early_ * (early + time) + (all_ - last) * behind) / (early_ + all_ - last));
      early_ += all_ - last;
    }
    if (early_ == 0) early_ = all_, early_time_ = late_time_;
  }
  constexpr int32_t end() const { return late_time_ > early_time_ ? late_time_ : early_time_; }

 private:
  const Divisor& all_;
  int32_t early_;  // so many
  int32_t early_time_ = 0, late_time_ = 0;
};

// When the pieces of a trial are done. Of many different ones: of the longest w * multiprocessors + 1, for any w, one
// multiprocessor has w + 1, at best the shortest of these. And all have a share of the work, and some end later by a
// part of the shortest piece.
constexpr int32_t time_of_trial(const PlanLengthsParams& p, const Trials& trials, int32_t trial, int32_t longest,
                                int32_t shift) {
  Rounds rounds(p.multiprocessors);
  int32_t classes = 0, longer = 0;
  int64_t before = 0, longest_time = 0;
  double work = 0;
  for (int32_t c = Trials::classes - 1; c >= 0; c--) {
    const int32_t own = trials.whole[c][trial] + trials.parts[c][trial], time = trials.time[c][trial];
    if (own == 0) continue;
    const int32_t first = of_all_heads(p, before), pieces = of_all_heads(p, own), end = of_all_heads(p, before + own);
    const int32_t most = (end + p.multiprocessors - 1) / p.multiprocessors;  // on one multiprocessor
    const int32_t needed = (most - 1) * p.multiprocessors + 1 - first;       // so many of these bring it there
    const int32_t here = needed < most ? needed : most;
    const int64_t all = int64_t{here} * time + int64_t{most - here} * longer;
    if (needed > 0 && all > longest_time) longest_time = all;
    if (classes++ < 2) rounds.add(time, pieces);
    work += static_cast<double>(pieces) * time;
    before += own, longer = time;
  }
  const int32_t pieces = of_all_heads(p, before);
  const double share = work / int32_t{p.multiprocessors} + (pieces > p.multiprocessors ? .35 * longer : 0);
  const double time = classes <= 2 ? rounds.end() : share > static_cast<double>(longest_time) ? share
                                                                                          : static_cast<double>(longest_time);
  const Rates rates = rates_of(p, pieces);
  return rounded_time(static_cast<double>(launch_time) + time +
                      static_cast<double>(read_behind(p, rates, parts_of(p, longest, trials.unit[trial]))));
}

// Is it better than leaving all tiles whole? If packed heads wait for memory, multiprocessors are at different places,
// which makes up for what a few more rounds seem to gain, unless tiles take longer than that.
constexpr bool is_better(const PlanLengthsParams& p, const PlanScratch& s, int32_t time, int32_t whole_time,
                         int32_t pieces) {
  constexpr int32_t long_tile = 100'000;
  const Rates rates = rates_of(p, pieces);
  const bool is_sure = !p.packed_rows || pieces <= p.multiprocessors || int64_t{s.longest} * rates.block > long_tile;
  return time < (is_sure ? whole_time : whole_time - whole_time / 10) && worth_splitting(time, whole_time);
}
constexpr bool is_acceptable(const PlanLengthsParams& p, const PlanScratch& s, int32_t trial, int32_t time,
                             int32_t whole_time, int32_t shift) {
  const Made made = made_of(s.trials, trial, shift);
  const int32_t unit = s.trials.unit[trial];
  return unit >= p.least_unit && unit < s.longest && made.parts <= p.most_slots &&
         is_better(p, s, time, whole_time, of_all_heads(p, made.pieces));
}

// Chooses among the units for tiles of so many lengths: length_of(i), i < tiles.
template <class Threads, class Length>
constexpr void choose_unit(const Threads& threads, const PlanLengthsParams& p, int32_t tiles, PlanScratch& s,
                           Length length_of) {
  const int32_t most = most_cut(p, s.longest), shift = shift_of(s), trials = trials_of(most);
  int32_t width = 0;  // of an item's lengths, as a power of two
  while ((s.longest - 1) >> width >= PlanScratch::most_items) width++;
  threads.each(Trials::classes * Trials::count, [&](int32_t i) {
    Trials& made = s.trials;
    const int32_t trial = i % Trials::count, its_class = i / Trials::count;
    made.whole[its_class][trial] = made.parts[its_class][trial] = made.blocks[its_class][trial] = 0;
    if (i < PlanScratch::most_items) s.item_length[i] = s.item_count[i] = 0;
    if (i < Trials::count) {
      const int32_t unit = unit_of_trial(i, s.longest, most);
      made.unit[i] = unit > 1 ? unit : 2;
      made.multiplier[i] = UINT32_MAX / static_cast<uint32_t>(made.unit[i]) + 1;
    }
    if (i == 0) s.best_time = longest_time, s.best = Trials::count, s.tried = 1;
    if (i == 0) s.read_length = p.packed_rows ? 0 : 16 * p.behind.read / p.behind.block;
  });
  threads.each(tiles, [&](int32_t i) {
    const int32_t length = length_of(i);
    if (tiles <= PlanScratch::most_items) {
      s.item_length[i] = length, s.item_count[i] = 1;
    } else {
      const int32_t item = clamped((length - 1) >> width, 0, PlanScratch::most_items - 1);
      threads.add_among_alike(s.item_count[item], int32_t{1});
      threads.raise(s.item_length[item], length);
    }
  });
  const int32_t items = tiles < PlanScratch::most_items ? tiles : PlanScratch::most_items;
  const int32_t columns = trials <= 32 ? 32 : 64;
  threads.each(items * columns, [&](int32_t i) { try_item(threads, p, s, shift, i / columns, i % columns); });
  threads.each(Trials::classes * Trials::count, [&](int32_t i) {
    const int32_t trial = i % Trials::count, its_class = i / Trials::count;
    s.trials.time[its_class][trial] = trial < trials ? time_of_piece(p, s.trials, trial, its_class, shift) : 0;
  });
  const auto time_of = [&](int32_t trial) { return time_of_trial(p, s.trials, trial, s.longest, shift); };
  threads.each(trials, [&](int32_t trial) {
    const int32_t whole_time = time_of(0), time = time_of(trial);
    const bool takes = is_acceptable(p, s, trial, time, whole_time, shift);
    s.trials.all[trial] = takes || trial == 0 ? time : longest_time;
    if (takes) threads.lower(s.best_time, time);
  });
  threads.each(trials, [&](int32_t trial) {
    const int32_t time = s.trials.all[trial];
    if (trial > 0 && time < longest_time && time == s.best_time) threads.lower(s.best, trial);
  });
}

// Where all tiles are about as long, and more than multiprocessors, the last round may have few of them. Then these, the
// tail of the list, may be split, each into as many parts, which make rounds of their own.
struct Tail {
  int32_t tiles, parts;
};
constexpr int32_t tail_tiles(const PlanLengthsParams& p, const PlanScratch& s, int32_t tiles) {
  constexpr int32_t most_rounds = 32;  // beyond that there is little to gain
  const int32_t pieces = of_all_heads(p, tiles), rounds = pieces / p.multiprocessors;
  const int32_t last = pieces - rounds * p.multiprocessors, own = (last + p.heads - 1) / p.heads;
  const bool are_alike = s.work >= .9 * tiles * s.longest;
  return are_alike && rounds > 0 && rounds < most_rounds && last > 0 && 2 * own <= p.most_slots ? own : 0;
}
constexpr int32_t time_of_tail(const PlanLengthsParams& p, const PlanScratch& s, int32_t tiles, const Tail& tail) {
  const int32_t pieces = of_all_heads(p, tiles), in_tail = of_all_heads(p, tail.tiles);
  const Rates rates = rates_of(p, pieces);
  const auto time = [&](int32_t length) {
    return rounded_time(static_cast<double>(length) * rates.block + rates.piece);
  };
  const int32_t part = time((s.longest + tail.parts - 1) / tail.parts);
  Rounds rounds(p.multiprocessors);
  rounds.add(time(s.longest), pieces - in_tail);
  rounds.add(tail.parts > 1 ? part + rates.costs.write : part, in_tail * tail.parts);
  return rounded_time(static_cast<double>(launch_time + rounds.end() + read_behind(p, rates, tail.parts)));
}
constexpr int32_t whole_time_of(const PlanLengthsParams& p, const PlanScratch& s, int32_t tiles) {
  if (s.tried) return s.trials.all[0];
  const int32_t pieces = of_all_heads(p, tiles), rounds = (pieces + p.multiprocessors - 1) / p.multiprocessors;
  const LeastTimes least = least_times(p, s, pieces);
  const double longest = rounds < few_rounds || tail_tiles(p, s, tiles) > 0 ? rounds * least.longest : least.longest;
  return rounded_time(static_cast<double>(launch_time) + (longest > least.share ? longest : least.share));
}

template <class Threads>
constexpr Tail choose_tail(const Threads& threads, const PlanLengthsParams& p, int32_t tiles, PlanScratch& s) {
  const int32_t own = tail_tiles(p, s, tiles);
  if (own == 0) return {0, 1};
  constexpr int32_t most_tail_parts = 32;
  const int32_t whole_time = whole_time_of(p, s, tiles);
  const auto parts_of_round = [](int32_t i) { return i + 2; };
  const auto time_of_round = [&](int32_t i) {
    const int32_t parts = parts_of_round(i);
    if (own * parts > p.most_slots || parts > p.most_parts || parts * p.least_unit > s.longest) return longest_time;
    const int32_t time = time_of_tail(p, s, tiles, {own, parts});
    return is_better(p, s, time, whole_time, of_all_heads(p, tiles)) ? time : longest_time;
  };
  threads.each(most_tail_parts - 1, [&](int32_t i) { threads.lower(s.tail_time, time_of_round(i)); });
  threads.each(most_tail_parts - 1, [&](int32_t i) {
    if (time_of_round(i) == s.tail_time) threads.lower(s.tail_parts, parts_of_round(i));
  });
  if (s.tail_time == longest_time || (s.tried && s.best < Trials::count && s.best_time <= s.tail_time)) return {0, 1};
  return {own, s.tail_parts};
}

// What is predicted, in nanoseconds, with all tiles whole and as planned; of a constant unit nothing.
struct PredictedTimes {
  int32_t whole, planned;
};
constexpr PredictedTimes predicted_times(const PlanLengthsParams& p, const PlanScratch& s) {
  if (p.unit) return {0, 0};
  const int32_t whole = whole_time_of(p, s, s.all_tiles);
  int32_t planned = s.tried && s.best < Trials::count ? s.trials.all[s.best] : whole;
  if (s.tail_time < planned) planned = s.tail_time;
  return {whole, planned};
}

}  // namespace fa3
