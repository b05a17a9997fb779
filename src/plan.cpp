// Each row that fits is planned by itself: its tiles whole, or some of them split along the keys, whichever cost.cpp
// predicts to be faster. The fastest row is taken; but where causal tiles are many, the first one in ptx/rows.def if a
// head has several of them, as predictions are then less exact than rows differ.
//
// Without a mask all tiles are alike. They fill the multiprocessors wave by wave, and the last wave may leave some
// idle; its tiles are the ones to split, so that it becomes one wave of shorter pieces:
//  - either each tile into as many equal parts as fit that wave,
//  - or the blocks of all of them, end to end, into one equal share for each multiprocessor. That leaves nothing idle,
//    but many shares then hold parts of two tiles.
// With packed heads, tiles of one length (those of few queries under a causal mask, too, if each K/V head has only one)
// wait for memory, which serves some multiprocessors half as fast again as others, and all that still ask for something
// where others have ended. So there it is
//  - all tiles in equal parts that are under way at once, if they are fewer than multiprocessors,
//  - or, where these would leave multiprocessors idle for long, or many tiles are long, or a last wave has few of them,
//    the last tiles in parts from long to short, which are claimed one by one,
//  - or, where tiles are many and short, nothing.
// Other causal tiles differ, and dynamic claims fill the gaps; so they are split only where there are few:
//  - all into parts of the same length,
//  - or the longest are cut in two, where they would last much longer than a multiprocessor has to work on average.
// Where they are many and keys few, so that long and short ones run beside each other (tiles.cpp), the last ones are
// claimed from the longest to the shortest.
#include "plan.h"

#include <algorithm>

#include "cost.h"
#include "divide_up.h"
#include "params.h"
#include "tiles.h"
#include "v_tile.h"

namespace fa3 {
namespace {

// Shorter parts are not worth their boundaries.
constexpr int64_t least_blocks = 4;

// With packed heads, whole tiles that take longer end at too different times, and it is long for a multiprocessor to be
// idle. In nanoseconds.
constexpr int64_t long_time = 100'000;
// Parts of shorter ones take so much longer than their blocks, as each begins and ends; and where they seem to gain
// less than a tenth, they are not worth it. Measured: 1.03 and 1.2 waves are up to 23% faster so, 1.94 and 7.76 waves,
// which seem to gain 0 to 6%, are 1 to 10% slower.
constexpr int64_t short_delay = 9'000;

// Parts for each multiprocessor, at most: bounds the workspace.
constexpr int64_t most_pieces = 2;

// Causal tiles for each multiprocessor, with which, measured, no split gained anything.
constexpr int64_t splittable = 2;

// More tiles than that are not simulated one by one.
constexpr int64_t most_simulated = 16;

// Where no heads share K and V, and tiles are many and short, tiles for packed heads are for so many rows at most: one
// warpgroup stores more of them later than two. Measured: with 48 rows they are as fast as others or faster, with 64 at
// d 64 by 3 to 6% slower, at d 128 by 0 to 11%, at d 256 by 17%.
constexpr int64_t most_alone = 48;

// What so many take one after another, in nanoseconds. The most tiles on few multiprocessors would take longer than can
// be counted: then it is 29 years, of which ten times as many can be.
constexpr int64_t most_time = INT64_MAX / 10;
int64_t in_turn(int64_t count, int64_t time) {
  int64_t all;
  return __builtin_mul_overflow(count, time, &all) ? most_time : std::min(all, most_time);
}

// Pieces of the last tiles, from number first_tile on, in the order of their claims.
struct List {
  int32_t first_tile = 0;
  int32_t each = 1;  // so many tiles share each piece, which is that of the first one
  int32_t ticket_tiles = 0;  // so many of them, the first, may be split
  int32_t slots = 0;
  int count = 0;
  bool complete = true;  // all pieces have found room
  Work work[list_capacity];

