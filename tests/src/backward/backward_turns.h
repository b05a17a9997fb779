// How thread blocks of the backward pass take key blocks and visit their tiles, turn by turn.
#pragma once
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "backward/tile/backward_tiles.h"

namespace fa3::test {

// Thread blocks that take `blocks` key blocks in their order and visit their tiles, one a turn, as bwd.cu does; where
// dQ is added in a fixed order they wait for their rank, and what they add is seen a turn later. A key block takes two
// turns more. Returns how many turns that takes, -1 if all wait for ever; visits: how often each tile was visited,
// which begin as 0, `tiles` for the first sums, then, if there are any, as many for the second ones. take(n): the n-th
// key block with its tiles; seen_of: what its sequence sees. may_round(n, added): whether what is rounded beside the
// n-th is summed up, where so many blocks have added all they have to each of the numbers that KeyOrder::added counts;
// until then its thread block waits.
template <class P, class Take, class SeenOf, class MayRound>
int64_t count_turns(const P& p, size_t thread_blocks, int64_t blocks, size_t tiles, Take take, SeenOf seen_of,
                    std::vector<int>& visits, MayRound may_round) {
  constexpr bool may_overlap = !std::is_same_v<P, BackwardParams>;  // then more are added than there are ranks
  using Block = decltype(take(0));
  struct Working {
    Block block;
    QueryTile tile;
    int number, left, pause;
    bool counted = false;
  };
  std::vector<int> added_last(size_t(blocks) + 1);
  std::vector<std::optional<Working>> all(thread_blocks);
  int next = 0;
  for (int64_t turn = 0;; ++turn) {
    std::vector<size_t> added, complete;
    bool moved = false, working = false;
    for (std::optional<Working>& at : all) {
      if (at && at->left == 0) {
        if (!at->counted) complete.push_back(size_t(at->block.batch_head)), at->counted = moved = true;
        if (may_round(at->number, added_last)) at.reset(), moved = true;
      }
      if (!at && next < blocks) {
        const Block block = take(next);
        at = {block, QueryTile(block), next++, block.all, 2};
      }
      if (!at) continue;
      working = true;
      if (at->left == 0 && at->counted) continue;
      if (at->pause > 0 || at->left == 0) {
        --at->pause, moved = true;
        continue;
      }
      auto number = size_t(at->tile.number(at->block));
      if (p.order.is_fixed()) {
        const auto rank = at->block.turn(p, seen_of(at->block), at->tile.tile);
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
    for (const size_t number : complete) ++added_last.at(number);
  }
}
template <class P, class Take, class SeenOf>
int64_t count_turns(const P& p, size_t thread_blocks, int64_t blocks, size_t tiles, Take take, SeenOf seen_of,
                    std::vector<int>& visits) {
  return count_turns(p, thread_blocks, blocks, tiles, take, seen_of, visits,
                     [](int, const std::vector<int>&) { return true; });
}

// Is the share of the n-th block that is taken summed up, as wait_for_listed_sums in backward/tile/sums.cuh asks?
template <int Bc>
bool is_summed_up(const PlannedBackwardParams& p, int n, const std::vector<int>& added) {
  const ListedBlock listed = listed_block(*p.counts, p.order.section, n);
  const PlannedBlock& block = p.blocks[listed.entry];
  const QTiles share = share_of(block, Bc);
  if (share.none()) return true;
  const auto count_of = [&](int32_t entry) { return added[size_t(entry * p.order.heads + listed.head)]; };
  if (!counts_blocks(p.call.window))
    return count_of(first_block_entry(p.order.dq, listed.entry, block.block)) == block.blocks;
  const Visible seen = visible_of(block.sequence, true, true, {0});
  const int32_t before = block.block - seen.of(share.begin * backward_tile_rows).begin / Bc;
  for (int32_t entry = listed.entry - before; entry <= listed.entry; ++entry)
    if (count_of(entry) != 1) return false;
  return true;
}

}  // namespace fa3::test
