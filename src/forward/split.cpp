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
// too, if each K/V head has only one tile.) Memory serves some multiprocessors half as fast again as others, and the
// fewer still ask for something, the faster it serves them. So there (split_packed)
//  - tiles that are fewer than multiprocessors are all split into equal parts, which run at once (equal_parts),
//  - but where equal parts would leave multiprocessors idle for long, or tiles are many and long, or the last wave has
//    few of them, the last tiles become parts from long to short, which are claimed one by one (shrinking_parts),
//  - and tiles that are many and short are left whole.
//
// Other causal tiles differ in length. They are claimed one by one, so that short ones fill the gaps that long ones
// leave. Where they are many that is all. Where they are few (split_causal)
//  - all are split into parts of one length (split_all),
//  - or the longest are cut in two, if they would last much longer than a multiprocessor has to work on average
//    (cut_longest).
// And where they are many but their keys few, so that long and short ones run beside each other (mixes_lengths), the
// last ones are claimed from the longest to the shortest (sort_last).
#include "forward/split.h"

#include <algorithm>

#include "forward/candidate.h"
#include "integers.h"
#include "params.h"

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

// So many parts for each multiprocessor, at most, which bounds the workspace.
constexpr int64_t most_multiprocessor_parts = 2;

// With so many causal tiles for each multiprocessor, or more, no split that was measured gained anything.
constexpr int64_t enough_tiles = 2;