  void add(const Work& piece) {
    if (count < list_capacity) work[count++] = piece;
    else complete = false;
  }
};

class Planner {
 public:
  Planner(const Problem& problem, const Row& row, int multiprocessors)
      : problem_(problem), row_(row), costs_(costs_of(row)), G_(multiprocessors), visible_(visible_of(problem, row)),
        tiles_(tiles_of(problem, row, multiprocessors)),
        alike_(!problem.causal || (row.has(Trait::packs_heads) && tiles_.q_blocks == 1)),
        mixes_lengths_(mixes_lengths(problem, row, tiles_.q_blocks, multiprocessors)),
        longest_(blocks(problem.causal ? tiles_.q_blocks - 1 : 0)),
        grain_(divide_up(longest_, Listed::most_grains)) {
    const int64_t of_head = rows_of(problem, row), warpgroups = divide_up(of_head, 64);
    const bool is_short = longest_ * row.Bc < short_keys;
    if (warpgroups < row.warpgroups()) {
      const auto of_fewer = [&](Costs& costs) {
        costs.block = static_cast<int32_t>(block_time(row, costs.block, warpgroups));
      };
      // A single wave of short tiles waits for each step of the first of its warpgroups, however many there are.
      if (!is_short) of_fewer(costs_.together);
      of_fewer(costs_.behind);
    }
    if (is_short && tiles_.count() > balanced * G_) {
      // A single consumer is done with few rows sooner.
      const auto stored = static_cast<int32_t>(row.warpgroups() == 1 ? std::min<int64_t>(of_head, 64) : 0);
      costs_.behind.piece = costs_.among + 6 * stored;
    }
    if (row.has(Trait::shares_keys) && longest_ < least_turns(row))
      for (Costs* c : {&costs_.together, &costs_.behind}) c->piece += short_turns;
  }

  void plan(ForwardPlan& plan) {
    const int64_t whole = whole_time();
    int64_t best = whole;
    list_.first_tile = tiles_.count();
    if (row_.has(Trait::splits)) {
      if (alike_ && row_.has(Trait::packs_heads)) split_packed(whole, best);
      else if (alike_) split_alike(whole, best);
      else if (mixes_lengths_) list_last();
      else split_causal(whole, best);
    }
    plan.tiles = tiles_;
    plan.whole_us = static_cast<double>(whole) / 1e3;
    plan.predicted_us = static_cast<double>(best) / 1e3;
    plan.slots = list_.slots;
    plan.pieces = {list_.first_tile, list_.count * list_.each, list_.ticket_tiles, static_cast<int32_t>(grain_),
                   Divisor::of(list_.each)};
    for (int n = 0; n < list_.count; ++n) plan.list[n] = listed(list_.work[n]);
    plan.workspace = layout();
  }

 private:
  // Pieces count from a tile's first block: for masks without a left bound, that is block 0.
  int64_t blocks(int64_t q_block) const {
    const Keys keys =
        tile_blocks(visible_, tiles_.first_row + static_cast<int32_t>(q_block) * row_.Br, row_.Br, row_.Bc);
    return keys.end - keys.begin;
  }
  // Under a causal mask: of the n-th query block in the order of the tiles, from the longest to the shortest.
  int64_t length(int64_t n) const { return blocks(tiles_.q_blocks - 1 - n); }

  // Costs where so many pieces are under way. Few queries wait for K and V, which the heads that share them read from
  // memory once.
  Costs under_way(Costs costs, int64_t pieces) const {
    if (problem_.seqlen_q > most_packed_queries || row_.is_8bit()) return costs;
    const int64_t heads = row_.has(Trait::packs_heads) ? 1 : problem_.heads_per_kv();
    const auto bytes = static_cast<double>(divide_up(problem_.seqlen_k, row_.Bc) * row_.stage_bytes());
    const double all_bytes = bytes * static_cast<double>(problem_.batch) * static_cast<double>(problem_.heads_kv);
    const int64_t time = memory_time(row_.stage_bytes() / heads, std::min(pieces, G_), all_bytes);
    // Without packed heads, plans do not know that some multiprocessors have to wait longer.
    costs.block = std::max(costs.block, static_cast<int32_t>(row_.has(Trait::packs_heads) ? time : time * 9 / 8));
    return costs;
  }

