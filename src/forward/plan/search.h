// The search for a problem's best split on one row of the table: the pieces that tiles become, and whether these are
// predicted to end sooner than those of the best split so far. The files split_... say which splits are tried.
#pragma once
#include <algorithm>

#include "forward/plan/estimate.h"
#include "integers.h"
#include "params/params.h"

namespace fa3 {

// Parts of fewer blocks cost more by their first and last steps than they gain.
inline constexpr int64_t least_blocks = 4;
// So many parts for each multiprocessor, at most, which bounds the workspace; and with packed heads.
inline constexpr int64_t most_multiprocessor_parts = 2, most_packed_multiprocessor_parts = 3;

// The pieces of the tiles from number first_tile on, in the order of their claims.
struct PieceList {
  int32_t first_tile = 0;
  int32_t entry_tiles = 1;   // so many tiles share each entry, which is the piece of the first one
  int32_t ticket_tiles = 0;  // so many of the tiles, the first, may be split
  int32_t slots = 0;
  int count = 0;          // of entries
  bool complete = true;   // all pieces have found room
  Work work[list_capacity];

  PieceList() = default;
  PieceList(const PieceList& other) { *this = other; }
  PieceList& operator=(const PieceList& other) {  // of the pieces only those that there are
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
  void add_parts(int32_t n, int64_t blocks, int64_t unit);
  // From the longest to the shortest, of which none has more than `most` blocks; those of one length in their order.
  void add_sorted(const Work* pieces, int pieces_count, int64_t most);
};

// Times of pieces, in the order of their claims: so many of the same time in each group.
struct PieceTimes {
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
  int64_t end(int64_t multiprocessors, int64_t latest) const;
};

// In nanoseconds: a plan that takes longer is of no use. roughly: as of Estimate::whole_time.
struct SearchLimit {
  int64_t time;
  bool roughly;
};

class Search : protected Estimate {
 public:
  Search(const Estimate& estimate, const SearchLimit& limit)
      : Estimate(estimate), whole_(whole_time(limit.roughly, limit.time)), limit_(limit.time), best_(whole_) {
    list_.first_tile = tiles.count();
  }

  // The best split that was found.
  void write(RowPlan& plan) const;

 protected:
  // Takes the list if its pieces end sooner than those of the best one so far. They come behind whole tiles that keep
  // all multiprocessors busy until `start`.
  void consider(const PieceList& list, const Costs& busy, int64_t start) {
    PieceTimes times;
    for (int n = 0; n < list.count; ++n) times.add(busy.time(list.work[n]), 1);
    times.complete &= list.complete;
    if (is_better(times, start)) list_ = list;
  }
  bool is_better(const PieceTimes& times, int64_t start = launch_time) {
    const int64_t time = end_of(times, start);
    if (!may_be_better(time)) return false;
    best_ = time;
    return true;
  }
  // When they end; where that is no better than the best ones so far, perhaps sooner than they do.
  int64_t end_of(const PieceTimes& times, int64_t start) const {
    return times.complete ? start + times.end(multiprocessors, std::min(best_, limit_) - start) : INT64_MAX;
  }
  // Could pieces that end then, at the soonest, be better than the best ones so far?
  bool may_be_better(int64_t least) const {
    return least < best_ && least <= limit_ && worth_splitting(least, whole_);
  }
  int64_t whole_grains(int64_t blocks) const { return grain == 1 ? blocks : divide_up(blocks, grain) * grain; }

  const int64_t whole_;  // predicted time with all tiles whole,
  const int64_t limit_;  // which is of no use if it is longer than that,
  int64_t best_;         // and of the best plan so far,
  PieceList list_;       // whose list this is

 private:
  Listed listed(const Work& work) const;
};

// Ways to split, of problems whose tiles are of one length, also with packed heads, and of causal ones.
void split_last_wave(const Estimate& estimate, const SearchLimit& limit, RowPlan& plan);
void split_packed(const Estimate& estimate, const SearchLimit& limit, RowPlan& plan);
void split_causal(const Estimate& estimate, const SearchLimit& limit, RowPlan& plan);

}  // namespace fa3
