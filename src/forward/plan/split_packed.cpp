// With packed heads, tiles of one length wait for memory. (Those of few queries under a causal mask are of one length,
// too, if each K/V head has only one tile.) So there
//  - tiles that are fewer than multiprocessors are all split into equal parts, in one round or several, so many that
//    the last round has nearly as many parts as there are multiprocessors (equal_parts),
//  - of more tiles, if they are long or the last wave has few of them, the last ones become parts from long to short,
//    which are claimed one by one (shrinking_parts): memory serves some multiprocessors half as fast again as others,
//    and the fewer still ask for something, the faster it serves them,
//  - and tiles that are many and short are left whole.
#include "forward/plan/search.h"

namespace fa3 {
namespace {

// With packed heads, tiles that take longer are long: if they are left whole, they end at very different times, and a
// multiprocessor that has none left is idle for long. In nanoseconds.
constexpr int64_t long_time = 100'000;
// Where tiles are shorter, it takes parts so much longer than their blocks alone, as each part begins and ends. A split
// that then seems to gain less than a tenth is left. Measured: 1.03 and 1.2 waves of tiles are up to 23% faster if they
// are split; 1.94 and 7.76 waves, where it seems to gain 0 to 6%, are 1 to 10% slower.
constexpr int64_t short_delay = 9'000;

// Of several rounds of parts each takes so much longer than its blocks. Measured on an H200 with 8 to 128 tiles, each
// in up to 64 parts. In nanoseconds.
constexpr int64_t round_time = 900;

class Packed : public Search {
 public:
  using Search::Search;

  void split() {
    const int64_t count = tiles.count(), block = under_way(costs.together, multiprocessors).block;
    if (count < multiprocessors) return equal_parts();
    const int64_t blocks = count * longest;
    const int64_t average =
        in_turn(blocks / multiprocessors, block) + blocks % multiprocessors * block / multiprocessors;
    if (longest * block >= long_time) shrinking_parts(average, whole_);
    else shrinking_parts(average + short_delay, whole_ * 9 / 10);
  }

 private:
  // All tiles, each in so many parts of the same length.
  void equal_parts() {
    const int64_t count = tiles.count(), n = longest, head_rows = std::min<int64_t>(rows(), 64);
    const int64_t most = std::min<int64_t>({Listed::most_packed_parts, n / 2,
                                            most_packed_multiprocessor_parts * multiprocessors / count});
    const int64_t for_all = under_way(costs.together, multiprocessors).block;
    int64_t unit = 0;
    for (int64_t parts = 2; parts <= most; ++parts) {
      const int64_t blocks = whole_grains(divide_up(n, parts)), made = divide_up(n, blocks);
      if (made != parts) continue;
      const int64_t rounds = (count * parts - 1) / multiprocessors, last = count * parts - rounds * multiprocessors;
      const int64_t end = blocks * under_way(costs.together, last).block;
      int64_t time = launch_time + end + costs.together.part(0);
      time += late(costs.together, last, end);
      // Warpgroups that have nothing else to do add parts up together.
      time += combine_time(parts, head_rows, rounds ? 1 : parts);
      // After a round multiprocessors are at different places.
      if (rounds) time += rounds * (blocks * for_all + round_time) + blocks * for_all / 16;
      if (time < best_ && worth_splitting(time, whole_)) best_ = time, unit = blocks;
    }
    if (unit == 0) return;
    list_ = PieceList();
    list_.ticket_tiles = list_.entry_tiles = narrow(count);
    cut_packed([unit](int64_t) { return unit; });
  }

  // The last tiles, one for each multiprocessor, in three parts of which the last one has a fifth of the first one's
  // blocks. `average`: what the blocks of all tiles take a multiprocessor. `whole`: what must be undercut.
  void shrinking_parts(int64_t average, int64_t whole) {
    constexpr int64_t parts = most_packed_multiprocessor_parts;
    const int64_t n = divide_up(longest, grain);
    if (n < 5 * parts) return;
    const int64_t head_rows = std::min<int64_t>(rows(), 64);
    const int64_t time = launch_time + average + costs.behind.part(0) + combine_time(parts, head_rows, 1);
    if (time >= best_ || !worth_splitting(time, whole)) return;
    best_ = time;
    list_ = PieceList();
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
};

}  // namespace

void split_packed(const Estimate& estimate, const SearchLimit& limit, RowPlan& plan) {
  Packed search(estimate, limit);
  search.split();
  search.write(plan);
}

}  // namespace fa3