  // All tiles whole.
  int64_t whole_time() const {
    if (alike_ && row_.has(Trait::packs_heads)) {
      const int64_t waves = tiles_.count() / G_, last = tiles_.count() % G_;
      const Costs costs = under_way(costs_.behind, waves ? G_ : last);
      const int64_t tile = costs.whole(longest_), behind = last ? under_way(costs_.behind, last).whole(longest_) : 0;
      // In one wave the slowest multiprocessor is last; after several they are at different places. A second wave makes
      // up for the first.
      const bool is_ragged = costs.block > costs_.behind.block && waves != 1;
      return launch_time + in_turn(waves, tile) + behind + (is_ragged ? tile / 16 : 0);
    }
    const Costs& together_or_behind = tiles_.count() <= G_ ? costs_.together : costs_.behind;
    const Costs costs = under_way(together_or_behind, G_);
    if (alike_) {
      const int64_t waves = tiles_.count() / G_, last = tiles_.count() % G_, tile = costs.whole(longest_);
      const int64_t time = launch_time + in_turn(waves, tile) +
                           (last ? under_way(together_or_behind, last).whole(longest_) : 0);
      // Among others, tiles with fewer rows are shorter, and spread the end of the last wave.
      const int64_t partial = divide_up(rows_of(problem_, row_), 64) % row_.warpgroups();
      if (tiles_.count() <= G_ || tiles_.q_blocks == 1 || partial == 0) return time;
      const int64_t of_head = in_turn(tiles_.q_blocks - 1, tile) + block_time(row_, tile, partial);
      const double all = static_cast<double>(of_head) * tiles_.batch_heads / static_cast<double>(G_);
      if (all >= static_cast<double>(most_time)) return time;
      return std::min(time, launch_time + static_cast<int64_t>(all) + tile / 2);
    }
    if (tiles_.count() > most_simulated * G_)
      return launch_time + in_turn(divide_up(tiles_.count(), G_), costs.whole((longest_ + blocks(0)) / 2));
    // With the last ones from the longest to the shortest, tiles end as if all were.
    const int64_t section = mixes_lengths_ ? tiles_.batch_heads : tiles_.section_heads;
    Simulation simulation(G_);
    for (int64_t first = 0; first < tiles_.batch_heads; first += section)
      for (int64_t n = 0; n < tiles_.q_blocks; ++n)
        simulation.add(costs.whole(length(n)), std::min(section, tiles_.batch_heads - first));
    return launch_time + simulation.end();
  }

  // The listed pieces, behind whole tiles that keep all multiprocessors busy until `start`.
  int64_t time_of(const List& list, const Costs& costs, int64_t start) const {
    Simulation simulation(G_);
    for (int n = 0; n < list.count; ++n) simulation.add(costs.time(list.work[n]), 1);
    return start + simulation.end();
  }
  void consider(const List& list, const Costs& costs, int64_t start, int64_t whole, int64_t& best) {
    if (!list.complete) return;
    const int64_t time = time_of(list, costs, start);
    if (time >= best || !worth_splitting(time, whole)) return;
    best = time;
    list_ = list;
  }

  // Parts of `unit` blocks of the next tile, which has so many blocks.
  void add_parts(List& list, int32_t tile, int64_t tile_blocks, int64_t unit) const {
    const auto parts = static_cast<int32_t>(divide_up(tile_blocks, unit));
    for (int32_t part = 0; part < parts; ++part)
      list.add({list.first_tile + tile, static_cast<int32_t>(part * unit),
                static_cast<int32_t>(std::min(tile_blocks, (part + 1) * unit)), part, parts, list.slots, tile});
    if (parts > 1) list.slots += parts;
  }
  int64_t whole_grains(int64_t blocks) const { return divide_up(blocks, grain_) * grain_; }

  // Tiles of one length.
  void split_alike(int64_t whole, int64_t& best) {
    const int64_t waves = tiles_.count() / G_, tiles = tiles_.count() % G_, n = longest_;
    if (tiles == 0) return;
    const Costs& together_or_behind = waves == 0 ? costs_.together : costs_.behind;
    const Costs costs = under_way(together_or_behind, G_);
    const int64_t start = launch_time + in_turn(waves, costs.whole(n));
    const int64_t least = start + costs.part(divide_up(tiles * n, G_));
    if (!worth_splitting(least, whole)) return;
    List list;
    list.first_tile = static_cast<int32_t>(tiles_.count() - tiles), list.ticket_tiles = static_cast<int32_t>(tiles);

    int64_t cheapest = INT64_MAX, unit = 0;
    for (int64_t parts = 2; parts <= std::min<int64_t>({Listed::most_parts, G_ / tiles, n / least_blocks}); ++parts) {
      const int64_t blocks = whole_grains(divide_up(n, parts)), made = divide_up(n, blocks);
      const int64_t cost = under_way(together_or_behind, tiles * made).part(blocks) + costs.read_all(made);
      if (made > 1 && cost < cheapest) cheapest = cost, unit = blocks;
    }
    if (unit > 0) {
      for (int32_t tile = 0; tile < tiles; ++tile) add_parts(list, tile, n, unit);
      consider(list, under_way(together_or_behind, list.count), start, whole, best);
    }
    const int64_t share = whole_grains(divide_up(tiles * n, G_));
    if (share < n && share >= least_blocks && divide_up(n, share) < Listed::most_parts) {
      list.count = list.slots = 0;
      add_shares(list, static_cast<int32_t>(tiles), n, share);
      consider(list, under_way(together_or_behind, list.count), start, whole, best);
    }
  }

