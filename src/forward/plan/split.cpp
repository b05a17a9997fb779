// Which tiles of a problem are split along the keys, on one row of the table: all are left whole, or some become parts,
// whichever is predicted to be faster (candidate.h, cost.h). src/README.md has a measured example of each case.
//
// Without a mask all tiles are of one length. They fill the multiprocessors wave by wave, and the last wave may leave
// some idle. So its tiles are split, and it becomes one wave of shorter pieces (split_last_wave):
//  - each tile into as many equal parts as fit into that wave,
//  - or at quotas: the blocks of all its tiles, laid end to end, are cut into as many quotas of one length as there are
//    multiprocessors. Then none is idle; but many quotas consist of parts of two tiles, and each part costs something.
//
// With packed heads, tiles of one length wait for memory. (Those of few queries under a causal mask are of one length,
// too, if each K/V head has only one tile.) So there (split_packed)
//  - tiles that are fewer than multiprocessors are all split into equal parts, in one round or several, so many that
//    the last round has nearly as many parts as there are multiprocessors (equal_parts),
//  - of more tiles, if they are long or the last wave has few of them, the last ones become parts from long to short,
//    which are claimed one by one (shrinking_parts): memory serves some multiprocessors half as fast again as others,
//    and the fewer still ask for something, the faster it serves them,
//  - and tiles that are many and short are left whole.
//
// Other causal tiles differ in length. They are claimed one by one, so that short ones fill the gaps that long ones
// leave. Where they are many that is all. Where they are few (split_causal)
//  - all are split into parts of one length (split_all),
//  - or the longest are cut in two, if they would last much longer than a multiprocessor has to work on average
//    (cut_longest).
// And where they are many but their keys few, so that long and short ones run beside each other (mixes_lengths), the
// last ones are claimed from the longest to the shortest (sort_last).
#include "forward/plan/split.h"

#include <algorithm>
#include <cmath>

#include "forward/plan/candidate.h"
#include "integers.h"
#include "params/params.h"

namespace fa3 {
namespace {

// Parts of fewer blocks cost more by their first and last steps than they gain.
constexpr int64_t least_blocks = 4;

// With packed heads, tiles that take longer are long: if they are left whole, they end at very different times, and a
// multiprocessor that has none left is idle for long. In nanoseconds.
constexpr int64_t long_time = 100'000;
// Where tiles are shorter, it takes parts so much longer than their blocks alone, as each part begins and ends. A split
// that then seems to gain less than a tenth is left. Measured: 1.03 and 1.2 waves of tiles are up to 23% faster if they
// are split; 1.94 and 7.76 waves, where it seems to gain 0 to 6%, are 1 to 10% slower.
constexpr int64_t short_delay = 9'000;

// So many parts for each multiprocessor, at most, which bounds the workspace; and with packed heads.
constexpr int64_t most_multiprocessor_parts = 2, most_packed_multiprocessor_parts = 3;

// Of several rounds of parts each takes so much longer than its blocks. Measured on an H200 with 8 to 128 tiles, each
// in up to 64 parts. In nanoseconds.
constexpr int64_t round_time = 900;

// The pieces of the tiles from number first_tile on, in the order of their claims.
struct List {
  int32_t first_tile = 0;
  int32_t entry_tiles = 1;   // so many tiles share each entry, which is the piece of the first one
  int32_t ticket_tiles = 0;  // so many of the tiles, the first, may be split
  int32_t slots = 0;
  int count = 0;          // of entries
  bool complete = true;   // all pieces have found room
  Work work[list_capacity];

