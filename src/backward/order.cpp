#include "backward/order.h"

#include <algorithm>
#include <bit>

#include "integers.h"

namespace fa3 {
namespace {

// How many heads a section has (order.h).
//
// Without a mask it is one: its tiles then stay in the L2 cache. But where key blocks add to dQ in a fixed order, those
// of a head that begin together wait for one another. So there a section has as many blocks as the machine runs at
// once. They wait for one another once, at the beginning: the first to end take the first blocks of the next section,
// for which the others would have to wait anyway.
constexpr int32_t section_blocks = 132;
// Under a causal mask blocks differ in length, and a section's longest ones come first, of all its heads.
//  - With many heads, many_times as many as the machine runs at once, a section has about as many as it runs at once.
//    Their tiles stay in the L2 cache. The long blocks of one section begin where the short ones of the section before
//    end, so an even number of sections leaves no multiprocessor idle at the end.
//  - Otherwise the machine might end on the long blocks of a last, small section. So sections are larger, and all of
//    about the same size: of causal_heads heads, or of causal_blocks blocks. Their tiles still stay in the L2 cache, as
//    about eight blocks of a head follow one another over them, or as all heads fit. Modelled, with a turn for each
//    tile and 2.4 more for each block, 9 heads of 8192 keys have 0.97 of the speed of an even split so, and 0.76 with
//    two heads a section. Measured: 1.24 times as fast.
constexpr int32_t causal_heads = 16, causal_blocks = 256, many_times = 4;
// A key block's dQ is rounded this many key blocks later: about as many as the machine runs at once, so that its sums
// are complete by then. Its rows are prepared about twice as many before it is taken, as it takes a while to do so.
constexpr int32_t distance = 132, distance_ahead = 256;
// A warp takes as long to prepare one tile as its thread block takes to visit 13. A key block prepares one share, and
// visits as many shares as its head has blocks, under a causal mask half as many. So it is only worth it where a head
// has at least so many blocks: 16 visits for each tile that is prepared.
//
// Under a causal mask with several readers it is not worth it, either: there dQ is added faster by two threads, and one
// of them would be of the warp that prepares rows. (Measured, H200, d 128, 32 heads over 8, speed with two threads over
// that with rows prepared: 4 x 4096 1.03, 2 x 8192 1.025, 1 x 16384 1.025, 1 x 32768 1.05 to 1.07, 16 over 2, 1 x 65536
// 1.01; without a mask 0.99 to 1.00, with one reader 0.99 to 1.00.)
constexpr int32_t blocks_ahead = 16, causal_blocks_ahead = 32;

int32_t heads_taken_together(int32_t blocks) { return std::max(1, section_blocks / blocks); }

// The heads of a causal section where heads are many; 0 if they are not, or if the number of sections were odd.
int32_t even_section(int32_t heads, int32_t blocks) {
  const int32_t together = heads_taken_together(blocks), few = std::min(together, causal_heads);
  return heads >= many_times * together && heads % (2 * few) == 0 ? few : 0;
}

int32_t section_heads_of(int32_t heads, int32_t blocks, const Visible& seen, DqOrder dq) {
  if (!seen.later_rows_see_more()) return std::min(dq == DqOrder::downwards ? heads_taken_together(blocks) : 1, heads);
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

// So many blocks keep all multiprocessors busy, however unlike they are.
constexpr int64_t blocks_enough = 8 * section_blocks;

// So many tiles of a head, their Q, dO and sums of dQ, half of the L2 cache holds at d 128.
constexpr int64_t tiles_in_cache = 24 * 1024 / 64;

// In which order key blocks add to dQ. Where one thread block has all of a tile's dQ, nothing is to be ordered.
DqOrder dq_order_of(const BackwardProblem& problem, const BackwardRow& row, const HeadParts& parts, int32_t heads,
                    int32_t blocks) {
  if (!row.takes_several_blocks() || row.has(Trait::one_key_block)) return DqOrder::any;
  if (problem.deterministic) {
    // Measured on the paper's grid, from the diagonal against from the last tile: d 64 4 to 11% faster, d 128 4% at 512
    // and 1024 and the same beyond; but with 8 heads of 131072, where the blocks of a head are not taken together, 5%
    // slower.
    const bool is_alone = visible_of(problem).later_rows_see_more() && problem.heads_per_kv() == 1 && parts.parts == 1;
    const bool suits_diagonal = is_alone && heads_taken_together(blocks) > 1 && even_section(heads, blocks) > 0;
    return suits_diagonal ? DqOrder::from_diagonal : DqOrder::downwards;
  }
  // Although nobody asked for a fixed order, blocks of a head that follow one another over its tiles find more of them
  // in the L2 cache. That is faster where a head's tiles do not fit into it, and where blocks are so many that the
  // waits at the beginning do not count. It is slower where several query heads read the K/V head (32 over 8 of 32768:
  // 0.96), and where a section's tiles do not fit, but a head's do (17 heads of 8192: 0.96).
  const bool one_reader = parts.readers(problem.heads_per_kv()) == 1;
  return row.has(Trait::keeps_together) && one_reader && heads * int64_t{blocks} >= blocks_enough &&
                 parts.range_tiles > tiles_in_cache
             ? DqOrder::downwards
             : DqOrder::any;
}

// Whether blocks that go downwards begin apart from one another, and how far apart (Spread, drawn in order.h).
//
// If all begin at the last tile, the blocks of a head that run together wait for one another, the last of them as many
// turns as there are of them. So they begin apart where that is at least an eighth of the turns that a multiprocessor
// has in all, as with few heads. (Measured, speed over that of DqOrder::any, without Spread and with it: 4 heads of
// 8192 0.81 and 0.99, causal 0.85 and 1.02; 2 of 4096 0.60 and 0.90; one of 16384 causal 0.70 and 0.80; where the wait
// is an eighth 0.93 and 0.93, or 0.96 and 0.96.) But not if each thread block has only one block under a causal mask:
// those that wait longest have the least to do.
//
// How far apart: without a mask the starts are spread over all tiles. If several query heads read the K/V head, a block
// stays as many turns at each tile, so starts lie closer together by that factor, and more is found in the L2 cache (8
// heads over 1 of 8192: two tiles apart 0.84, one tile 0.99). Under a causal mask a block goes down to the diagonal,
// which it meets Bc / Br tiles above the block before it. Its start lies twice as far above that of the block before
// it, so that the way down grows from block to block, too.
Spread spread_of(const BackwardProblem& problem, const BackwardRow& row, const HeadParts& parts, int64_t key_blocks,
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
  const int64_t turns = problem.batch * problem.heads * visits_of(visible_of(problem), key_blocks, row).all;
  if (turns == 0 || together * 8 * section_blocks < turns) return none;
  const int64_t apart = uneven ? 2 * row.Bc / row.Br
                               : parts.range_tiles / (order.blocks * parts.readers(problem.heads_per_kv()));
  return {static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, apart)))) - 1,
          narrow(second)};
}

}  // namespace

