#include "plans.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "forward/plan/tiles.h"

namespace fa3::test {

static ForwardProblem problem_of(const fa3_forward_params& p) {
  ForwardProblem problem;
  REQUIRE(validate(&p, Rules::shapes, problem) == FA3_OK);
  return problem;
}

ForwardProblem problem_of(const Shape& shape, int32_t mask, const char* kernel, int32_t dtype) {
  fa3_forward_params p = imaginary(shape, dtype);
  p.mask = mask, p.kernel = kernel;
  return problem_of(p);
}

ForwardProblem problem_of(const ForwardRow& row, const Shape& shape) {
  fa3_forward_params p = imaginary_for(row, shape);
  p.kernel = row.name;
  return problem_of(p);
}

Shape square(int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) {
  return {
      .batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .heads_kv = heads, .head_dim = head_dim};
}

Fit fit_of(const ForwardProblem& problem) {
  Fit made;
  REQUIRE(fit(problem, made) == FA3_OK);
  return made;
}

ForwardProblem huge(const Shape& shape, int32_t mask) {
  ForwardProblem problem = problem_of({.head_dim = shape.head_dim}, mask);
  problem.batch = shape.batch, problem.heads = shape.heads, problem.heads_kv = shape.heads_kv;
  problem.seqlen_q = shape.seqlen_q, problem.seqlen_k = shape.seqlen_k;
  problem.causal_offset = mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? shape.seqlen_k - shape.seqlen_q : 0;
  return problem;
}

const Card& card_named(const std::string& name) {
  const auto* known = std::ranges::find_if(known_cards, [&](const NamedCard& card) { return card.name == name; });
  REQUIRE(known != std::end(known_cards));
  return known->card;
}

const RowPlan& row_plan(const ForwardProblem& problem, const Card& card) {
  return plan(problem, fit_of(problem), card).forward;
}

int64_t visible_keys(const ForwardProblem& problem, int64_t row) {
  if (!problem.causal) return problem.seqlen_k;
  return std::clamp<int64_t>(row + problem.causal_offset + 1, 0, problem.seqlen_k);
}

int64_t rows_of_query(const ForwardProblem& problem, const ForwardRow& row) {
  int64_t rows = 1;
  while (row.packs_heads() && rows < problem.heads / problem.heads_kv) rows *= 2;
  return rows;
}

Unfolded unfold(const ForwardProblem& problem, const RowPlan& plan, int32_t number) {
  const ForwardRow& row = forward_row(plan.row);
  const Tile tile = tile_at(plan.tiles, number, problem.causal);
  const int64_t first_row = plan.tiles.first_row + int64_t{tile.q_block} * row.Br;
  int64_t last_query = std::min<int64_t>(first_row + row.Br, problem.seqlen_q) - 1;
  if (row.packs_heads())
    last_query = std::min((first_row + row.Br - 1) / rows_of_query(problem, row), problem.seqlen_q - 1);
  const int64_t keys = visible_keys(problem, last_query);  // later ones see more
  return {tile, first_row, std::max<int32_t>(1, int32_t((keys + row.Bc - 1) / row.Bc))};
}

size_t most_workspace(const ForwardRow& row, int multiprocessors) {
  const int takers = multiprocessors / row.cluster_blocks();
  return size_t(3 * takers) * size_t(row.Br) * 4 * size_t(row.dv + 8) + 64 * size_t(multiprocessors + 2);
}

namespace {

// Every query row that sees a key is in one tile; with packed heads, every row.
void check_tiles(const ForwardProblem& problem, const RowPlan& plan) {
  const ForwardRow& row = forward_row(plan.row);
  const Tiles& tiles = plan.tiles;
  const bool packs_heads = row.packs_heads();
  const int64_t all_rows = problem.seqlen_q * rows_of_query(problem, row);
  const int64_t heads = packs_heads ? problem.heads_kv : problem.heads;
  REQUIRE(tiles.first_row % 64 == 0);
  REQUIRE(tiles.first_row + int64_t{tiles.q_blocks} * row.Br >= all_rows);
  REQUIRE(tiles.first_row + int64_t{tiles.q_blocks - 1} * row.Br < all_rows);
  if (tiles.first_row > 0 && !packs_heads) REQUIRE(visible_keys(problem, tiles.first_row - 1) == 0);
  else REQUIRE((tiles.first_row > -row.Br && tiles.first_row <= 0));
  REQUIRE(tiles.batch_heads == problem.batch * heads);
  if (tiles.count() > 20000) return;
  std::vector<bool> seen(size_t(tiles.count()));
  int64_t section = -1, q_block = 0;
  for (int32_t n = 0; n < tiles.count(); ++n) {
    const Tile tile = tile_at(tiles, n, problem.causal);
    REQUIRE((tile.q_block >= 0 && tile.q_block < tiles.q_blocks));
    REQUIRE((tile.head >= 0 && tile.head < heads && tile.batch >= 0 && tile.batch < problem.batch));
    const int64_t batch_head = tile.batch * heads + tile.head;
    const size_t at = size_t(batch_head * tiles.q_blocks + tile.q_block);
    REQUIRE_FALSE(seen[at]);
    seen[at] = true;
    // Sections one after the other; inside one, a query block's heads together, under a causal mask the longest first.
    const int64_t its_section = batch_head / int32_t{tiles.section_heads};
    REQUIRE(its_section >= section);
    if (its_section == section) REQUIRE((problem.causal ? tile.q_block <= q_block : tile.q_block >= q_block));
    section = its_section, q_block = tile.q_block;
  }
}

// Every block of every tile is in one piece, and every part knows its number and has a slot of its own.
void check_pieces(const ForwardProblem& problem, const RowPlan& plan) {
  const Pieces& pieces = plan.pieces;
  const int32_t tiles = plan.tiles.count(), listed_tiles = tiles - pieces.whole_tiles;
  REQUIRE((pieces.whole_tiles >= 0 && pieces.whole_tiles <= tiles));
  REQUIRE((pieces.listed >= listed_tiles && pieces.entries() <= list_capacity));
  // Entries are shared with packed heads only, and by all tiles of the list.
  REQUIRE((pieces.tiles_per_entry == 1 ||
           (forward_row(plan.row).packs_heads() && pieces.tiles_per_entry == listed_tiles)));
  REQUIRE(pieces.listed == pieces.entries() * pieces.tiles_per_entry);
  REQUIRE((pieces.ticket_tiles >= 0 && pieces.ticket_tiles <= listed_tiles));
  // The smallest with which the list's 16 bits hold the longest tile's blocks.
  const int64_t longest = unfold(problem, plan, problem.causal ? 0 : tiles - 1).blocks;
  REQUIRE(pieces.grain == (longest + 65534) / 65535);
  std::vector<std::vector<Work>> parts(static_cast<size_t>(listed_tiles));
  std::set<int> slots;
  for (int n = 0; n < pieces.listed; ++n) {
    const int32_t entry = n / pieces.tiles_per_entry, nth = n % pieces.tiles_per_entry;
    const int32_t tile = pieces.whole_tiles + int32_t(plan.list[entry].tile) + nth;
    REQUIRE(tile < tiles);
    const Work work = pieces.work(plan.list[entry], nth, unfold(problem, plan, tile).blocks);
    REQUIRE((work.tile == tile && work.split_tile == tile - pieces.whole_tiles && work.begin < work.end));
    parts[size_t(work.split_tile)].push_back(work);
    if (work.parts == 1) continue;
    REQUIRE(work.split_tile < pieces.ticket_tiles);
    const int slot = work.slot + work.part;
    REQUIRE((work.slot >= 0 && work.slot + work.parts <= plan.slots));
    REQUIRE(slots.insert(slot).second);
  }
  for (int32_t n = 0; n < listed_tiles; ++n) {
    auto& works = parts[size_t(n)];
    const bool packs = forward_row(plan.row).packs_heads();
    REQUIRE((!works.empty() && works.size() <= size_t(packs ? Listed::most_packed_parts : Listed::most_parts)));
    std::sort(works.begin(), works.end(), [](const Work& a, const Work& b) { return a.part < b.part; });
    int begin = 0;
    for (size_t i = 0; i < works.size(); ++i) {
      REQUIRE((works[i].part == int(i) && works[i].parts == int(works.size())));
      REQUIRE(works[i].slot == works[0].slot);
      REQUIRE(works[i].begin == begin);
      begin = works[i].end;
    }
    REQUIRE(begin == unfold(problem, plan, pieces.whole_tiles + n).blocks);
  }
  REQUIRE(int(slots.size()) == plan.slots);
}

void check_workspace(const ForwardProblem& problem, const RowPlan& plan, int multiprocessors) {
  const ForwardRow& row = forward_row(plan.row);
  const WorkspaceLayout& layout = plan.workspace;
  if (plan.slots == 0) {
    CHECK(layout.bytes == FA3_FORWARD_WORKSPACE_BYTES);
    return;
  }
  CHECK(row.has(Trait::splits));
  // Head, tickets and partial results, one behind the other.
  CHECK((layout.tickets >= sizeof(Workspace) && layout.tickets % 16 == 0));
  // The kernels clear tickets eight at a time (Claims::clear_tickets).
  const size_t cleared = size_t((plan.pieces.ticket_tiles * row.warpgroups() + 7) / 8 * 8) * sizeof(Tickets);
  CHECK((layout.partials >= layout.tickets + cleared && layout.partials % 16 == 0));
  // Of each of a part's rows O, and m and l for each of the lanes that share it, or with packed heads once, in float32.
  // Then there are no more rows than a head has, rounded up to whole units.
  const size_t sums = row.packs_heads() ? 4 : 8;
  const int64_t head_rows = Candidate{problem, row}.rows();
  const int64_t unit = row.slot_unit(), whole = (head_rows + unit - 1) / unit * unit;
  const int64_t slot_rows = row.packs_heads() && head_rows < row.Br ? whole : row.Br;
  CHECK(layout.bytes == layout.partials + size_t(plan.slots * slot_rows) * 4 * (size_t(row.dv) + sums));
  CHECK(layout.bytes <= most_workspace(row, multiprocessors));
}

}  // namespace

void check(const ForwardProblem& problem, const RowPlan& plan, int multiprocessors) {
  check_tiles(problem, plan);
  check_pieces(problem, plan);
  check_workspace(problem, plan, multiprocessors);
  CHECK((plan.predicted_us > 0 && plan.predicted_us <= plan.whole_us));
  if (!is_split(plan)) return;
  // Smaller gains are as often losses.
  CHECK((plan.predicted_us < 0.99 * plan.whole_us && plan.predicted_us < plan.whole_us - 0.999));
  if (!problem.causal || forward_row(plan.row).packs_heads()) return;
  CHECK(plan.slots <= 2 * multiprocessors);
  CHECK(plan.tiles.count() < 4 * multiprocessors);  // so many balance themselves
}

}  // namespace fa3::test