  List() = default;
  List(const List& other) { *this = other; }
  List& operator=(const List& other) {  // of the pieces only those that there are
    first_tile = other.first_tile, entry_tiles = other.entry_tiles, ticket_tiles = other.ticket_tiles;
    slots = other.slots, count = other.count, complete = other.complete;
    std::copy_n(other.work, count, work);
    return *this;
  }
  void add(const Work& piece) {
    if (count < list_capacity) work[count++] = piece;
    else complete = false;
  }
  // Parts of `unit` blocks each of the list's n-th tile, which has so many blocks.
  void add_parts(int32_t n, int64_t blocks, int64_t unit) {
    const int32_t parts = narrow(divide_up(blocks, unit));
    for (int32_t part = 0; part < parts; ++part)
      add({first_tile + n, narrow(part * unit), narrow(std::min(blocks, (part + 1) * unit)), part, parts, slots, n});
    if (parts > 1) slots += parts;
  }
};

class Splitter : Candidate {
 public:
  Splitter(const ForwardProblem& problem, const ForwardRow& row, const Card& card, int64_t limit, bool roughly)
      : Candidate(problem, row, card), whole_(whole_time(roughly, limit)), limit_(limit), best_(whole_) {
    list_.first_tile = tiles.count();
  }

  void plan(RowPlan& plan) {
    if (row.has(Trait::splits)) {
      if (same_length && packs_heads) split_packed();
      else if (same_length) split_last_wave();
      else if (mixes_lengths) sort_last();
      else split_causal();
    }
    plan.tiles = tiles;
    plan.whole_us = static_cast<double>(whole_) / 1e3;
    plan.predicted_us = static_cast<double>(best_) / 1e3;
    plan.slots = list_.slots;
    plan.pieces = {list_.first_tile, list_.count * list_.entry_tiles, list_.ticket_tiles, narrow(grain),
                   Divisor::of(list_.entry_tiles)};
    for (int n = 0; n < list_.count; ++n) plan.list[n] = listed(list_.work[n]);
    plan.workspace = layout();
  }

 private:
  // Times of pieces, in the order of their claims: so many of the same time in each group.
  struct Times {
    int64_t times[list_capacity];
    int32_t pieces[list_capacity];
    int groups = 0, count = 0;
    bool complete = true;

    void add(int64_t time, int64_t more) {
      complete &= count + more <= list_capacity;
      if (!complete) return;
      count += static_cast<int>(more);
      if (groups > 0 && times[groups - 1] == time) pieces[groups - 1] += static_cast<int32_t>(more);
      else times[groups] = time, pieces[groups++] = static_cast<int32_t>(more);
    }
    // When the last one ends; where that is after `latest`, any time after it.
    int64_t end(int64_t multiprocessors, int64_t latest) const {
      if (count <= multiprocessors) return count ? *std::max_element(times, times + groups) : 0;
      if (groups * many_alike <= count) {
        Simulation simulation(multiprocessors);
        for (int n = 0; n < groups && simulation.end() <= latest; ++n) simulation.add(times[n], pieces[n]);
        return simulation.end();
      }
      SingleSimulation simulation(multiprocessors);
      for (int n = 0; n < groups && simulation.end() <= latest; ++n)
        for (int32_t piece = 0; piece < pieces[n]; ++piece) simulation.add(times[n]);
      return simulation.end();
    }
  };

  // Takes the list if its pieces end sooner than those of the best one so far. They come behind whole tiles that keep
  // all multiprocessors busy until `start`.
  void consider(const List& list, const Costs& busy, int64_t start) {
    Times times;
    for (int n = 0; n < list.count; ++n) times.add(busy.time(list.work[n]), 1);
    times.complete &= list.complete;
    if (is_better(times, start)) list_ = list;
  }
  bool is_better(const Times& times, int64_t start = launch_time) {
    const int64_t time = end_of(times, start);
    if (!may_be_better(time)) return false;
    best_ = time;
    return true;
  }
  // When they end; where that is no better than the best ones so far, perhaps sooner than they do.
  int64_t end_of(const Times& times, int64_t start) const {
    return times.complete ? start + times.end(multiprocessors, std::min(best_, limit_) - start) : INT64_MAX;
  }
  // Could pieces that end then, at the soonest, be better than the best ones so far?
  bool may_be_better(int64_t least) const {
    return least < best_ && least <= limit_ && worth_splitting(least, whole_);
  }