  // The blocks of so many tiles, end to end, cut into shares. Pieces are listed from the longest to the shortest: two
  // parts that make up a share then meet on one multiprocessor again, the longest with the shortest.
  void add_shares(List& list, int32_t tiles, int64_t n, int64_t share) const {
    const int64_t tile_grains = whole_grains(n);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int64_t start = tile * tile_grains, first = start / share;
      const auto parts = static_cast<int32_t>((start + n - 1) / share - first + 1);
      for (int32_t part = 0; part < parts; ++part) {
        const int64_t begin = std::max<int64_t>(0, (first + part) * share - start);
        const int64_t end = std::min(n, (first + part + 1) * share - start);
        list.add({list.first_tile + tile, static_cast<int32_t>(begin), static_cast<int32_t>(end), part, parts,
                  list.slots, tile});
      }
      if (parts > 1) list.slots += parts;
    }
    std::sort(list.work, list.work + list.count, [](const Work& a, const Work& b) {
      const int32_t of_a = a.end - a.begin, of_b = b.end - b.begin;
      return of_a != of_b ? of_a > of_b : a.tile != b.tile ? a.tile < b.tile : a.part < b.part;
    });
  }

  // With packed heads, tiles of one length.
  void split_packed(int64_t whole, int64_t& best) {
    const int64_t tiles = tiles_.count(), block = under_way(costs_.together, G_).block;
    // Of a multiprocessor, in time.
    const int64_t all = tiles * longest_, share = in_turn(all / G_, block) + all % G_ * block / G_;
    if (tiles >= G_) {
      if (longest_ * block >= long_time) shrinking_parts(share, whole, best);
      else shrinking_parts(share + short_delay, whole * 9 / 10, best);
      return;
    }
    const int64_t most = std::min<int64_t>({Listed::most_packed_parts, G_ / tiles, longest_ / 2});
    const bool is_short = share < long_time;
    // Measured: 16 * 8 and 64 * 2 parts on 132 multiprocessors are 1.5 to 4% faster than parts from long to short,
    // 40 * 3 and 96 * 1 slower.
    if (is_short) equal_parts(2, most, whole, best);
    else if (most > 1 && 20 * tiles * most >= 19 * G_) equal_parts(most, most, whole, best);
    if (!is_short && list_.count == 0) shrinking_parts(share, whole, best);
  }

  // All tiles, each in so many parts of the same length, one for each multiprocessor.
  void equal_parts(int64_t least, int64_t most, int64_t whole, int64_t& best) {
    const int64_t tiles = tiles_.count(), n = longest_, rows = std::min<int64_t>(rows_of(problem_, row_), 64);
    int64_t unit = 0;
    for (int64_t parts = least; parts <= most; ++parts) {
      const int64_t blocks = whole_grains(divide_up(n, parts)), made = divide_up(n, blocks);
      if (made != parts) continue;
      const int64_t time = launch_time + under_way(costs_.together, tiles * made).part(blocks) +
                           combine_time(made, rows, made);
      if (time < best && worth_splitting(time, whole)) best = time, unit = blocks;
    }
    if (unit == 0) return;
    list_ = List();
    list_.ticket_tiles = list_.each = static_cast<int32_t>(tiles);
    cut_packed([unit](int64_t) { return unit; });
  }

