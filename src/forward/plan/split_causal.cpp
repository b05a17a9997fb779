// Causal tiles differ in length. They are claimed one by one, so that short ones fill the gaps that long ones leave.
// Where they are many that is all. Where they are few
//  - all are split into parts of one length (split_all),
//  - or the longest are cut in two, if they would last much longer than a multiprocessor has to work on average
//    (cut_longest).
// And where they are many but their keys few, so that long and short ones run beside each other (mixes_lengths), the
// last ones are claimed from the longest to the shortest (sort_last).
#include "forward/plan/search.h"

namespace fa3 {
namespace {

class Causal : public Search {
 public:
  using Search::Search;

  void split() {
    if (mixes_lengths) return sort_last();
    if (tiles.count() >= enough_tiles * multiprocessors || tiles.count() > Listed::most_tiles) return;
    int64_t blocks = 0;  // of all tiles
    for (int64_t n = 0; n < tiles.q_blocks; ++n) {
      lengths_[n] = narrow(length(n));
      blocks += lengths_[n] * int64_t{tiles.batch_heads};
    }
    cut_longest(blocks);
    split_all(blocks);
  }

 private:
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
    list_.add_sorted(work, last, longest);
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
      PieceTimes times;
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
    list_ = PieceList();
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
    list_ = PieceList();
    list_.ticket_tiles = narrow(best_n * heads), list_.slots = 2 * list_.ticket_tiles;
    each(best_n, cut, [&](int64_t nth, int32_t part) {
      const int32_t at = narrow(cut), end = lengths_[nth];
      for (int32_t tile = narrow(nth * heads); tile < (nth + 1) * heads; ++tile) {
        if (nth >= best_n) list_.add({tile, 0, end, 0, 1, 0, tile});
        else list_.add({tile, part ? at : 0, part ? end : at, part, 2, 2 * tile, tile});
      }
    });
  }

  int32_t lengths_[Listed::most_tiles];  // of few tiles: length(n) of each query block
};

}  // namespace

void split_causal(const Estimate& estimate, const SearchLimit& limit, RowPlan& plan) {
  Causal search(estimate, limit);
  search.split();
  search.write(plan);
}

}  // namespace fa3