Visits visits_of(const Visible& seen, int64_t key_blocks, const BackwardRow& row) {
  Visits visits;
  for (int32_t block = 0; block < key_blocks; ++block) {
    const QTiles tiles = tiles_of(seen.rows_of(block * row.Bc, block * row.Bc + row.Bc - 1), row.Br);
    const int64_t visited = std::max(0, tiles.end - tiles.begin);
    visits.all += visited, visits.longest = std::max(visits.longest, visited);
  }
  return visits;
}

// Into how many parts the query tiles that read a K/V head are divided: as many as give the shortest expected time.
// With few K/V heads there are too few key blocks for all multiprocessors, or the longest of them take too long. Times
// are in turns, one for each tile of Br rows. A block takes two turns more; if there are several parts, five more, as
// their sums go to memory and come back, and the pass that adds them up takes three. (Measured, at 8 heads over 1 of
// 8192: with all of that, 4.6 for each block of a part.) More parts must save a tenth, or a twentieth that is several
// turns, as their sums take memory: with these limits at most 277 MB.
//
// Under a causal mask, turns take longer where few blocks, but more than the machine runs at once, have many readers
// each. (Measured, d 128, beside parts of one or two readers. H100: 256 blocks of 8 readers 1.4 to 1.5 times as long,
// of 7 1.3, of 4 1.1 to 1.3; 512 blocks of 8 readers 1.1, of 4 as long. H200: 256 blocks of 8 readers 1.2, of 4 as
// long; there two parts take up to 3% longer than one. Workspaces are the same for all cards.)
constexpr int64_t most_parts = 64, pass_turns = 3, several_turns = 8;
static_assert(most_part_blocks == 2 * blocks_enough);

// By how many hundredths turns take longer so.
int64_t slowed_by_readers(int64_t readers, int64_t blocks) {
  return blocks > section_blocks ? 8 * (readers - 1) * 256 * 256 / (blocks * blocks) : 0;
}