  // Ways to split, and when their pieces end at the soonest. Only the most promising ones are tried.
  struct Ways {
    static constexpr int most = 32, tried = 8;
    struct Way {
      int64_t least, how;
      int64_t least_of_rounds;  // the same, as some take several of the longest pieces
    } ways[most];
    int count = 0;

    void add(int64_t least, int64_t how, int64_t least_of_rounds) { ways[count++] = {least, how, least_of_rounds}; }
    const Way* begin() {
      std::sort(ways, ways + count, [](const Way& a, const Way& b) { return a.least < b.least; });
      return ways;
    }
    const Way* end() const { return ways + std::min(count, tried); }
  };

  int64_t whole_grains(int64_t blocks) const { return grain == 1 ? blocks : divide_up(blocks, grain) * grain; }

  // Without a mask: the tiles of the last wave.
  void split_last_wave() {
    const int64_t waves = tiles.count() / multiprocessors, last = tiles.count() % multiprocessors, n = longest;
    if (last == 0) return;
    const Costs& together_or_behind = waves == 0 ? costs.together : costs.behind;
    const Costs busy = under_way(together_or_behind, multiprocessors);
    const int64_t start = launch_time + in_turn(waves, busy.whole(n));
    const int64_t least = start + busy.part(divide_up(last * n, multiprocessors));
    if (!worth_splitting(least, whole_)) return;
    List list;
    list.first_tile = narrow(tiles.count() - last), list.ticket_tiles = narrow(last);

    const int64_t most = std::min<int64_t>({Listed::most_parts, multiprocessors / last, n / least_blocks});
    int64_t cheapest = INT64_MAX, unit = 0;
    for (int64_t parts = 2; parts <= most; ++parts) {
      const int64_t blocks = whole_grains(divide_up(n, parts)), made = divide_up(n, blocks);
      const int64_t cost = under_way(together_or_behind, last * made).part(blocks) + busy.read_all(made);
      if (made > 1 && cost < cheapest) cheapest = cost, unit = blocks;
    }
    if (unit > 0) {
      for (int32_t tile = 0; tile < last; ++tile) list.add_parts(tile, n, unit);
      consider(list, under_way(together_or_behind, list.count), start);
    }
    const int64_t quota = whole_grains(divide_up(last * n, multiprocessors));
    if (may_be_better(least) && quota < n && quota >= least_blocks && divide_up(n, quota) < Listed::most_parts) {
      list.count = list.slots = 0;
      cut_at_quotas(list, last, quota);
      consider(list, under_way(together_or_behind, list.count), start);
    }
  }

  // The blocks of so many tiles, end to end, cut wherever a multiprocessor's quota is full. Pieces are listed from the
  // longest to the shortest: two parts that make up a quota then meet on one multiprocessor again, the longest with the
  // shortest.
  void cut_at_quotas(List& list, int64_t count, int64_t quota) const {
    const int64_t n = longest, tile_grains = whole_grains(n);
    Work shorter[list_capacity];
    int shorter_count = 0;
    for (int32_t tile = 0; tile < count; ++tile) {
      const int64_t start = tile * tile_grains, first = start / quota;
      const int32_t parts = narrow((start + n - 1) / quota - first + 1);
      for (int32_t part = 0; part < parts; ++part) {
        const int64_t begin = std::max<int64_t>(0, (first + part) * quota - start);
        const int64_t end = std::min(n, (first + part + 1) * quota - start);
        const Work work{list.first_tile + tile, narrow(begin), narrow(end), part, parts, list.slots, tile};
        if (end - begin == quota) list.add(work);
        else if (shorter_count < list_capacity) shorter[shorter_count++] = work;
        else list.complete = false;
      }
      if (parts > 1) list.slots += parts;
    }
    add_sorted(list, shorter, shorter_count, quota);
  }

