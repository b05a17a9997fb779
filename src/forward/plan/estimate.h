// How long a problem takes on a row of the table and a card: the tiles that it has there, what these cost, and when all
// of them end if none is split.
#pragma once
#include "forward/plan/cost.h"
#include "forward/plan/tiles.h"

namespace fa3 {

// So many after one another, of so many nanoseconds each; at most most_time.
inline constexpr int64_t most_time = INT64_MAX / 10;
int64_t in_turn(int64_t count, int64_t time);

// Does its plan follow from the card, too? Few queries wait for memory, and so may short causal tiles. Elsewhere times
// are those of the tensor cores: with another clock all of them change alike. What planned problems and e4m3 cost is
// not known of each card.
bool depends_on_card(const ForwardProblem& problem);

// With so many causal tiles for each multiprocessor, or more, no split that was measured gained anything.
inline constexpr int64_t enough_tiles = 2;

struct Estimate : Candidate {
  Estimate(const Candidate& candidate, const Card& card);

  // K/V blocks of a query block's tile. They count from block 0, as masks without a left bound leave it to all.
  // As tile_blocks counts them, without a division, as plans ask it hundreds of times.
  int64_t blocks(int64_t q_block) const {
    const int32_t first = tiles.first_row + static_cast<int32_t>(q_block) * row.Br;
    const Keys keys = seen.any(first, first + row.Br - 1);
    const int32_t more = (keys.end + row.Bc - 1) / keys_per_block - keys.begin / keys_per_block;
    return keys.none() || more < 1 ? 1 : more;
  }
  // Under a causal mask: of the n-th query block in the order of the tiles, from the longest to the shortest.
  int64_t length(int64_t n) const { return blocks(tiles.q_blocks - 1 - n); }
  int64_t length_of_tile(int32_t tile) const { return blocks(tile_at(tiles, tile, true).q_block); }

  // Costs where so many pieces are under way. Few queries wait for K and V, which the heads that share them read from
  // memory once.
  Costs under_way(Costs costs, int64_t pieces) const;
  // How much later than at `time` the last of so many pieces ends that start together and wait for memory. It serves
  // fewer of them a little less. Where it serves nearly as much as all of them could take, some get all that they can,
  // and when these are done, the others cannot use what is left. Measured at d 128: 3% with 80 pieces, 1% with 112; on
  // an H200 12 to 16% with 84 to 100.
  int64_t late(const Costs& costs_alone, int64_t pieces, int64_t time) const;
  // When the last tile ends, if all are left whole. Of many tiles of different lengths it is estimated only; roughly:
  // of fewer, which would be simulated, too. Where they are too many to be split, any time after `latest` will do for
  // what is later.
  int64_t whole_time(bool roughly = false, int64_t latest = INT64_MAX) const;
  // No plan of this row is predicted to end sooner.
  int64_t least_time() const;

  const int64_t multiprocessors;
  const Visible seen;
  const Tiles tiles;
  const Divisor keys_per_block;
  const bool packs_heads;
  const bool waits_for_memory;  // has few queries
  const bool same_length;    // all tiles have as many blocks
  const bool mixes_lengths;  // long and short ones run beside each other
  const int64_t longest;     // blocks of the longest tile
  const int64_t grain;       // of the list, in blocks (ptx/plan/work.h)
  const MemoryRates rates;
  const int64_t loaded_bytes;  // from memory for each block, where it waits for memory
  RowCosts costs;
};

}  // namespace fa3