  // The last tiles, one for each multiprocessor if there are so many, in parts of which the last one has a fifth of
  // the first one's blocks: two parts for each multiprocessor, or three of each tile.
  void shrinking_parts(int64_t share, int64_t whole, int64_t& best) {
    const int64_t tiles = tiles_.count(), cut = std::min(tiles, G_), n = divide_up(longest_, grain_);
    const int64_t parts = std::clamp<int64_t>(divide_up(2 * G_, cut), 3, Listed::most_packed_parts);
    if (n < 5 * parts) return;
    const int64_t rows = std::min<int64_t>(rows_of(problem_, row_), 64);
    const int64_t time = launch_time + share + costs_.behind.part(0) + combine_time(parts, rows, 1);
    if (time >= best || !worth_splitting(time, whole)) return;
    best = time;
    list_ = List();
    list_.first_tile = static_cast<int32_t>(tiles - cut);
    list_.ticket_tiles = list_.each = static_cast<int32_t>(cut);
    // Part i of them has a share of 5 - 4 i / (parts - 1), of 3 parts in all.
    int64_t part = 0, sum = 0;
    cut_packed([&](int64_t begin) {
      sum += 5 * (parts - 1) - 4 * part++;
      return std::max<int64_t>(n * sum / (3 * parts * (parts - 1)) * grain_ - begin, grain_);
    });
  }

  // The tiles of the list become parts; `length` is asked for that of each, and told where it begins.
  template <class Length>
  void cut_packed(Length length) {
    const auto n = static_cast<int32_t>(longest_);
    for (int32_t begin = 0; begin < n && list_.count < Listed::most_packed_parts; ++list_.count) {
      const auto end = static_cast<int32_t>(std::min<int64_t>(n, begin + length(begin)));
      list_.work[list_.count] = {list_.first_tile, begin, end, list_.count, 0, 0, 0};
      begin = end;
    }
    list_.work[list_.count - 1].end = n;
    for (int part = 0; part < list_.count; ++part) list_.work[part].parts = list_.count;
    list_.slots = list_.count * list_.each;
  }

  // The last tiles, whole, from the longest to the shortest. Measured with 1, 2 and 3 for each multiprocessor: 2.
  void list_last() {
    const auto last = static_cast<int32_t>(std::min<int64_t>(2 * G_, list_capacity));
    list_.first_tile = tiles_.count() - last;
    for (int32_t tile = 0; tile < last; ++tile) {
      const int32_t number = list_.first_tile + tile;
      list_.add({number, 0, static_cast<int32_t>(length_of_tile(number)), 0, 1, 0, tile});
    }
    std::sort(list_.work, list_.work + last,
              [](const Work& a, const Work& b) { return a.end != b.end ? a.end > b.end : a.tile < b.tile; });
  }

  void split_causal(int64_t whole, int64_t& best) {
    if (tiles_.count() >= splittable * G_ || tiles_.count() > Listed::most_tiles) return;
    int64_t sum = 0;
    for (int64_t n = 0; n < tiles_.q_blocks; ++n) sum += length(n) * tiles_.batch_heads;
    cut_longest(sum, whole, best);
    split_all(sum, whole, best);
  }

  // All tiles in parts of the same length.
  void split_all(int64_t sum, int64_t whole, int64_t& best) {
    const Costs costs = under_way(costs_.together, G_);
    const int64_t tiles = tiles_.count(), most = std::min(most_pieces * G_ / tiles, longest_ / least_blocks);
    List list;
    list.first_tile = 0, list.ticket_tiles = static_cast<int32_t>(tiles);
    for (int64_t parts = 2; parts <= std::min<int64_t>(Listed::most_parts, most); ++parts) {
      const int64_t unit = whole_grains(divide_up(longest_, parts));
      const int64_t least =
          launch_time + std::max(costs.part(unit), divide_up(sum * costs.block + tiles * costs.piece, G_));
      if (unit >= longest_ || least >= best) continue;
      list.count = list.slots = 0;
      for (int32_t tile = 0; tile < tiles; ++tile) add_parts(list, tile, length_of_tile(tile), unit);
      // A few pieces more than multiprocessors: those that take two work twice as long as the others.
      if (list.count > G_ && 4 * list.count < 5 * G_) continue;
      consider(list, costs, launch_time, whole, best);
    }
  }

