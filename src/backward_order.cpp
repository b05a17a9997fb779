#include "backward_order.h"

#include <algorithm>
#include <bit>

namespace fa3 {
namespace {

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

// Heads whose blocks come together: a section. Without a mask, a head at a time makes the most of the L2 cache. But
// where dQ is added in a fixed order, thread blocks that take the blocks of a head at the same time wait for one
// another; of a section they do so once, as those that end first take the blocks that others wait for.
constexpr int32_t section_blocks = 132;
// Under a causal mask the blocks of the first keys, or of the last queries, have the most to do. They come first, of all
// heads of a section. How many heads a section has:
//  - If heads are many times as many as the machine runs at once: about as many as it runs at once, whose tiles fit the
//    L2 cache. The number of such sections must be even: then long blocks of one begin where short ones of another end,
//    and thread blocks end at the same time.
//  - Otherwise small sections would leave some thread blocks with long blocks at the end. So all sections have about the
//    same size, and a larger one: of causal_heads heads or causal_blocks blocks at least. Tiles stay in the L2 cache,
//    too: about eight blocks of a head, one behind the other, visit them together, or all heads fit.
// (Modelled, with a turn for each tile and 2.4 for each block: of an even split 9 heads of 8192 keys take 0.97, and
// with two heads a section 0.76; measured, in all, 1.24 times as fast.)
constexpr int32_t causal_heads = 16, causal_blocks = 256, many_times = 4;
// Thread blocks between those that add to sums and those that finish them: about what the machine runs at once. Between
// those that prepare rows and those that visit them: twice that, as the first are still at it when the next ones come.
constexpr int32_t distance = 132, distance_ahead = 256;
// A warp takes as long to prepare a tile as a thread block to visit 13 of them. So rows are prepared by key blocks that
// visit at least 16 tiles for each tile of their share.
constexpr int32_t blocks_ahead = 16, causal_blocks_ahead = 32;

int32_t heads_together(int32_t blocks) { return std::max(1, section_blocks / blocks); }

// The heads of such a section, or 0 if heads are too few or do not come out even.
int32_t even_section(int32_t heads, int32_t blocks) {
  const int32_t together = heads_together(blocks), few = std::min(together, causal_heads);
  return heads >= many_times * together && heads % (2 * few) == 0 ? few : 0;
}

int32_t section_heads_of(int32_t heads, int32_t blocks, const Visible& seen, DqOrder dq) {
  if (!seen.later_rows_see_more()) return std::min(dq == DqOrder::downwards ? heads_together(blocks) : 1, heads);
  const int32_t even = dq == DqOrder::downwards ? 0 : even_section(heads, blocks);
  if (even > 0) return even;
  const int32_t sections = narrow(divide_up(heads, std::max(causal_heads, causal_blocks / blocks)));
  return narrow(divide_up(heads, sections));
}

BlockOrder block_order(int64_t batch_heads, int32_t blocks, const Visible& seen, DqOrder dq) {
  BlockOrder order{};
  order.batch_heads = narrow(batch_heads);
  order.blocks = std::max(1, blocks);
  order.section_heads = section_heads_of(std::max(1, order.batch_heads), order.blocks, seen, dq);
  order.sections = narrow(divide_up(order.batch_heads, order.section_heads));
  order.section = Divisor::of(order.section_heads * order.blocks);
  return order;
}

// Of the blocks of one query head, in tiles of Br rows.
struct Visits {
  int64_t all = 0, longest = 0;
};
Visits visits_of(const BackwardProblem& problem, int64_t key_blocks, const Row& row) {
  const Visible seen = visible_of(problem);
  Visits visits;
  for (int32_t block = 0; block < key_blocks; ++block) {
    const QTiles tiles = tiles_of(seen.rows_of(block * row.Bc, block * row.Bc + row.Bc - 1), row.Br);
    const int64_t its = std::max(0, tiles.end - tiles.begin);
    visits.all += its, visits.longest = std::max(visits.longest, its);
  }
  return visits;
}

// So many blocks are enough for all multiprocessors, whatever they take.
constexpr int64_t blocks_enough = 8 * section_blocks;

// So many tiles of a head, their Q, dO and sums of dQ, half of the L2 cache holds at d 128.
constexpr int64_t tiles_in_cache = 24 * 1024 / 64;

// In which order key blocks add to dQ. Where one thread block has all of a tile's dQ, nothing is to be ordered.
DqOrder dq_order_of(const BackwardProblem& problem, const Row& row, const Parts& parts, int32_t heads, int32_t blocks) {
  if (!row.takes_several_blocks() || row.has(Trait::one_key_block)) return DqOrder::any;
  if (problem.deterministic) {
    // Measured on the paper's grid, from the diagonal against from the last tile: d 64 4 to 11% faster, d 128 4% at 512
    // and 1024 and the same beyond; but with 8 heads of 131072, where the blocks of a head are not taken together, 5%
    // slower.
    const bool is_alone = visible_of(problem).later_rows_see_more() && problem.heads_per_kv() == 1 && parts.parts == 1;
    return is_alone && heads_together(blocks) > 1 && even_section(heads, blocks) ? DqOrder::from_diagonal
                                                                                : DqOrder::downwards;
  }
  // Where a head's tiles do not fit into the L2 cache, and blocks are so many that the waits at first do not count. It
  // is slower where several heads are read (32 over 8 of 32768: 0.96), and where a section's tiles do not fit, but a
  // head's do (17 heads of 8192: 0.96).
  const bool one_reader = parts.readers(problem.heads_per_kv()) == 1;
  return row.has(Trait::keeps_together) && one_reader && heads * int64_t{blocks} >= blocks_enough &&
                 parts.range_tiles > tiles_in_cache
             ? DqOrder::downwards
             : DqOrder::any;
}

// Whether blocks begin apart from one another, and by how much (Spread). If all begin at the last tile, each waits for
// as many turns as blocks of its head are taken with it: so they do where that is at least an eighth of all turns, as
// with few heads. But not if each thread block has one block under a causal mask, as those that wait have less to do.
// (Measured, of the plain mode, without and with: 4 heads of 8192 0.81 and 0.99, causal 0.85 and 1.02; 2 of 4096 0.60
// and 0.90, one of 16384 causal 0.70 and 0.80; where it is an eighth 0.93 and 0.93, or 0.96 and 0.96.)
// How far apart: under a causal mask the first tile of each block is Bc / Br tiles above that of the block before it.
// Each is to have a longer way down from its start than the block before it, so starts are 2 Bc / Br apart. Without a
// mask they are spread evenly over all tiles. If a part has several query heads, a tile takes as many turns, and starts
// are closer by that factor: then more is found in the L2 cache (8 heads over 1 of 8192: 0.84 and 0.99).
Spread spread_of(const BackwardProblem& problem, const Row& row, const Parts& parts, int64_t key_blocks,
                 const KeyOrder& order) {
  const bool uneven = visible_of(problem).later_rows_see_more();
  constexpr Spread none{31, 0};
  constexpr int64_t most_second = 1056;  // tiles: 35 MB
  const int64_t second = problem.batch * problem.heads * parts.ranges * parts.range_tiles;
  if (second > most_second) return none;
  const int64_t all_blocks = int64_t{order.batch_heads} * order.blocks;
  if (order.dq != DqOrder::downwards || all_blocks >= blocks_enough) return none;
  if (uneven && all_blocks <= section_blocks) return none;
  const int64_t together = std::min(order.blocks, section_blocks / order.section_heads);
  const int64_t turns = problem.batch * problem.heads * visits_of(problem, key_blocks, row).all;
  if (turns == 0 || together * 8 * section_blocks < turns) return none;
  const int64_t apart = uneven ? 2 * row.Bc / row.Br
                               : parts.range_tiles / (order.blocks * parts.readers(problem.heads_per_kv()));
  return {static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, apart)))) - 1,
          narrow(second)};
}

}  // namespace