  // From the longest to the shortest, of which none has more than `most` blocks; those of one length in their order.
  static void add_sorted(List& list, const Work* work, int count, int64_t most) {
    constexpr int64_t buckets = 1024;  // one for each length
    const auto missing = [&](int i) { return most - (work[i].end - work[i].begin); };
    if (most < buckets) {
      int ends[buckets], order[list_capacity];
      std::fill_n(ends, most + 1, 0);
      for (int i = 0; i < count; ++i) ++ends[missing(i)];
      for (int64_t n = 1; n <= most; ++n) ends[n] += ends[n - 1];
      for (int i = count - 1; i >= 0; --i) order[--ends[missing(i)]] = i;
      for (int i = 0; i < count; ++i) list.add(work[order[i]]);
      return;
    }
    int64_t keys[list_capacity];
    for (int i = 0; i < count; ++i) keys[i] = missing(i) << 32 | i;
    std::sort(keys, keys + count);
    for (int i = 0; i < count; ++i) list.add(work[keys[i] & 0xffffffff]);
  }

  // With packed heads, tiles of one length.
  void split_packed() {
    const int64_t count = tiles.count(), block = under_way(costs.together, multiprocessors).block;
    if (count < multiprocessors) return equal_parts();
    const int64_t blocks = count * longest;
    const int64_t average =
        in_turn(blocks / multiprocessors, block) + blocks % multiprocessors * block / multiprocessors;
    if (longest * block >= long_time) shrinking_parts(average, whole_);
    else shrinking_parts(average + short_delay, whole_ * 9 / 10);
  }

  // All tiles, each in so many parts of the same length.
  void equal_parts() {
    const int64_t count = tiles.count(), n = longest, rows = std::min<int64_t>(rows_of(problem, row), 64);
    const int64_t most = std::min<int64_t>({Listed::most_packed_parts, n / 2,
                                            most_packed_multiprocessor_parts * multiprocessors / count});
    const int64_t of_all = under_way(costs.together, multiprocessors).block;
    int64_t unit = 0;
    for (int64_t parts = 2; parts <= most; ++parts) {
      const int64_t blocks = whole_grains(divide_up(n, parts)), made = divide_up(n, blocks);
      if (made != parts) continue;
      const int64_t rounds = (count * parts - 1) / multiprocessors, last = count * parts - rounds * multiprocessors;
      const int64_t end = blocks * under_way(costs.together, last).block;
      int64_t time = launch_time + end + costs.together.part(0);
      time += late(costs.together, last, end);
      // Warpgroups that have nothing else to do add parts up together.
      time += combine_time(parts, rows, rounds ? 1 : parts);
      // After a round multiprocessors are at different places.
      if (rounds) time += rounds * (blocks * of_all + round_time) + blocks * of_all / 16;
      if (time < best_ && worth_splitting(time, whole_)) best_ = time, unit = blocks;
    }
    if (unit == 0) return;
    list_ = List();
    list_.ticket_tiles = list_.entry_tiles = narrow(count);
    cut_packed([unit](int64_t) { return unit; });
  }

  // The last tiles, one for each multiprocessor, in three parts of which the last one has a fifth of the first one's
  // blocks. `average`: what the blocks of all tiles take a multiprocessor. `whole`: what must be undercut.
  void shrinking_parts(int64_t average, int64_t whole) {
    constexpr int64_t parts = most_packed_multiprocessor_parts;
    const int64_t n = divide_up(longest, grain);
    if (n < 5 * parts) return;
    const int64_t rows = std::min<int64_t>(rows_of(problem, row), 64);
    const int64_t time = launch_time + average + costs.behind.part(0) + combine_time(parts, rows, 1);
    if (time >= best_ || !worth_splitting(time, whole)) return;
    best_ = time;
    list_ = List();
    list_.first_tile = narrow(tiles.count() - multiprocessors);
    list_.ticket_tiles = list_.entry_tiles = narrow(multiprocessors);
    // Their weights are 5, 3 and 1.
    int64_t part = 0, sum = 0;
    cut_packed([&](int64_t begin) {
      sum += 5 - 2 * part++;
      return std::max<int64_t>(n * sum / 9 * grain - begin, grain);
    });
  }