HeadParts parts_of(const BackwardProblem& problem, const BackwardRow& row, int64_t key_blocks, int64_t tiles) {
  const int64_t heads = problem.batch * problem.heads_kv, readers = problem.heads_per_kv();
  HeadParts best{.range_tiles = tiles};
  if (row.has(Trait::as_written) || readers == 0 || key_blocks == 0 || heads * key_blocks >= blocks_enough) return best;
  const Visible seen = visible_of(problem);
  const Visits visits = visits_of(seen, key_blocks, row);
  const auto turns = [&](const HeadParts& p) {
    const int64_t own_turns = p.parts > 1 ? part_turns : block_turns, pass = p.parts > 1 ? pass_turns : 0;
    const int64_t blocks = heads * p.parts * key_blocks;
    const int64_t longest_block = std::min(visits.longest, p.range_tiles) * readers * p.ranges / p.parts + own_turns;
    if (!seen.later_rows_see_more()) return divide_up(blocks, section_blocks) * longest_block + pass;
    const int64_t all = divide_up(heads * visits.all * readers + blocks * own_turns, section_blocks);
    return (std::max(longest_block, all) + pass) * (100 + slowed_by_readers(p.readers(readers), blocks)) / 100;
  };
  for (int64_t parts = 2; parts <= most_parts && heads * parts * key_blocks <= most_part_blocks; ++parts) {
    HeadParts p{.parts = parts, .range_tiles = tiles};
    if (parts > readers) p.ranges = parts / readers, p.range_tiles = divide_up(tiles, p.ranges);
    if (parts <= readers ? readers % parts != 0 : parts % readers != 0) continue;
    if ((p.ranges - 1) * p.range_tiles >= tiles) continue;  // one would be empty
    if (problem.batch * problem.heads * p.ranges * p.range_tiles > max_rows / row.Br) continue;
    const int64_t before = turns(best), saved = before - turns(p);
    if (saved * 10 > before || (saved * 20 > before && saved >= several_turns)) best = p;
  }
  return best;
}

KeyOrder key_order_of(const BackwardProblem& problem, const BackwardRow& row, const HeadParts& parts,
                      int64_t key_blocks) {
  const Visible seen = visible_of(problem);
  KeyOrder order{};
  const int64_t heads = problem.batch * problem.heads_kv * parts.parts;
  const DqOrder dq =
      dq_order_of(problem, row, parts, std::max(1, narrow(heads)), std::max(1, narrow(key_blocks)));
  static_cast<BlockOrder&>(order) = block_order(heads, narrow(key_blocks), seen, dq);
  order.dq = dq;
  order.spread = spread_of(problem, row, parts, key_blocks, order);
  order.heads = Divisor::of(narrow(problem.heads_kv * parts.parts));
  order.parts = Divisor::of(narrow(parts.parts)), order.ranges = Divisor::of(narrow(parts.ranges));
  order.key_sums = problem.store == GradientStore::rounded ? int32_t{order.parts} : std::max(2, int32_t{order.parts});
  const int64_t q_tiles = parts.ranges * parts.range_tiles * (row.Br / backward_tile_rows);
  order.head_tiles = narrow(q_tiles * problem.heads_per_kv() / parts.parts);
  order.share = Divisor::of(narrow(divide_up(order.head_tiles, order.blocks)));
  order.ahead = order.sections;
  if (!row.takes_several_blocks()) return order;
  const bool suits_two_adders = seen.later_rows_see_more() && parts.readers(problem.heads_per_kv()) > 1;
  if (row.has(Trait::prepares_ahead) && !order.is_fixed() && !suits_two_adders &&
      order.blocks >= (seen.later_rows_see_more() ? causal_blocks_ahead : blocks_ahead))
    order.ahead = std::min(order.sections, 1 + narrow(divide_up(distance_ahead, int32_t{order.section})));
  // Two threads add dQ in turns, as to add a tile's may take longer than its products; but one, if the warp of the
  // other prepares rows.
  order.adders = order.ahead == order.sections ? 2 : 1;
  order.behind = order.sections;
  if (row.has(Trait::one_key_block)) return order;  // nothing is left to be rounded
  if (problem.store != GradientStore::rounded) return order;  // nothing is, and only the last pass stores float32
  if (order.spread.second > 0) return order;        // only the last pass adds second sums to the first ones
  order.behind = std::min(1 + narrow(divide_up(distance, int32_t{order.section})), order.sections);
  // Thread blocks round dQ of whole sections only, as the section that does it must have a block for each of its
  // blocks.
  const int32_t whole = order.batch_heads / order.section_heads;
  order.done_behind = key_blocks > 0 && q_tiles > 0 ? std::max(0, whole - order.behind) : 0;
  return order;
}

BlockOrder block_order_of(int64_t batch_heads, int64_t blocks, const Visible& seen) {
  return block_order(batch_heads, narrow(blocks), seen, DqOrder::any);
}

}  // namespace fa3
