// Without a mask all tiles are of one length. They fill the multiprocessors wave by wave, and the last wave may leave
// some idle. So its tiles are split, and it becomes one wave of shorter pieces:
//  - each tile into as many equal parts as fit into that wave,
//  - or at quotas: the blocks of all its tiles, laid end to end, are cut into as many quotas of one length as there are
//    multiprocessors. Then none is idle; but many quotas consist of parts of two tiles, and each part costs something.
#include "forward/plan/search.h"

namespace fa3 {
namespace {

class LastWave : public Search {
 public:
  using Search::Search;

  void split() {
    const int64_t waves = tiles.count() / multiprocessors, last = tiles.count() % multiprocessors, n = longest;
    if (last == 0) return;
    const Costs& together_or_behind = waves == 0 ? costs.together : costs.behind;
    const Costs busy = under_way(together_or_behind, multiprocessors);
    const int64_t start = launch_time + in_turn(waves, busy.whole(n));
    const int64_t least = start + busy.part(divide_up(last * n, multiprocessors));
    if (!worth_splitting(least, whole_)) return;
    PieceList list;
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

 private:
  // The blocks of so many tiles, end to end, cut wherever a multiprocessor's quota is full. Pieces are listed from the
  // longest to the shortest: two parts that make up a quota then meet on one multiprocessor again, the longest with the
  // shortest.
  void cut_at_quotas(PieceList& list, int64_t count, int64_t quota) const {
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
    list.add_sorted(shorter, shorter_count, quota);
  }
};

}  // namespace

void split_last_wave(const Estimate& estimate, const SearchLimit& limit, RowPlan& plan) {
  LastWave search(estimate, limit);
  search.split();
  search.write(plan);
}

}  // namespace fa3