// Into how many parts what reads a K/V head is divided: so many that the expected time is the shortest. With few K/V
// heads their blocks are too few for all multiprocessors, or the longest of them too long. Times are in turns, one for
// each tile of Br rows; a block takes two turns more, and if there are several parts five, as their sums go to memory
// and come back, and the pass that adds them up three (measured, at 8 heads over 1 of 8192: each block of a part takes
// 4.6 more, all told). More parts must save 10%, as their sums take memory: with these limits at most 277 MB.
constexpr int64_t most_blocks = 2 * blocks_enough, most_parts = 64;
constexpr int64_t block_turns = 2, part_turns = 5, pass_turns = 3;

Parts parts_of(const BackwardProblem& problem, const Row& row, int64_t key_blocks, int64_t tiles) {
  const int64_t heads = problem.batch * problem.heads_kv, readers = problem.heads_per_kv();
  Parts best{.range_tiles = tiles};
  if (row.has(Trait::as_written) || readers == 0 || key_blocks == 0 || heads * key_blocks >= blocks_enough) return best;
  const Visible seen = visible_of(problem);
  const Visits visits = visits_of(problem, key_blocks, row);
  const auto turns = [&](const Parts& p) {
    const int64_t more = p.parts > 1 ? part_turns : block_turns, pass = p.parts > 1 ? pass_turns : 0;
    const int64_t blocks = heads * p.parts * key_blocks;
    const int64_t longest_block = std::min(visits.longest, p.range_tiles) * readers * p.ranges / p.parts + more;
    if (!seen.later_rows_see_more()) return divide_up(blocks, section_blocks) * longest_block + pass;
    return std::max(longest_block, divide_up(heads * visits.all * readers + blocks * more, section_blocks)) + pass;
  };
  for (int64_t parts = 2; parts <= most_parts && heads * parts * key_blocks <= most_blocks; ++parts) {
    Parts p{.parts = parts, .range_tiles = tiles};
    if (parts > readers) p.ranges = parts / readers, p.range_tiles = divide_up(tiles, p.ranges);
    if (parts <= readers ? readers % parts != 0 : parts % readers != 0) continue;
    if ((p.ranges - 1) * p.range_tiles >= tiles) continue;  // one would be empty
    if (problem.batch * problem.heads * p.ranges * p.range_tiles > max_rows / row.Br) continue;
    if (turns(p) * 10 < turns(best) * 9) best = p;
  }
  return best;
}