  // The tiles of the list become parts. length(begin) is that of the part which begins there.
  template <class Length>
  void cut_packed(Length length) {
    const int32_t n = narrow(longest);
    for (int32_t begin = 0; begin < n && list_.count < Listed::most_packed_parts; ++list_.count) {
      const int32_t end = narrow(std::min<int64_t>(n, begin + length(begin)));
      list_.work[list_.count] = {list_.first_tile, begin, end, list_.count, 0, 0, 0};
      begin = end;
    }
    list_.work[list_.count - 1].end = n;
    for (int part = 0; part < list_.count; ++part) list_.work[part].parts = list_.count;
    list_.slots = list_.count * list_.entry_tiles;
  }

  // Under a causal mask: the last tiles, whole, from the longest to the shortest. Measured with 1, 2 and 3 for each
  // multiprocessor: 2.
  void sort_last() {
    const int32_t last = narrow(std::min<int64_t>(2 * multiprocessors, list_capacity));
    list_.first_tile = tiles.count() - last;
    Work work[list_capacity];
    for (int32_t tile = 0; tile < last; ++tile) {
      const int32_t number = list_.first_tile + tile;
      work[tile] = {number, 0, narrow(length_of_tile(number)), 0, 1, 0, tile};
    }
    add_sorted(list_, work, last, longest);
  }

  void split_causal() {
    if (tiles.count() >= enough_tiles * multiprocessors || tiles.count() > Listed::most_tiles) return;
    int64_t blocks = 0;  // of all tiles
    for (int64_t n = 0; n < tiles.q_blocks; ++n) {
      lengths_[n] = narrow(length(n));
      blocks += lengths_[n] * int64_t{tiles.batch_heads};
    }
    cut_longest(blocks);
    split_all(blocks);
  }

  // All tiles in parts of the same length.
  void split_all(int64_t blocks) {
    const Costs busy = under_way(costs.together, multiprocessors);
    const int64_t count = tiles.count(), heads = tiles.batch_heads, q_blocks = tiles.q_blocks;
    const int64_t most = std::min(most_multiprocessor_parts * multiprocessors / count, longest / least_blocks);
    Ways ways;
    for (int64_t parts = 2; parts <= std::min<int64_t>(Listed::most_parts, most); ++parts) {
      const int64_t unit = whole_grains(divide_up(longest, parts));
      if (unit >= longest || !may_be_better(launch_time + busy.part(unit))) continue;
      int64_t pieces = 0, full = 0, reads = 0, longest_piece = busy.part(unit);
      for (int64_t n = 0; n < q_blocks; ++n) {
        const int64_t made = divide_up(lengths_[n], narrow(unit));
        pieces += made;
        if (made == 1) continue;
        full += made - 1;
        reads += busy.read_all(made) + made * busy.write;
        longest_piece = std::max(longest_piece, busy.part(lengths_[n] - (made - 1) * unit) + busy.read_all(made));
      }
      // A few pieces more than multiprocessors: those that take two work twice as long as the others.
      if (pieces * heads > multiprocessors && 4 * pieces * heads < 5 * multiprocessors) continue;
      const int64_t all = blocks * busy.block + (pieces * busy.piece + reads) * heads;
      const int64_t least = launch_time + std::max(longest_piece, divide_up(all, multiprocessors));
      if (may_be_better(least))
        ways.add(least, unit, launch_time + divide_up(full * heads, multiprocessors) * busy.part(unit));
    }
    int64_t best_unit = 0;
    for (const Ways::Way& way : ways) {
      if (!may_be_better(way.least)) break;
      if (!may_be_better(way.least_of_rounds)) continue;
      const int64_t unit = way.how, section = tiles.section_heads;
      Times times;
      for (int64_t first = 0; first < heads; first += section)
        for (int64_t n = 0; n < q_blocks; ++n) {
          const int64_t length = lengths_[n], made = divide_up(lengths_[n], narrow(unit));
          for (int64_t head = first; head < std::min(heads, first + section); ++head) {
            if (made > 1) times.add(busy.part(unit), made - 1);
            times.add(made == 1 ? busy.whole(length) : busy.part(length - (made - 1) * unit) + busy.read_all(made), 1);
          }
        }
      if (is_better(times)) best_unit = unit;
    }
    if (best_unit == 0) return;
    list_ = List();
    list_.ticket_tiles = narrow(count);
    for (int64_t n = 0; n < count; ++n) list_.add_parts(narrow(n), length_of_tile(narrow(n)), best_unit);
  }