  // The longest tiles cut in two, at the length of the longest whole tile. Their first parts come first; then second
  // parts and whole tiles, from the longest to the shortest.
  void cut_longest(int64_t sum, int64_t whole, int64_t& best) {
    const Costs costs = under_way(costs_.together, G_);
    const int64_t heads = tiles_.batch_heads, q_blocks = tiles_.q_blocks;
    if (tiles_.section_heads < heads) return;  // the longest tiles are not the first ones
    // The best cut is near a multiprocessor's average work.
    const int64_t average = divide_up(sum * costs.block + tiles_.count() * costs.piece, G_);
    int64_t near = 1;
    while (near < q_blocks && costs.whole(length(near)) > average) ++near;
    constexpr int64_t around = 4;
    List list;
    for (int64_t n = std::max<int64_t>(1, near - around); n < std::min(q_blocks, near + around); ++n) {
      const int64_t cut = whole_grains(length(n));  // the n longest of each head, to the length of the next
      if (2 * n * heads > most_pieces * G_ || cut < least_blocks || length(n - 1) <= cut) continue;
      list.first_tile = list.count = 0;
      list.ticket_tiles = static_cast<int32_t>(n * heads), list.slots = 2 * list.ticket_tiles;
      const auto add = [&](int64_t nth, int32_t part) {  // that query block's tile of each head, or a part of it
        const auto at = static_cast<int32_t>(cut), end = static_cast<int32_t>(length(nth));
        for (int64_t tile = nth * heads; tile < (nth + 1) * heads; ++tile) {
          const auto t = static_cast<int32_t>(tile);
          if (nth >= n) list.add({t, 0, end, 0, 1, 0, t});
          else list.add({t, part ? at : 0, part ? end : at, part, 2, 2 * t, t});
        }
      };
      for (int64_t nth = 0; nth < n; ++nth) add(nth, 0);
      for (int64_t second = 0, other = n; second < n || other < q_blocks;) {
        if (second < n && (other == q_blocks || length(second) - cut >= length(other))) add(second++, 1);
        else add(other++, 0);
      }
      consider(list, costs, launch_time, whole, best);
    }
  }
  int64_t length_of_tile(int32_t tile) const {
    return blocks(tile_at(tiles_, tile, true).q_block);
  }

  Listed listed(const Work& work) const {
    return {static_cast<uint32_t>(work.split_tile), static_cast<uint32_t>(work.part),
            static_cast<uint32_t>(work.begin / grain_), static_cast<uint32_t>(work.slot),
            static_cast<uint32_t>(work.parts), static_cast<uint32_t>(divide_up(work.end, grain_))};
  }

  WorkspaceLayout layout() const {
    constexpr size_t head = FA3_FORWARD_WORKSPACE_BYTES, alignment = 64;
    static_assert(sizeof(Workspace) <= head && head % alignment == 0);
    if (list_.slots == 0) return {head, head, head};
    const size_t ticket_bytes = static_cast<size_t>(list_.ticket_tiles) * row_.warpgroups() * sizeof(Tickets);
    const size_t partials = (head + ticket_bytes + alignment - 1) / alignment * alignment;
    size_t slot = static_cast<size_t>(row_.Br / 16) * row_.partial_bytes();
    if (row_.has(Trait::packs_heads))
      slot = static_cast<size_t>(Packing::slot_rows(visible_.rows(), row_.Br)) * row_.packed_row_bytes();
    return {head, partials, partials + static_cast<size_t>(list_.slots) * slot};
  }