// The pieces of the tiles from number first_tile on, in the order of their claims.
struct List {
  int32_t first_tile = 0;
  int32_t entry_tiles = 1;   // so many tiles share each entry, which is the piece of the first one
  int32_t ticket_tiles = 0;  // so many of the tiles, the first, may be split
  int32_t slots = 0;
  int count = 0;          // of entries
  bool complete = true;   // all pieces have found room
  Work work[list_capacity];

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
  Splitter(const ForwardProblem& problem, const ForwardRow& row, int multiprocessors)
      : Candidate(problem, row, multiprocessors), whole_(whole_time()), best_(whole_) {
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
  // Takes the list if its pieces end sooner than those of the best one so far. They come behind whole tiles that keep
  // all multiprocessors busy until `start`.
  void consider(const List& list, const Costs& busy, int64_t start) {
    if (!list.complete) return;
    Simulation simulation(multiprocessors);
    for (int n = 0; n < list.count; ++n) simulation.add(busy.time(list.work[n]), 1);
    const int64_t time = start + simulation.end();
    if (time >= best_ || !worth_splitting(time, whole_)) return;
    best_ = time;
    list_ = list;
  }

  int64_t whole_grains(int64_t blocks) const { return divide_up(blocks, grain) * grain; }

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
    if (quota < n && quota >= least_blocks && divide_up(n, quota) < Listed::most_parts) {
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
    for (int32_t tile = 0; tile < count; ++tile) {
      const int64_t start = tile * tile_grains, first = start / quota;
      const int32_t parts = narrow((start + n - 1) / quota - first + 1);
      for (int32_t part = 0; part < parts; ++part) {
        const int64_t begin = std::max<int64_t>(0, (first + part) * quota - start);
        const int64_t end = std::min(n, (first + part + 1) * quota - start);
        list.add({list.first_tile + tile, narrow(begin), narrow(end), part, parts, list.slots, tile});
      }
      if (parts > 1) list.slots += parts;
    }
    std::sort(list.work, list.work + list.count, [](const Work& a, const Work& b) {
      const int32_t of_a = a.end - a.begin, of_b = b.end - b.begin;
      return of_a != of_b ? of_a > of_b : a.tile != b.tile ? a.tile < b.tile : a.part < b.part;
    });
  }

  // With packed heads, tiles of one length.
  void split_packed() {
    const int64_t count = tiles.count(), block = under_way(costs.together, multiprocessors).block;
    const int64_t blocks = count * longest;
    const int64_t average =
        in_turn(blocks / multiprocessors, block) + blocks % multiprocessors * block / multiprocessors;
    if (count >= multiprocessors) {
      if (longest * block >= long_time) shrinking_parts(average, whole_);
      else shrinking_parts(average + short_delay, whole_ * 9 / 10);
      return;
    }
    const int64_t most = std::min<int64_t>({Listed::most_packed_parts, multiprocessors / count, longest / 2});
    const bool is_short = average < long_time;
    // Measured: 16 * 8 and 64 * 2 parts on 132 multiprocessors are 1.5 to 4% faster than parts from long to short,
    // 40 * 3 and 96 * 1 slower.
    if (is_short) equal_parts(2, most);
    else if (most > 1 && 20 * count * most >= 19 * multiprocessors) equal_parts(most, most);
    if (!is_short && list_.count == 0) shrinking_parts(average, whole_);
  }

  // All tiles, each in so many parts of the same length, one for each multiprocessor.
  void equal_parts(int64_t least, int64_t most) {
    const int64_t count = tiles.count(), n = longest, rows = std::min<int64_t>(rows_of(problem, row), 64);
    int64_t unit = 0;
    for (int64_t parts = least; parts <= most; ++parts) {
      const int64_t blocks = whole_grains(divide_up(n, parts)), made = divide_up(n, blocks);
      if (made != parts) continue;
      const int64_t time = launch_time + under_way(costs.together, count * made).part(blocks) +
                           combine_time(made, rows, made);
      if (time < best_ && worth_splitting(time, whole_)) best_ = time, unit = blocks;
    }
    if (unit == 0) return;
    list_ = List();
    list_.ticket_tiles = list_.entry_tiles = narrow(count);
    cut_packed([unit](int64_t) { return unit; });
  }

  // The last tiles, one for each multiprocessor if there are so many, in parts of which the last one has a fifth of
  // the first one's blocks: two parts for each multiprocessor, or three of each tile. `average`: what the blocks of all
  // tiles take a multiprocessor. `whole`: what must be undercut.
  void shrinking_parts(int64_t average, int64_t whole) {
    const int64_t count = tiles.count(), cut = std::min(count, multiprocessors), n = divide_up(longest, grain);
    const int64_t parts = std::clamp<int64_t>(divide_up(2 * multiprocessors, cut), 3, Listed::most_packed_parts);
    if (n < 5 * parts) return;
    const int64_t rows = std::min<int64_t>(rows_of(problem, row), 64);
    const int64_t time = launch_time + average + costs.behind.part(0) + combine_time(parts, rows, 1);
    if (time >= best_ || !worth_splitting(time, whole)) return;
    best_ = time;
    list_ = List();
    list_.first_tile = narrow(count - cut);
    list_.ticket_tiles = list_.entry_tiles = narrow(cut);
    // Part i of them has a weight of 5 - 4 i / (parts - 1), of 3 parts in all.
    int64_t part = 0, sum = 0;
    cut_packed([&](int64_t begin) {
      sum += 5 * (parts - 1) - 4 * part++;
      return std::max<int64_t>(n * sum / (3 * parts * (parts - 1)) * grain - begin, grain);
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
    for (int32_t tile = 0; tile < last; ++tile) {
      const int32_t number = list_.first_tile + tile;
      list_.add({number, 0, narrow(length_of_tile(number)), 0, 1, 0, tile});
    }
    std::sort(list_.work, list_.work + last,
              [](const Work& a, const Work& b) { return a.end != b.end ? a.end > b.end : a.tile < b.tile; });
  }

  void split_causal() {
    if (tiles.count() >= enough_tiles * multiprocessors || tiles.count() > Listed::most_tiles) return;
    int64_t blocks = 0;  // of all tiles
    for (int64_t n = 0; n < tiles.q_blocks; ++n) blocks += length(n) * tiles.batch_heads;
    cut_longest(blocks);
    split_all(blocks);
  }

  // All tiles in parts of the same length.
  void split_all(int64_t blocks) {
    const Costs busy = under_way(costs.together, multiprocessors);
    const int64_t count = tiles.count();
    const int64_t most = std::min(most_multiprocessor_parts * multiprocessors / count, longest / least_blocks);
    List list;
    list.first_tile = 0, list.ticket_tiles = narrow(count);
    for (int64_t parts = 2; parts <= std::min<int64_t>(Listed::most_parts, most); ++parts) {
      const int64_t unit = whole_grains(divide_up(longest, parts));
      const int64_t average = divide_up(blocks * busy.block + count * busy.piece, multiprocessors);
      if (unit >= longest || launch_time + std::max(busy.part(unit), average) >= best_) continue;
      list.count = list.slots = 0;
      for (int32_t tile = 0; tile < count; ++tile) list.add_parts(tile, length_of_tile(tile), unit);
      // A few pieces more than multiprocessors: those that take two work twice as long as the others.
      if (list.count > multiprocessors && 4 * list.count < 5 * multiprocessors) continue;
      consider(list, busy, launch_time);
    }
  }

  // The longest tiles cut in two, at the length of the longest whole tile. Their first parts come first; then second
  // parts and whole tiles, from the longest to the shortest.
  void cut_longest(int64_t blocks) {
    const Costs busy = under_way(costs.together, multiprocessors);
    const int64_t heads = tiles.batch_heads, q_blocks = tiles.q_blocks;
    if (tiles.section_heads < heads) return;  // the longest tiles are not the first ones
    // The best cut is near a multiprocessor's average work.
    const int64_t average = divide_up(blocks * busy.block + tiles.count() * busy.piece, multiprocessors);
    int64_t near = 1;
    while (near < q_blocks && busy.whole(length(near)) > average) ++near;
    constexpr int64_t around = 4;
    List list;
    for (int64_t n = std::max<int64_t>(1, near - around); n < std::min(q_blocks, near + around); ++n) {
      const int64_t cut = whole_grains(length(n));  // the n longest of each head, to the length of the next
      if (2 * n * heads > most_multiprocessor_parts * multiprocessors) continue;
      if (cut < least_blocks || length(n - 1) <= cut) continue;
      list.first_tile = list.count = 0;
      list.ticket_tiles = narrow(n * heads), list.slots = 2 * list.ticket_tiles;
      const auto add = [&](int64_t nth, int32_t part) {  // that query block's tile of each head, or a part of it
        const int32_t at = narrow(cut), end = narrow(length(nth));
        for (int32_t tile = narrow(nth * heads); tile < (nth + 1) * heads; ++tile) {
          if (nth >= n) list.add({tile, 0, end, 0, 1, 0, tile});
          else list.add({tile, part ? at : 0, part ? end : at, part, 2, 2 * tile, tile});
        }
      };
      for (int64_t nth = 0; nth < n; ++nth) add(nth, 0);
      for (int64_t second = 0, other = n; second < n || other < q_blocks;) {
        if (second < n && (other == q_blocks || length(second) - cut >= length(other))) add(second++, 1);
        else add(other++, 0);
      }
      consider(list, busy, launch_time);
    }
  }

  Listed listed(const Work& work) const {
    return {static_cast<uint32_t>(work.split_tile), static_cast<uint32_t>(work.part),
            static_cast<uint32_t>(work.begin / grain), static_cast<uint32_t>(work.slot),
            static_cast<uint32_t>(work.parts), static_cast<uint32_t>(divide_up(work.end, grain))};
  }

  WorkspaceLayout layout() const {
    static_assert(sizeof(Workspace) <= FA3_FORWARD_WORKSPACE_BYTES);
    return place_parts(problem, row, FA3_FORWARD_WORKSPACE_BYTES, list_.slots ? list_.ticket_tiles : 0, list_.slots);
  }

  const int64_t whole_;  // predicted time with all tiles whole,
  int64_t best_;         // and of the best plan so far,
  List list_;            // whose list this is
};

}  // namespace

void plan_row(const ForwardProblem& problem, int row, int multiprocessors, RowPlan& plan) {
  plan.row = row;
  Splitter(problem, forward_row(row), multiprocessors).plan(plan);
}

}  // namespace fa3
