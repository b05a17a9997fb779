#include "forward/plan/search.h"

namespace fa3 {

void PieceList::add_parts(int32_t n, int64_t blocks, int64_t unit) {
  const int32_t parts = narrow(divide_up(blocks, unit));
  for (int32_t part = 0; part < parts; ++part)
    add({first_tile + n, narrow(part * unit), narrow(std::min(blocks, (part + 1) * unit)), part, parts, slots, n});
  if (parts > 1) slots += parts;
}

void PieceList::add_sorted(const Work* pieces, int pieces_count, int64_t most) {
  constexpr int64_t buckets = 1024;  // one for each length
  const auto missing = [&](int i) { return most - (pieces[i].end - pieces[i].begin); };
  if (most < buckets) {
    int ends[buckets], order[list_capacity];
    std::fill_n(ends, most + 1, 0);
    for (int i = 0; i < pieces_count; ++i) ++ends[missing(i)];
    for (int64_t n = 1; n <= most; ++n) ends[n] += ends[n - 1];
    for (int i = pieces_count - 1; i >= 0; --i) order[--ends[missing(i)]] = i;
    for (int i = 0; i < pieces_count; ++i) add(pieces[order[i]]);
    return;
  }
  int64_t keys[list_capacity];
  for (int i = 0; i < pieces_count; ++i) keys[i] = missing(i) << 32 | i;
  std::sort(keys, keys + pieces_count);
  for (int i = 0; i < pieces_count; ++i) add(pieces[keys[i] & 0xffffffff]);
}

int64_t PieceTimes::end(int64_t multiprocessors, int64_t latest) const {
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

void Search::write(RowPlan& plan) const {
  static_assert(sizeof(Workspace) <= FA3_FORWARD_WORKSPACE_BYTES);
  plan.row = number();
  plan.tiles = tiles;
  plan.whole_us = static_cast<double>(whole_) / 1e3;
  plan.predicted_us = static_cast<double>(best_) / 1e3;
  plan.slots = list_.slots;
  plan.pieces = {list_.first_tile, list_.count * list_.entry_tiles, list_.ticket_tiles, narrow(grain),
                 Divisor::of(list_.entry_tiles)};
  for (int n = 0; n < list_.count; ++n) plan.list[n] = listed(list_.work[n]);
  plan.workspace =
      place_parts(*this, FA3_FORWARD_WORKSPACE_BYTES, list_.slots ? list_.ticket_tiles : 0, list_.slots);
}

Listed Search::listed(const Work& work) const {
  const bool is_one = grain == 1;
  return {static_cast<uint32_t>(work.split_tile), static_cast<uint32_t>(work.part),
          static_cast<uint32_t>(is_one ? work.begin : work.begin / grain), static_cast<uint32_t>(work.slot),
          static_cast<uint32_t>(work.parts), static_cast<uint32_t>(is_one ? work.end : divide_up(work.end, grain))};
}

}  // namespace fa3
