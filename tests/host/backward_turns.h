// How thread blocks of the backward pass take key blocks and visit their tiles, turn by turn.
#pragma once
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "backward_tiles.h"

namespace fa3::test {

// Thread blocks that take `blocks` key blocks in their order and visit their tiles, one a turn, as bwd.cu does; where
// dQ is added in a fixed order they wait for their rank, and what they add is seen a turn later. A key block takes two
// turns more. Returns how many turns that takes, -1 if all wait for ever; visits: how often each tile was visited,
// which begin as 0, `tiles` for the first sums, then, if there are any, as many for the second ones. take(n): the n-th
// key block with its tiles; seen_of: what its sequence sees.
template <class P, class Take, class SeenOf>
int64_t count_turns(const P& p, size_t thread_blocks, int64_t blocks, size_t tiles, Take take, SeenOf seen_of,
                    std::vector<int>& visits) {
  constexpr bool may_overlap = !std::is_same_v<P, BackwardParams>;  // then more are added than there are ranks
  using Block = decltype(take(0));
  struct Working {
    Block block;
    QueryTile tile;
    int left, pause;
  };
  std::vector<std::optional<Working>> all(thread_blocks);
  int next = 0;
  for (int64_t turn = 0;; ++turn) {
    std::vector<size_t> added;
    bool moved = false, working = false;
    for (std::optional<Working>& at : all) {
      if (at && at->left == 0) at.reset();
      if (!at && next < blocks) {
        const Block block = take(next++);
        at = {block, QueryTile(block), block.all, 2};
      }
      if (!at) continue;
      working = true;
      if (at->pause > 0 || at->left == 0) {
        --at->pause, moved = true;
        continue;
      }
      auto number = size_t(at->tile.number(at->block));
      if (p.order.is_fixed()) {
        const auto rank = at->block.turn(p.order, seen_of(at->block), at->tile.tile);
        if (rank.second) number += tiles;
        const int before = visits.at(number);
        if (may_overlap ? before < rank.rank : before != rank.rank) continue;
      }
      added.push_back(number);
      at->tile.next(p, at->block), --at->left, moved = true;
    }
    if (!working) return turn;
    if (!moved) return -1;
    for (const size_t number : added) ++visits.at(number);
  }
}

}  // namespace fa3::test