KeyOrder key_order_of(const BackwardProblem& problem, const Row& row, const Parts& parts, int64_t key_blocks) {
  const Visible seen = visible_of(problem);
  KeyOrder order{};
  const int64_t heads = problem.batch * problem.heads_kv * parts.parts;
  const DqOrder dq =
      dq_order_of(problem, row, parts, std::max(1, narrow(heads)), std::max(1, narrow(key_blocks)));
  static_cast<BlockOrder&>(order) = block_order(heads, narrow(key_blocks), seen, dq);
  order.dq = dq;
  order.spread = spread_of(problem, row, parts, key_blocks, order);
  order.heads = Divisor::of(std::max(1, narrow(problem.heads_kv * parts.parts)));
  order.parts = Divisor::of(narrow(parts.parts)), order.ranges = Divisor::of(narrow(parts.ranges));
  const int64_t q_tiles = parts.ranges * parts.range_tiles * (row.Br / backward_tile_rows);
  order.head_tiles = narrow(q_tiles * problem.heads_per_kv() / parts.parts);
  order.share = Divisor::of(std::max(1, narrow(divide_up(order.head_tiles, order.blocks))));
  order.ahead = order.sections;
  if (!row.takes_several_blocks()) return order;
  if (row.has(Trait::prepares_ahead) && !order.is_fixed() &&
      order.blocks >= (seen.later_rows_see_more() ? causal_blocks_ahead : blocks_ahead))
    order.ahead = std::min(order.sections, 1 + narrow(divide_up(distance_ahead, int32_t{order.section})));
  // Two threads, as to add a tile's dQ may take longer than its products; but one, if the other's warp prepares rows.
  order.adders = order.ahead == order.sections ? 2 : 1;
  order.behind = order.sections;
  if (row.has(Trait::one_key_block)) return order;  // nothing is left to be rounded
  if (order.spread.second > 0) return order;        // only the last pass adds second sums in
  order.behind = std::min(1 + narrow(divide_up(distance, int32_t{order.section})), order.sections);
  // Sections whose number of blocks is that of the ones that finish them.
  const int32_t whole = order.batch_heads / order.section_heads;
  order.done_behind = key_blocks > 0 && q_tiles > 0 ? std::max(0, whole - order.behind) : 0;
  return order;
}

BlockOrder block_order_of(int64_t batch_heads, int64_t blocks, const Visible& seen) {
  return block_order(batch_heads, narrow(blocks), seen, DqOrder::any);
}

}  // namespace fa3
