#include "forward/plan/tiles.h"

#include <algorithm>

#include "forward/plan/cost.h"
#include "integers.h"
#include "params/params.h"

namespace fa3 {
namespace {

// How many (batch, head) pairs a section has, whose tiles are claimed before those of the next section.
//
// Without a mask: one. Its K and V then stay in the L2 cache, and as all tiles are of one length, nothing is lost.
//
// With a causal mask the tiles of a section come from long to short, and its short ones fill the gaps that its long
// ones leave. So a large section is better balanced. But its K and V should stay in the L2 cache, too: they may take
// about 32 MB. (Pairs that read the same K and V, heads_per_kv of them, are a group, and a section has whole groups,
// one at least. With up to 1024 keys there are 32 groups or more in it at any head dimension, enough to fill the
// machine.) All sections are of about the same size, and may be larger by a half for that. A small one at the end would
// leave the machine idle, with a few long tiles: at d 128, 9 heads of 8192 take 210 us in one section and 278 us in
// two, of 8 and 1.
//
// But where tiles are many and keys few, the long tiles of such a section, which come first, all wait for memory, and
// the short ones, which find K and V in the L2 cache, all wait for the tensor cores. So there a section is one group,
// and tiles of all lengths run beside each other (mixes_lengths). Measured: 2 to 8% faster up to 1024 keys, 1% at 1536,
// none at 2048. Where memory takes much longer than the products (waits_for_memory), it is the larger one again that is
// faster: on an H100 with sections of 16 groups d 256 2 to 6% up to 640 keys, d 128 1 to 2% up to 512, d 64 none; with
// more keys slower.
int64_t section_heads(const Candidate& candidate, bool mixes_lengths, bool waits_for_memory) {
  const auto& [problem, row] = candidate;
  constexpr int64_t mixed_groups = 16;
  constexpr int64_t budget = 32 << 20;
  const int64_t batch_heads = problem.batch * candidate.heads();
  const int64_t heads_per_kv = row.packs_heads() ? 1 : problem.heads_per_kv();
  if (!problem.causal) return 1;
  if (mixes_lengths) return std::min(batch_heads, waits_for_memory ? mixed_groups * heads_per_kv : heads_per_kv);
  const int64_t kv_bytes = problem.seqlen_k * (problem.head_dim + problem.head_dim_v) * row.element_bytes();
  if (kv_bytes == 0) return batch_heads;
  const int64_t groups = std::max<int64_t>(1, budget / kv_bytes);
  const int64_t all = batch_heads / heads_per_kv;
  const int64_t sections = std::max<int64_t>(1, (all + groups / 2) / groups);
  return std::min(batch_heads, divide_up(all, sections) * heads_per_kv);
}

// Do the products of causal tiles take less than 0.7 of the time in which Q, K, V and O come and go?
bool waits_for_memory(const Candidate& candidate, const Card& card, int64_t first_row, int64_t q_blocks) {
  const auto& [problem, row] = candidate;
  if (row.is_8bit()) return false;
  const Visible visible = candidate.visible();
  int64_t blocks = 0;
  for (int64_t n = 0; n < q_blocks; ++n) {
    const Blocks seen = tile_blocks(visible, narrow(first_row + n * row.Br), row.Br, row.Bc);
    blocks += seen.end - seen.begin;
  }
  const auto columns = static_cast<double>(problem.head_dim + problem.head_dim_v);
  const auto rows = static_cast<double>(problem.heads * problem.seqlen_q + problem.heads_kv * problem.seqlen_k);
  const double bytes = row.element_bytes() * columns * rows;
  const auto products = static_cast<double>(blocks * costs_of(row).behind.block) * static_cast<double>(problem.heads);
  const auto memory_rate =
      static_cast<double>(rates_of(card, bytes * static_cast<double>(problem.batch), false).for_all);
  return products / card.multiprocessors < 0.7 * bytes / memory_rate;
}

}  // namespace

bool tiles_fit(const Candidate& candidate) {
  const int64_t rows = candidate.rows();
  int64_t tiles;  // batch and heads are below 2^31
  return rows <= max_seqlen &&
         !__builtin_mul_overflow(divide_up(rows, candidate.row.Br), candidate.problem.batch * candidate.heads(),
                                 &tiles) &&
         tiles <= max_tiles;
}

bool mixes_lengths(const Candidate& candidate, int64_t q_blocks, int64_t multiprocessors) {
  const auto& [problem, row] = candidate;
  constexpr int64_t few_keys = 2048;
  return problem.causal && row.has(Trait::splits) && problem.seqlen_k < few_keys && q_blocks > 1 &&
         q_blocks * problem.batch * candidate.heads() >= balanced * multiprocessors;
}

Tiles tiles_of(const Candidate& candidate, const Card& card) {
  const auto& [problem, row] = candidate;
  const int64_t all_rows = divide_up(candidate.rows(), 64) * 64, heads_in_all = candidate.heads();
  const int64_t batch_heads = problem.batch * heads_in_all;
  int64_t q_blocks = divide_up(all_rows, row.Br), first_row = 0;
  if (problem.causal) {
    // Rows that see no key are in no tile, as far as whole blocks go; but one tile there is. Without a producer nobody
    // would write them, and with packed heads they are few.
    const int64_t empty = std::min<int64_t>(candidate.visible().empty_rows(), all_rows - 1) / 64 * 64;
    if (!row.has(Trait::no_producer) && !row.packs_heads()) q_blocks = divide_up(all_rows - empty, row.Br);
    // The block with fewer rows is put first, where rows see the fewest keys.
    first_row = all_rows - q_blocks * row.Br;
  }
  const bool mixes = mixes_lengths(candidate, q_blocks, card.multiprocessors);
  const bool waits = mixes && waits_for_memory(candidate, card, first_row, q_blocks);
  const int64_t heads = section_heads(candidate, mixes, waits);
  const int64_t last_heads = batch_heads % heads;
  return {narrow(q_blocks),
          narrow(first_row),
          narrow(batch_heads),
          Divisor::of(narrow(heads_in_all)),
          Divisor::of(narrow(heads)),
          Divisor::of(narrow(heads * q_blocks)),
          Divisor::of(narrow(last_heads ? last_heads : heads))};
}

int64_t empty_blocks(const Tiles& tiles, const ForwardRow& row) {
  return tiles.first_row <= 0 ? 0 : int64_t{tiles.batch_heads} * divide_up(tiles.first_row, row.Br);
}

WorkspaceLayout place_parts(const Candidate& candidate, size_t begin, int64_t ticket_tiles, int64_t slots) {
  const ForwardRow& row = candidate.row;
  constexpr size_t alignment = 64;
  const auto aligned = [](size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  const size_t tickets = aligned(begin);
  // Where O is in two halves a pass adds parts up, without tickets.
  const int64_t tickets_of_tile = row.halves_columns() ? 0 : row.tile_warpgroups();
  const size_t partials = aligned(tickets + static_cast<size_t>(ticket_tiles * tickets_of_tile) * sizeof(Tickets));
  int64_t slot = int64_t{row.Br / 16} * row.partial_bytes();
  if (row.packs_heads())
    slot = int64_t{Packing::slot_rows(narrow(candidate.rows()), row.Br, row.slot_unit())} * row.packed_row_bytes();
  return {tickets, partials, partials + static_cast<size_t>(slots * slot)};
}

}  // namespace fa3