  // The longest tiles cut in two, at the length of the longest whole tile. Their first parts come first; then second
  // parts and whole tiles, from the longest to the shortest.
  void cut_longest(int64_t blocks) {
    const Costs busy = under_way(costs.together, multiprocessors);
    const int64_t heads = tiles.batch_heads, q_blocks = tiles.q_blocks;
    if (tiles.section_heads < heads) return;  // the longest tiles are not the first ones
    // The best cut is near a multiprocessor's average work.
    const int64_t whole = blocks * busy.block + tiles.count() * busy.piece, average = divide_up(whole, multiprocessors);
    int64_t near = 1;
    while (near < q_blocks && busy.whole(lengths_[near]) > average) ++near;
    constexpr int64_t around = 4, misses = 2;
    // Query blocks, whose tiles of all heads follow each other, whole or in parts.
    const auto each = [&](int64_t n, int64_t cut, auto add) {
      for (int64_t nth = 0; nth < n; ++nth) add(nth, 0);
      for (int64_t second = 0, other = n; second < n || other < q_blocks;) {
        if (second < n && (other == q_blocks || lengths_[second] - cut >= lengths_[other])) add(second++, 1);
        else add(other++, 0);
      }
    };
    // With more tiles cut, pieces become shorter, but more. The first ways that gain nothing are where that turns.
    int64_t best_n = 0, best_least = 0, missed = 0;
    const int64_t last = std::min(q_blocks, near + around) - 1;
    for (int64_t n = std::max<int64_t>(1, near - around); n <= last && missed < misses; ++n) {
      const int64_t cut = whole_grains(lengths_[n]);  // the n longest of each head, to the length of the next
      if (2 * n * heads > most_multiprocessor_parts * multiprocessors || (q_blocks + n) * heads > list_capacity) break;
      if (cut < least_blocks || lengths_[n - 1] <= cut) continue;
      const int64_t all = whole + n * heads * (busy.piece + 2 * busy.write + busy.read);
      const int64_t longest_piece = std::max(busy.part(cut), busy.part(longest - cut) + busy.read);
      const int64_t least = launch_time + std::max(longest_piece, divide_up(all, multiprocessors));
      if (!may_be_better(least)) continue;
      const auto simulated = [&](auto simulation) {
        each(n, cut, [&](int64_t nth, int32_t part) {
          if (launch_time + simulation.end() > std::min(best_, limit_)) return;
          simulation.add(nth >= n ? busy.whole(lengths_[nth])
                         : part   ? busy.part(lengths_[nth] - cut) + busy.read
                                  : busy.part(cut), heads);
        });
        return launch_time + simulation.end();
      };
      const int64_t time = heads < many_alike ? simulated(SingleSimulation(multiprocessors))
                                              : simulated(Simulation(multiprocessors));
      const bool is_better = may_be_better(time);
      missed = is_better ? 0 : missed + 1;
      // Of ways that end at the same time the one with less to do.
      const bool has_less = best_n > 0 && time == best_ && least < best_least;
      if (is_better || has_less) best_ = time, best_n = n, best_least = least;
    }
    if (best_n == 0) return;
    const int64_t cut = whole_grains(lengths_[best_n]);
    list_ = List();
    list_.ticket_tiles = narrow(best_n * heads), list_.slots = 2 * list_.ticket_tiles;
    each(best_n, cut, [&](int64_t nth, int32_t part) {
      const int32_t at = narrow(cut), end = lengths_[nth];
      for (int32_t tile = narrow(nth * heads); tile < (nth + 1) * heads; ++tile) {
        if (nth >= best_n) list_.add({tile, 0, end, 0, 1, 0, tile});
        else list_.add({tile, part ? at : 0, part ? end : at, part, 2, 2 * tile, tile});
      }
    });
  }

