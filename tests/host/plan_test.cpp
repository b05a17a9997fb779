// What the library plans (src/plan.h): properties that hold for any problem.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "plans.h"
#include "tiles.h"

namespace fa3::test {
namespace {

// Larger than what a call's strides could describe.
Problem huge(const Shape& shape, int32_t mask = FA3_MASK_NONE) {
  Problem problem = problem_of({.head_dim = shape.head_dim}, mask);
  problem.batch = shape.batch, problem.heads = shape.heads, problem.heads_kv = shape.heads_kv;
  problem.seqlen_q = shape.seqlen_q, problem.seqlen_k = shape.seqlen_k;
  problem.causal_offset = mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? shape.seqlen_k - shape.seqlen_q : 0;
  return problem;
}

// Every query row that sees a key is in one tile; with packed heads, every row.
void check_tiles(const Problem& problem, const ForwardPlan& plan) {
  const Row& row = rows[plan.row];
  const Tiles& tiles = plan.tiles;
  const bool packs_heads = row.has(Trait::packs_heads);
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
void check_pieces(const Problem& problem, const ForwardPlan& plan) {
  const Pieces& pieces = plan.pieces;
  const int32_t tiles = plan.tiles.count(), listed_tiles = tiles - pieces.whole_tiles;
  REQUIRE((pieces.whole_tiles >= 0 && pieces.whole_tiles <= tiles));
  REQUIRE((pieces.listed >= listed_tiles && pieces.entries() <= list_capacity));
  // Entries are shared with packed heads only, and by all tiles of the list.
  REQUIRE((pieces.each == 1 || (rows[plan.row].has(Trait::packs_heads) && pieces.each == listed_tiles)));
  REQUIRE(pieces.listed == pieces.entries() * pieces.each);
  REQUIRE((pieces.ticket_tiles >= 0 && pieces.ticket_tiles <= listed_tiles));
  // The smallest with which the list's 16 bits hold the longest tile's blocks.
  const int64_t longest = unfold(problem, plan, problem.causal ? 0 : tiles - 1).blocks;
  REQUIRE(pieces.grain == (longest + 65534) / 65535);
  std::vector<std::vector<Work>> parts(static_cast<size_t>(listed_tiles));
  std::set<int> slots;
  for (int n = 0; n < pieces.listed; ++n) {
    const int32_t entry = n / pieces.each, nth = n % pieces.each;
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
    auto& of_tile = parts[size_t(n)];
    const bool packs = rows[plan.row].has(Trait::packs_heads);
    REQUIRE((!of_tile.empty() && of_tile.size() <= size_t(packs ? Listed::most_packed_parts : Listed::most_parts)));
    std::sort(of_tile.begin(), of_tile.end(), [](const Work& a, const Work& b) { return a.part < b.part; });
    int begin = 0;
    for (size_t i = 0; i < of_tile.size(); ++i) {
      REQUIRE((of_tile[i].part == int(i) && of_tile[i].parts == int(of_tile.size())));
      REQUIRE(of_tile[i].slot == of_tile[0].slot);
      REQUIRE(of_tile[i].begin == begin);
      begin = of_tile[i].end;
    }
    REQUIRE(begin == unfold(problem, plan, pieces.whole_tiles + n).blocks);
  }
  REQUIRE(int(slots.size()) == plan.slots);
}

void check_workspace(const Problem& problem, const ForwardPlan& plan, int multiprocessors) {
  const Row& row = rows[plan.row];
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
  // Then there are no more rows than a head has, rounded up to four.
  const size_t sums = row.has(Trait::packs_heads) ? 4 : 8;
  const int64_t of_head = rows_of(problem, row);
  const int64_t slot_rows = row.has(Trait::packs_heads) && of_head < row.Br ? (of_head + 3) / 4 * 4 : row.Br;
  CHECK(layout.bytes == layout.partials + size_t(plan.slots * slot_rows) * 4 * (size_t(row.dv) + sums));
  // What fa3.h promises: 3 * multiprocessors * block_q rows of 4 * (head_dim_v + 8) bytes, and a few KB.
  CHECK(layout.bytes <= size_t(3 * multiprocessors) * size_t(row.Br) * 4 * size_t(row.dv + 8) + 32768);
}

void check(const Problem& problem, const ForwardPlan& plan, int multiprocessors) {
  check_tiles(problem, plan);
  check_pieces(problem, plan);
  check_workspace(problem, plan, multiprocessors);
  CHECK((plan.predicted_us > 0 && plan.predicted_us <= plan.whole_us));
  if (!is_split(plan)) return;
  // Smaller gains are as often losses.
  CHECK((plan.predicted_us < 0.99 * plan.whole_us && plan.predicted_us < plan.whole_us - 0.999));
  if (!problem.causal || rows[plan.row].has(Trait::packs_heads)) return;
  CHECK(plan.slots <= 2 * multiprocessors);
  CHECK(plan.tiles.count() < 4 * multiprocessors);  // so many balance themselves
}

}  // namespace

TEST_CASE("every block of every tile is in one piece, on every row and any number of multiprocessors", "[plan]") {
  std::mt19937_64 random(5);
  const auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  int split = 0, behind = 0, causal = 0, some = 0, many = 0, mixed = 0;
  for (int n = 0; n < 3000; ++n) {
    Shape shape;
    shape.heads_kv = pick({1, 1, 2, 3, 8, 16});
    shape.heads = shape.heads_kv * pick({1, 1, 2, 5});
    shape.batch = pick({1, 1, 1, 2, 7, 20});
    shape.seqlen_q = random() % 3 ? 1 + random() % 4000 : 1 + random() % 20;
    shape.seqlen_k = random() % 3 ? 1 + random() % 10000 : 1 + random() % 300000;
    shape.head_dim = pick({64, 72, 128, 256});
    const int32_t mask = static_cast<int32_t>(random() % 3);
    const int multiprocessors = static_cast<int>(pick({132, 132, 114, 78, 1, 2, 144, 1024}));
    if (random() % 4 == 0) {  // few tiles, but more than multiprocessors
      shape.batch = 1;
      shape.seqlen_q = shape.seqlen_k = 2000 + random() % 15000;
      shape.heads = shape.heads_kv =
          std::max<int64_t>(1, multiprocessors * int64_t(128 + random() % 256) / shape.seqlen_q);
    }
    const Problem problem = problem_of(shape, mask);
    const Fit fits = fit_of(problem);
    for (int i = 0; i < fits.count; ++i) {
      ForwardPlan made;
      plan_row(problem, fits.rows[i], multiprocessors, made);
      INFO(rows[fits.rows[i]].name << " batch " << shape.batch << " heads " << shape.heads << " q " << shape.seqlen_q
                                   << " k " << shape.seqlen_k << " mask " << mask << " on " << multiprocessors);
      check(problem, made, multiprocessors);
      split += is_split(made);
      behind += is_split(made) && made.pieces.whole_tiles > 0;
      causal += is_split(made) && problem.causal;
      mixed += !is_split(made) && made.pieces.listed > 0;
      some += is_split(made) && made.pieces.ticket_tiles < made.tiles.count() - made.pieces.whole_tiles;
      many +=
          is_split(made) &&
          std::any_of(made.list, made.list + made.pieces.entries(), [](auto& l) { return l.parts > 8; });
    }
  }
  CHECK(split > 1000);
  CHECK(behind > 200);
  CHECK(causal > 200);
  CHECK(some > 50);
  CHECK(many > 100);
  CHECK(mixed > 50);
}

TEST_CASE("no more room is taken than for two parts for each multiprocessor", "[plan]") {
  // Cutting the longest tiles would take more.
  const Problem many_heads =
      problem_of({.batch = 2, .seqlen_q = 1514, .seqlen_k = 3913, .heads = 10, .heads_kv = 10, .head_dim = 64},
                 FA3_MASK_CAUSAL_BOTTOM_RIGHT);
  check(many_heads, planned(many_heads, 78), 78);
}

TEST_CASE("the blocks of very long keys are counted in grains", "[plan]") {
  constexpr int64_t most = 65535 * 64;  // keys that the list's 16 bits count in single blocks
  for (const auto& [keys, grain] : {std::pair{most, 1}, {most + 1, 2}, {2 * most, 2}, {2 * most + 1, 3}}) {
    const Shape shape{.batch = 1, .seqlen_q = 1, .seqlen_k = keys, .heads = 1, .heads_kv = 1, .head_dim = 64};
    const Problem problem = problem_of(shape);
    ForwardPlan made;
    plan_row(problem, 0, 132, made);
    REQUIRE(rows[0].Bc == 64);
    CHECK(made.pieces.grain == grain);
    CHECK(is_split(made));
    check(problem, made, 132);
  }
  // With packed heads, as many parts as there may be, and a block more than the grains of all hold.
  const int packed = row_named("fa3_fwdpacked_bf16_d64_full_64x128");
  REQUIRE(packed >= 0);
  const Shape shape{.batch = 1, .seqlen_q = 1, .seqlen_k = 128 * 65537, .heads = 1, .heads_kv = 1, .head_dim = 64};
  const Problem problem = problem_of(shape);
  ForwardPlan made;
  plan_row(problem, packed, 1024, made);
  CHECK((made.pieces.grain == 2 && made.pieces.entries() == Listed::most_packed_parts));
  check(problem, made, 1024);
}

TEST_CASE("with packed heads also rows that see no key are in tiles", "[plan]") {
  const Problem problem =
      problem_of({.batch = 1, .seqlen_q = 64, .seqlen_k = 3, .heads = 32, .heads_kv = 4, .head_dim = 64},
                 FA3_MASK_CAUSAL_BOTTOM_RIGHT);
  int packed = 0;
  const Fit fits = fit_of(problem);
  for (int i = 0; i < fits.count; ++i) {
    ForwardPlan made;
    plan_row(problem, fits.rows[i], 132, made);
    check(problem, made, 132);
    packed += rows[made.row].has(Trait::packs_heads);
  }
  CHECK(packed > 0);
}

TEST_CASE("the largest problems are planned without overflow", "[plan]") {
  constexpr int64_t most = INT32_MAX - 1024;
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const int64_t heads : {1, 2, 100, 131, 200}) {
      for (const auto& [seqlen_q, seqlen_k] : {std::pair<int64_t, int64_t>{8, most}, {most, 8}, {most, most}}) {
        const Problem problem =
            huge({.batch = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .heads = heads, .heads_kv = 1, .head_dim = 8},
                 mask);
        INFO(heads << " heads, " << seqlen_q << " x " << seqlen_k << ", mask " << mask);
        Fit fits;
        if (fit(problem, fits) != FA3_OK) {  // too many tiles
          CHECK(heads * seqlen_q / 256 > INT32_MAX - 70000);
          continue;
        }
        for (int i = 0; i < fits.count; ++i) {
          ForwardPlan made;
          plan_row(problem, fits.rows[i], 132, made);
          check(problem, made, 132);
        }
        if (seqlen_q == 8 && heads == 1 && mask != FA3_MASK_CAUSAL_TOP_LEFT) {
          CHECK(planned(problem).pieces.grain > 1);
          CHECK(is_split(planned(problem)));
        }
      }
    }
}

TEST_CASE("the most and longest tiles take as long as their blocks", "[plan]") {
  // Years: eight keys for each of so many K/V heads would be more than the largest number of nanoseconds.
  constexpr int64_t most = INT32_MAX - 1024, heads_kv = 1 << 30;
  const Problem problem = huge(
      {.batch = 1, .seqlen_q = 1, .seqlen_k = most, .heads = heads_kv, .heads_kv = heads_kv, .head_dim = 128});
  Fit fits;
  REQUIRE(fit(problem, fits) == FA3_OK);
  int packed = 0;
  for (int i = 0; i < fits.count; ++i) {
    const Row& row = rows[fits.rows[i]];
    packed += row.has(Trait::packs_heads);
    ForwardPlan made;
    plan_row(problem, fits.rows[i], 132, made);
    // 4.5 bytes a picosecond, or the products.
    const double blocks = static_cast<double>(heads_kv) * most / row.Bc / 132;
    INFO(row.name);
    for (const double us : {made.predicted_us, made.whole_us}) CHECK((us > 0.3 * blocks && us < 3 * blocks));
  }
  CHECK(packed > 0);
}

TEST_CASE("lengths and tiles that the kernels cannot count are refused", "[plan]") {
  constexpr int64_t most_rows = INT32_MAX - 1024, most_tiles = INT32_MAX - 65536;
  Fit made;
  const auto fits = [&](const Shape& shape) { return fit(huge(shape), made); };
  CHECK(fits({.batch = 1, .seqlen_q = most_rows, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) == FA3_OK);
  CHECK(fits({.batch = 1, .seqlen_q = 1, .seqlen_k = most_rows, .heads = 1, .heads_kv = 1}) == FA3_OK);
  CHECK(fits({.batch = 1, .seqlen_q = most_rows + 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) ==
        FA3_ERROR_UNSUPPORTED);
  CHECK(fits({.batch = 1, .seqlen_q = 1, .seqlen_k = most_rows + 1, .heads = 1, .heads_kv = 1}) ==
        FA3_ERROR_UNSUPPORTED);
  // One tile for each head of each batch entry.
  CHECK(fits({.batch = most_tiles, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) == FA3_OK);
  CHECK(fits({.batch = most_tiles + 1, .seqlen_q = 1, .seqlen_k = 1, .heads = 1, .heads_kv = 1}) ==
        FA3_ERROR_UNSUPPORTED);
  // A row with larger tiles may hold what a smaller one does not.
  CHECK(fits({.batch = most_tiles / 2, .seqlen_q = 250, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 64}) ==
        FA3_OK);
  CHECK(made.count == 2);
  CHECK(
      fits({.batch = most_tiles / 2 + 1, .seqlen_q = 250, .seqlen_k = 1, .heads = 1, .heads_kv = 1, .head_dim = 64}) ==
      FA3_OK);
  CHECK((made.count == 1 && rows[made.rows[0]].Br == 256));
}

TEST_CASE("packed heads that make too many rows are refused", "[plan]") {
  constexpr int64_t most = INT32_MAX - 1024;
  const int row = row_named("fa3_fwdpacked_bf16_d128_full_128x128");
  REQUIRE(row >= 0);
  Fit made;
  for (const bool fits : {true, false}) {
    Problem problem = huge({.batch = 1, .seqlen_q = most / 8 + !fits, .seqlen_k = 1, .heads = 7, .heads_kv = 1});
    problem.kernel = rows[row].name;
    CHECK(fit(problem, made) == (fits ? FA3_OK : FA3_ERROR_UNSUPPORTED));
    problem.kernel = nullptr;
    CHECK(fit(problem, made) == FA3_OK);
  }
  // More heads than rows: other kernels take them.
  const Problem many = huge({.batch = 1, .seqlen_q = 1, .seqlen_k = 1, .heads = (1 << 30) + 1, .heads_kv = 1});
  REQUIRE(fit(many, made) == FA3_OK);
  for (int i = 0; i < made.count; ++i) CHECK_FALSE(rows[made.rows[i]].has(Trait::packs_heads));
}

TEST_CASE("heads that share the L2 cache are as many in every section", "[plan]") {
  const auto section = [](int64_t heads, int64_t heads_kv, int32_t mask) {
    return int(planned(problem_of({.batch = 1, .seqlen_q = 8192, .seqlen_k = 8192, .heads = heads, .heads_kv = heads_kv,
                                   .head_dim = 128},
                                  mask)).tiles.section_heads);  // K and V of a head: 4 MB of 32
  };
  CHECK(section(32, 32, FA3_MASK_CAUSAL_TOP_LEFT) == 8);
  CHECK(section(9, 9, FA3_MASK_CAUSAL_TOP_LEFT) == 9);  // not 8 and 1
  CHECK(section(12, 12, FA3_MASK_CAUSAL_TOP_LEFT) == 6);
  CHECK(section(34, 34, FA3_MASK_CAUSAL_TOP_LEFT) == 9);
  CHECK(section(36, 9, FA3_MASK_CAUSAL_TOP_LEFT) == 36);
  CHECK(section(80, 20, FA3_MASK_CAUSAL_TOP_LEFT) == 28);  // of 20 groups of 4 heads: 7, 7 and 6
  CHECK((section(9, 9, FA3_MASK_NONE) == 1 && section(36, 9, FA3_MASK_NONE) == 1));
  // Of V with fewer columns 3 MB, of 8 bits 2 MB.
  Shape shape = square(1, 8192, 30, 128);
  const int e4m3 = row_named("fa3_fwd_e4m3_d128_causal_192x96");
  REQUIRE(e4m3 >= 0);
  CHECK(planned(problem_of(rows[e4m3], shape)).tiles.section_heads == 15);
  shape.head_dim_v = 64;
  CHECK(planned(problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT)).tiles.section_heads == 10);
}

TEST_CASE("a problem without keys is a pass, one without rows nothing", "[plan]") {
  const Problem keyless = problem_of({.batch = 3, .seqlen_q = 1000, .seqlen_k = 0, .heads = 2, .heads_kv = 2});
  const Plan& pass = plan(keyless, fit_of(keyless), 132);
  REQUIRE(pass.launch_count == 1);
  CHECK(pass.launches[0].step == Step::empty_rows);
  CHECK(rows[pass.launches[0].row].kind == Kind::pass);
  CHECK(pass.workspace_bytes == FA3_FORWARD_WORKSPACE_BYTES);
  // A warp for each block of rows of each head, on as many multiprocessors as there are for them.
  for (const int multiprocessors : {132, 5, 1})
    for (const int64_t heads : {1, 2, 50})
      for (const int64_t seqlen_q : {1, 255, 256, 257, 1000, 30000}) {
        const Problem some =
            problem_of({.batch = 3, .seqlen_q = seqlen_q, .seqlen_k = 0, .heads = heads, .heads_kv = heads});
        const Launch& launch = plan(some, fit_of(some), multiprocessors).launches[0];
        const int64_t blocks = 3 * heads * ((seqlen_q + 255) / 256), warps = rows[launch.row].threads() / 32;
        CHECK(launch.grid == std::min<int64_t>(multiprocessors, (blocks + warps - 1) / warps));
      }
  const Problem rowless = problem_of({.batch = 0});
  CHECK(plan(rowless, fit_of(rowless), 132).launch_count == 0);
}

TEST_CASE("a problem is planned once, and any other anew", "[plan]") {
  const Shape shape{.batch = 2, .seqlen_q = 700, .seqlen_k = 9000, .heads = 6, .heads_kv = 2, .head_dim = 128};
  const Problem problem = problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT);
  const Fit fits = fit_of(problem);
  const Plan& first = plan(problem, fits, 132);
  const_cast<Plan&>(first).forward.whole_us = -1;  // a mark that planning would overwrite
  CHECK(plan(problem, fits, 132).forward.whole_us == -1);
  // Data, strides and scale are nothing to it.
  Problem same = problem;
  same.q.data = same.o.data = nullptr, same.softmax_scale = 3, same.k.stride[1] += 8;
  CHECK(plan(same, fits, 132).forward.whole_us == -1);

  // So are a few others meanwhile, and each has its own.
  const Problem second = problem_of(square(1, 512, 3, 64)), third = problem_of(square(1, 1024, 5, 256));
  for (const Problem* other : {&second, &third})
    const_cast<Plan&>(plan(*other, fit_of(*other), 132)).forward.whole_us = -2;
  CHECK(plan(second, fit_of(second), 132).forward.tiles.batch_heads == 3);
  CHECK(plan(third, fit_of(third), 132).forward.tiles.batch_heads == 5);
  for (const Problem* other : {&second, &third}) CHECK(plan(*other, fit_of(*other), 132).forward.whole_us == -2);
  CHECK(plan(problem, fits, 132).forward.whole_us == -1);

  const auto is_new = [&](const Problem& other, int multiprocessors = 132) {
    plan(problem, fits, 132);  // remembered again, if it was forgotten
    const_cast<Plan&>(plan(problem, fits, 132)).forward.whole_us = -1;
    return plan(other, fit_of(other), multiprocessors).forward.whole_us != -1;
  };
  CHECK(is_new(problem, 131));
  CHECK(is_new(problem_of(shape, FA3_MASK_CAUSAL_BOTTOM_RIGHT)));
  CHECK(is_new(problem_of(shape, FA3_MASK_NONE)));
  CHECK(is_new(problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT, nullptr, FA3_DTYPE_FP16)));
  CHECK(is_new(problem_of(shape, FA3_MASK_CAUSAL_TOP_LEFT, rows[fits.rows[0]].name)));
  for (int64_t Shape::*field : {&Shape::batch, &Shape::seqlen_q, &Shape::seqlen_k, &Shape::heads, &Shape::head_dim}) {
    Shape other = shape;
    other.*field += field == &Shape::heads ? 2 : field == &Shape::head_dim ? -8 : 1;
    CHECK(is_new(problem_of(other, FA3_MASK_CAUSAL_TOP_LEFT)));
  }
  Shape other = shape;
  other.heads_kv = 3;
  CHECK(is_new(problem_of(other, FA3_MASK_CAUSAL_TOP_LEFT)));
  for (int64_t Shape::*field : {&Shape::head_dim, &Shape::head_dim_v}) {
    other = shape;
    other.head_dim_v = 128;
    other.*field = 120;
    CHECK(is_new(problem_of(other, FA3_MASK_CAUSAL_TOP_LEFT)));
  }
}

}  // namespace fa3::test