  const Problem& problem_;
  const Row& row_;
  RowCosts costs_;
  const int64_t G_;
  const Visible visible_;
  const Tiles tiles_;
  const bool alike_;          // all tiles have as many blocks
  const bool mixes_lengths_;  // long and short ones run beside each other
  const int64_t longest_;     // blocks of a tile
  const int64_t grain_;
  List list_;  // of the best plan so far
};

int64_t groups_of_keys(const Problem& problem) { return divide_up(problem.seqlen_k, v_tile_keys); }
int64_t v_tile_bytes(const Problem& problem) { return v_tile_keys * problem.head_dim_v; }

// Shall a pass make row-major V into tiles, as the forward kernel planned would then be faster?
bool is_worth_tiling(const Problem& problem, const Fit& fit, const ForwardPlan& forward) {
  if (fit.for_tiles < 0) return false;
  int64_t tiles, bytes;  // batch and heads are below 2^31
  if (__builtin_mul_overflow(groups_of_keys(problem), problem.batch * problem.heads_kv, &tiles) || tiles > max_tiles ||
      __builtin_mul_overflow(tiles, v_tile_bytes(problem), &bytes))
    return false;
  return forward.predicted_us * 1e3 * gain_of_tiles(rows[forward.row]) > static_cast<double>(tiling_time(bytes));
}

// The pass, and V as tiles behind what else is in the workspace.
void add_tile_v(const Problem& problem, Plan& plan) {
  constexpr int pass = row_named("fa3_pass_tile_v");
  static_assert(pass >= 0);
  constexpr size_t alignment = 256;
  const int64_t tiles = groups_of_keys(problem) * problem.batch * problem.heads_kv;
  plan.launches[plan.launch_count++] = {
      Step::tile_v, pass, static_cast<int32_t>(divide_up(tiles, tiles_of_thread_block(rows[pass])))};
  plan.v_tiles = (plan.forward.workspace.bytes + alignment - 1) / alignment * alignment;
  plan.workspace_bytes = plan.v_tiles + static_cast<size_t>(tiles * v_tile_bytes(problem));
}

void make(const Problem& problem, const Fit& fit, int multiprocessors, Plan& plan) {
  plan.launch_count = 0;
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  plan.forward = {};
  plan.forward.row = fit.rows[0];
  if (problem.empty()) return;
  if (problem.seqlen_k == 0) {
    constexpr int pass = row_named("fa3_pass_empty_rows");
    static_assert(pass >= 0);
    const int64_t blocks = divide_up(problem.seqlen_q, empty_rows_block) * problem.batch * problem.heads;
    const int64_t warps = rows[pass].threads() / 32;
    plan.launches[plan.launch_count++] = {
        Step::empty_rows, pass, static_cast<int32_t>(std::min<int64_t>(divide_up(blocks, warps), multiprocessors))};
    return;
  }
  plan_row(problem, fit.rows[0], multiprocessors, plan.forward);
  const int64_t tiles = plan.forward.tiles.count(), many = balanced * multiprocessors;
  const bool is_balanced = problem.causal && tiles >= many;
  const bool are_too_many_alone = tiles > many && problem.heads_per_kv() == 1 && problem.seqlen_q > most_alone &&
                                  problem.seqlen_k < short_keys;
  for (int i = 1; i < fit.count; ++i) {
    const Row& row = rows[fit.rows[i]];
    // More rows than 64 packed ones are for larger tiles. Causal tiles that are many are smaller only where they still
    // hold all rows of a head.
    if (row.has(Trait::packs_heads) ? are_too_many_alone || (row.Br > 64 && rows_of(problem, row) <= 64)
                                    : is_balanced && problem.seqlen_q > row.Br)
      continue;
    ForwardPlan other;
    plan_row(problem, fit.rows[i], multiprocessors, other);
    // Where it makes no difference, fewer reads of K and V are better.
    const bool is_faster = rows[other.row].has(Trait::packs_heads) ? other.predicted_us <= plan.forward.predicted_us
                                                                   : other.predicted_us < plan.forward.predicted_us;
    if (is_faster) plan.forward = other;
  }
  plan.workspace_bytes = plan.forward.workspace.bytes;
  if (is_worth_tiling(problem, fit, plan.forward)) {
    plan_row(problem, fit.for_tiles, multiprocessors, plan.forward);
    add_tile_v(problem, plan);
  }
  const Row& row = rows[plan.forward.row];
  const int64_t blocks = std::max<int64_t>(plan.forward.pieces.count(), empty_blocks(plan.forward.tiles, row));
  plan.launches[plan.launch_count++] = {Step::forward, plan.forward.row,
                                        static_cast<int32_t>(std::min<int64_t>(blocks, multiprocessors))};
}

// What a plan depends on.
struct Key {
  int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v, causal, causal_offset;
  int64_t first_row, rows, for_tiles;  // of the rows that fit
  int64_t multiprocessors;

  bool operator==(const Key&) const = default;
};

}  // namespace

void plan_row(const Problem& problem, int row, int multiprocessors, ForwardPlan& plan) {
  plan.row = row;
  Planner(problem, rows[row], multiprocessors).plan(plan);
}

const Plan& plan(const Problem& problem, const Fit& fit, int multiprocessors) {
  constexpr int remembered = 4;  // few, as a thread's stack may have to hold them: glibc puts thread_local data there
  thread_local struct {
    Key keys[remembered];
    Plan plans[remembered];
    int next;
  } memory;
  const Key key{problem.batch,    problem.heads,    problem.heads_kv,   problem.seqlen_q, problem.seqlen_k,
                problem.head_dim, problem.head_dim_v, problem.causal,   problem.causal_offset,
                fit.rows[0],      fit.count,        fit.for_tiles,      multiprocessors};
  for (int i = 0; i < remembered; ++i)
    if (memory.keys[i] == key) return memory.plans[i];
  const int at = memory.next++ % remembered;
  memory.keys[at] = key;
  make(problem, fit, multiprocessors, memory.plans[at]);
  return memory.plans[at];
}

}  // namespace fa3