  Listed listed(const Work& work) const {
    const bool is_one = grain == 1;
    return {static_cast<uint32_t>(work.split_tile), static_cast<uint32_t>(work.part),
            static_cast<uint32_t>(is_one ? work.begin : work.begin / grain), static_cast<uint32_t>(work.slot),
            static_cast<uint32_t>(work.parts), static_cast<uint32_t>(is_one ? work.end : divide_up(work.end, grain))};
  }

  WorkspaceLayout layout() const {
    static_assert(sizeof(Workspace) <= FA3_FORWARD_WORKSPACE_BYTES);
    return place_parts(problem, row, FA3_FORWARD_WORKSPACE_BYTES, list_.slots ? list_.ticket_tiles : 0, list_.slots);
  }

  const int64_t whole_;  // predicted time with all tiles whole,
  const int64_t limit_;  // which is of no use if it is longer than that,
  int64_t best_;         // and of the best plan so far,
  List list_;            // whose list this is
  int32_t lengths_[Listed::most_tiles];  // of few causal tiles: length(n) of each query block
};

}  // namespace

void plan_row(const ForwardProblem& problem, int row, const Card& card, RowPlan& plan, double limit_us, bool roughly) {
  plan.row = row;
  const int64_t limit = limit_us < static_cast<double>(most_time) / 1e3 ? std::lround(limit_us * 1e3) : INT64_MAX;
  Splitter(problem, forward_row(row), card, limit, roughly).plan(plan);
}

double least_time_us(const ForwardProblem& problem, int row, const Card& card) {
  return static_cast<double>(Candidate(problem, forward_row(row), card).least_time()) / 1e3;
}

size_t most_workspace(const ForwardProblem& problem, int number, int multiprocessors) {
  const ForwardRow& row = forward_row(number);
  const Candidate candidate(problem, row, assumed_card(multiprocessors));
  const int64_t count = candidate.tiles.count(), last = count % multiprocessors, n = candidate.longest;
  int64_t tickets = 0, slots = 0;
  if (!row.has(Trait::splits) || candidate.mixes_lengths) {
    // all tiles are whole
  } else if (candidate.same_length && candidate.packs_heads) {
    tickets = std::min<int64_t>(count, multiprocessors);
    const int64_t parts = count < multiprocessors
                              ? std::min(n / 2, most_packed_multiprocessor_parts * multiprocessors / count)
                              : most_packed_multiprocessor_parts;
    if (parts > 1) slots = tickets * std::min<int64_t>(parts, Listed::most_packed_parts);
  } else if (candidate.same_length) {
    // Quotas are as many as multiprocessors, and end in each tile once more.
    if (n >= 2 * least_blocks) tickets = last, slots = last ? last + multiprocessors : 0;
  } else if (count < enough_tiles * multiprocessors && count <= Listed::most_tiles && n > least_blocks) {
    tickets = count, slots = most_multiprocessor_parts * multiprocessors;
  }
  return place_parts(problem, row, FA3_FORWARD_WORKSPACE_BYTES, slots ? tickets : 0, slots).bytes;
}

}  // namespace fa3
