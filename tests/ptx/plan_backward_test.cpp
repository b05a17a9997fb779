// The list of key blocks of varlen sequences (ptx/plan/plan_backward.h) against what the lengths say.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "../src/backward/backward_turns.h"
#include "plan/plan_backward.h"

namespace fa3::test {
namespace {

// A call's numbers, as many as sequences; what the host says; and what became of that.
struct PlannedPiece {
  std::vector<int32_t> cu_q, cu_k, used_q, used_k;
  PlanBackwardParams p{};
  int32_t max_q = 1, max_k = 1, spread_shift = 31;

  std::vector<unsigned char> memory;
  BackwardListMemory list{};

  // As the host does (src/backward/planned.cpp), but for tight bounds where lengths are right.
  void plan(int32_t Br, Window window, int32_t chunk, int32_t Bc = 128) {
    const auto batch = int32_t(cu_q.size()) - 1;
    const auto number = [](const std::vector<int32_t>& from) { return from.empty() ? nullptr : from.data(); };
    p.lengths = {cu_q.data(), cu_k.data(), number(used_q), number(used_k), nullptr, nullptr, batch, max_q, max_k};
    p.window = window;
    p.cuts.chunk = chunk;
    p.cuts.each = chunk ? int32_t(most_chunks(max_q, max_k, chunk)) : 1;
    p.entry_rows_q = p.total_q, p.entry_rows_k = p.total_k;
    p.Br = Divisor::of(Br), p.Bc = Divisor::of(Bc);
    p.sequences = Divisor::of(std::max(1, batch * p.cuts.each));
    int32_t nonempty = std::max(1, std::min({int32_t{p.sequences}, p.total_q, p.total_k}));
    if (chunk) nonempty = std::min(nonempty, 2 * batch + p.total_q / chunk);
    p.most_tiles = (p.total_q - 1) / Br + nonempty + 1;
    p.most_blocks = int32_t(most_pieces(nonempty, chunk ? std::min(chunk, max_k) : max_k, p.total_k, Bc));
    memory.assign(size_t(list_bytes(p)) + 64, 0xa5);
    list = list_at(memory.data(), p);
    const auto scratch = std::make_unique<BackwardPlanScratch>();
    plan_backward(InTurn(), p, spread_shift, list, *scratch);
  }
  bool is_within() const {
    return std::all_of(memory.end() - 64, memory.end(), [](unsigned char byte) { return byte == 0xa5; });
  }
};

// Lengths of which many are 0, 1 and around multiples of tiles and blocks.
int32_t any_length(std::mt19937_64& random) {
  switch (random() % 4) {
    case 0: return int32_t(random() % 2);
    case 1: return std::max(0, 64 * int32_t(random() % 6) + int32_t(random() % 3) - 1);
    default: return int32_t(random() % 900);
  }
}

PlannedPiece right_lengths(std::mt19937_64& random, size_t batch) {
  PlannedPiece made;
  made.cu_q = {int32_t(random() % 5)}, made.cu_k = {int32_t(random() % 5)};
  const bool has_used = random() % 2;
  for (size_t b = 0; b < batch; ++b)
    for (auto& [cu, used, max] : {std::tuple{&made.cu_q, &made.used_q, &made.max_q},
                                  std::tuple{&made.cu_k, &made.used_k, &made.max_k}}) {
      const int32_t length = any_length(random), more = has_used ? int32_t(random() % 9) : 0;
      cu->push_back(cu->back() + length + more);
      if (has_used) used->push_back(length);
      *max = std::max(*max, length + more);
    }
  made.p.total_q = std::max(1, made.cu_q.back() + int32_t(random() % 5));
  made.p.total_k = std::max(1, made.cu_k.back() + int32_t(random() % 5));
  return made;
}

constexpr Window windows[] = {{-1, -1, false}, {-1, 0, true}, {-1, 0, false}, {300, 0, true}, {100, 100, true},
                              {0, 0, true},    {-1, 50, true}, {20, -1, true}};

constexpr DqOrder dq_orders[] = {DqOrder::any, DqOrder::any_downwards, DqOrder::downwards, DqOrder::downwards_by_head,
                                 DqOrder::from_diagonal};

template <int Br, int Bc = 128>
void check(const PlannedPiece& made) {
  const PlanBackwardParams& p = made.p;
  REQUIRE(made.is_within());
  const int32_t count = made.list.counts->blocks;
  REQUIRE((count >= 0 && count <= p.most_blocks));

  // What each row sees, from the call's own sequences; which rows and keys are in use, or seen.
  int64_t pairs = 0, seen_by_blocks = 0;
  std::vector<char> sees(size_t(p.total_q)), is_seen(size_t(p.total_k));
  for (int32_t i = 0; i < p.sequences; ++i) {
    const Sequence s = sequence_at(p.lengths, p.total_q, p.total_k, p.window, p.cuts, i);
    for (int32_t row = 0; row < s.seqlen_q; ++row) {
      const Keys keys = visible_of(s, true, true, {0}).of(row);
      for (int32_t key = keys.begin; key < keys.end; ++key) is_seen[size_t(s.k_row + key)] = true;
      pairs += std::max(0, keys.end - keys.begin);
      sees[size_t(s.q_row + row)] |= !keys.none();
    }
  }

  // All blocks together hold each pair once; each tile that they visit is the list's, of its sequence.
  std::vector<int> owners(size_t(p.most_tiles) * (Br / backward_tile_rows), 0);
  for (int32_t n = 0; n < count; ++n) {
    const PlannedBlock& block = made.list.blocks[n];
    const Sequence& s = block.sequence;
    const Visible seen = visible_of(s, true, true, {0});
    REQUIRE((block.first < block.end && block.start >= block.first && block.start < block.end));
    REQUIRE((block.key == block.block * Bc && block.key < s.seqlen_k));
    const int32_t entry = first_block_entry(p.dq, n, block.block);
    REQUIRE((entry >= 0 && entry < count));
    const PlannedBlock& first_listed = made.list.blocks[entry];
    REQUIRE((first_listed.sequence.k_row == s.k_row && first_listed.block == 0));
    for (int32_t tile = block.first; tile < block.end; ++tile) {
      const PlannedTile& found = made.list.tiles[block.first_tile + tile];
      REQUIRE(found.tile == tile);
      REQUIRE(made.list.sequences[found.sequence].q_row == s.q_row);
    }
    for (int32_t row = block.first * Br; row < std::min(block.end * Br, s.seqlen_q); ++row) {
      const Keys keys = seen.of(row);
      seen_by_blocks += std::max(0, std::min(keys.end, block.key + Bc) - std::max(keys.begin, block.key));
    }
    const QTiles share = share_of(block, Bc);
    // What rounds the share of a block waits for those before it only, or for all of the sequence.
    if (counts_blocks(p.window))
      for (int32_t tile = share.begin; tile < share.end; ++tile)
        REQUIRE(seen.any(tile * 64, tile * 64 + 63).end <= (block.block + 1) * Bc);
    for (int32_t tile = share.begin; tile < share.end; ++tile)
      ++owners[size_t(block.first_tile * (Br / backward_tile_rows) + tile)];
  }
  CHECK(seen_by_blocks == pairs);

  // Tiles of sequences have one owner each, and all of their rows see a key.
  int64_t rows = 0;
  for (int32_t n = 0; n < p.most_tiles; ++n) {
    const PlannedTile& tile = made.list.tiles[n];
    for (int32_t half = 0; half < Br / backward_tile_rows; ++half) {
      const int32_t first = tile.tile * Br + half * backward_tile_rows;
      const bool exists = tile.sequence >= 0 && first < made.list.sequences[tile.sequence].seqlen_q;
      REQUIRE(owners[size_t(n * (Br / backward_tile_rows) + half)] == exists);
      if (!exists) continue;
      const Sequence& s = made.list.sequences[tile.sequence];
      for (int32_t row = first; row < std::min(first + backward_tile_rows, s.seqlen_q); ++row, ++rows)
        REQUIRE(sees[size_t(s.q_row + row)]);
    }
  }
  CHECK(rows == std::count(sees.begin(), sees.end(), 1));

  // The others are those whose gradients a pass sets to 0.
  std::vector<int> zeros_q(size_t(p.total_q)), zeros_k(size_t(p.total_k));
  for (int32_t b = 0; b < p.lengths.batch; ++b) {
    const UnseenRows unseen = unseen_rows(p, b);
    for (int32_t n = 0; n < unseen.q.count(); ++n) ++zeros_q[size_t(unseen.q.row(n))];
    for (int32_t n = 0; n < unseen.k.count(); ++n) ++zeros_k[size_t(unseen.k.row(n))];
  }
  for (int32_t row = made.cu_q.front(); row < made.cu_q.back(); ++row)
    REQUIRE(zeros_q[size_t(row)] == !sees[size_t(row)]);
  for (int32_t row = made.cu_k.front(); row < made.cu_k.back(); ++row)
    REQUIRE(zeros_k[size_t(row)] == !is_seen[size_t(row)]);
}

// The same of a list, taken as listed_block says; visits of the second sums count as those of the first ones. behind:
// so many blocks later shares are rounded; 0: by no thread block. parts: of each head of K and V, `readers` query heads
// each.
template <int Br>
int64_t turns_of(const PlannedPiece& made, int heads_kv, int readers, size_t thread_blocks, std::vector<int>& visits,
                 int behind = 0, int parts = 1) {
  const int heads = heads_kv * parts;
  PlannedBackwardParams p{};
  p.call = made.p, p.counts = made.list.counts, p.blocks = made.list.blocks, p.tiles = made.list.tiles;
  p.order.behind = behind;
  const int32_t tiles = made.p.most_tiles * heads * readers;
  p.order.dq = made.p.dq, p.order.spread = {made.spread_shift, tiles};
  p.order.heads = Divisor::of(heads), p.order.section = Divisor::of(made.p.section_heads);
  p.order.parts = Divisor::of(parts);
  p.readers = readers;
  p.rows.tiles = Divisor::of(made.p.most_tiles * (Br / backward_tile_rows));
  visits.assign(size_t(2 * tiles), 0);
  const auto take = [&](int number) {
    const KeyBlockWork<Br, 128> work(p, number);
    CHECK((work.head_kv == work.first_head / (readers * parts) && work.part == work.first_head / readers));
    return work;
  };
  const auto seen_of = [&](const auto& block) {
    return visible_of(made.list.blocks[block.batch].sequence, true, true, {0});
  };
  const auto may_round = [&](int n, const std::vector<int>& added) {
    return behind == 0 || n < behind || is_summed_up<128>(p, n - behind, added);
  };
  const int64_t turns = count_turns(p, thread_blocks, int64_t{made.list.counts->blocks} * heads, size_t(tiles), take,
                                    seen_of, visits, may_round);
  for (int32_t tile = 0; tile < tiles; ++tile) visits[size_t(tile)] += visits[size_t(tiles + tile)];
  visits.resize(size_t(tiles));
  return turns;
}

}  // namespace

TEST_CASE("lists of key blocks hold each pair that is seen once", "[lengths][backward]") {
  std::mt19937_64 random(1);
  for (int n = 0; n < 400; ++n) {
    const int32_t chunk = random() % 4 ? 0 : int32_t(1 + random() % 400);
    PlannedPiece made = right_lengths(random, 1 + random() % 12);
    made.p.dq = dq_orders[n % 5], made.p.section_heads = 1;
    const Window window = chunk ? Window{-1, random() % 2 ? 0 : -1, true} : windows[random() % std::size(windows)];
    made.plan(n % 2 ? 64 : 128, window, chunk);
    n % 2 ? check<64>(made) : check<128>(made);
  }
}

TEST_CASE("key blocks of varlen sequences visit their tiles once, and in a fixed order none waits for ever",
          "[lengths][backward]") {
  std::mt19937_64 random(5);
  for (int n = 0; n < 60; ++n) {
    const int32_t chunk = random() % 4 ? 0 : int32_t(1 + random() % 400);
    PlannedPiece made = right_lengths(random, 1 + random() % 6);
    const Window window = chunk ? Window{-1, 0, true} : windows[random() % std::size(windows)];
    std::vector<int> expected;
    for (const DqOrder dq : dq_orders)
      for (const size_t thread_blocks : {1, 2, 7, 132}) {
        made.p.dq = dq, made.p.section_heads = 1 + int32_t(random() % 2);
        made.spread_shift = goes_down(dq) && random() % 2 ? int32_t(random() % 4) : 31;
        made.plan(64, window, chunk);
        std::vector<int> visits;
        const int readers = 1 + n % 3;
        CHECK(turns_of<64>(made, 2, readers, thread_blocks, visits) >= 0);
        if (expected.empty()) expected = visits;
        CHECK(visits == expected);
        // Each query head a part: the same tiles, as often.
        CHECK(turns_of<64>(made, 2, 1, thread_blocks, visits, 0, readers) >= 0);
        CHECK(visits == expected);
      }
  }
}

TEST_CASE("key blocks go down to their tiles alike, whether their order is fixed or not", "[lengths][backward]") {
  PlannedPiece made;
  made.cu_q = made.cu_k = {0, 700, 1000, 1200};
  made.p.total_q = made.p.total_k = made.max_q = made.max_k = 1200;
  made.p.section_heads = 1;
  const auto visited = [&](DqOrder dq) {
    made.p.dq = dq;
    made.plan(64, {-1, 0, true}, 0);
    PlannedBackwardParams p{};
    p.counts = made.list.counts, p.blocks = made.list.blocks, p.order.dq = dq, p.readers = 3;
    p.order.heads = p.order.section = p.order.parts = Divisor::of(1), p.rows.tiles = Divisor::of(made.p.most_tiles);
    std::vector<int> numbers;
    for (int n = 0; n < made.list.counts->blocks; ++n) {
      const KeyBlockWork<64, 128> block(p, n);
      QueryTile tile(block);
      CHECK((tile.reader == 0 && (tile.tile == block.end - 1) == (goes_down(dq) || block.end == block.first + 1)));
      for (int j = 0; j < block.all; ++j, tile.next(p, block)) numbers.push_back(tile.number(block));
    }
    return numbers;
  };
  const std::vector<int> down = visited(DqOrder::downwards);
  CHECK((down.size() > 50 && visited(DqOrder::any_downwards) == down && visited(DqOrder::any) != down));
  // All heads of a tile follow one another, or all tiles of a head.
  const std::vector<int> by_head = visited(DqOrder::downwards_by_head);
  CHECK((down[1] == down[0] + made.p.most_tiles && by_head[1] == by_head[0] - 1 && by_head[0] == down[0]));
}

// Of 16 heads, in sections that are the best of each order.
TEST_CASE("from the diagonal thread blocks wait little for one another", "[lengths][backward]") {
  for (const int32_t seqlen : {512, 1024, 4096}) {
    const auto turns = [seqlen](DqOrder dq, int32_t section) {
      PlannedPiece made;
      made.cu_q = {0};
      while (made.cu_q.back() < 16384) made.cu_q.push_back(made.cu_q.back() + seqlen);
      made.cu_k = made.cu_q;
      made.p.total_q = made.p.total_k = 16384, made.max_q = made.max_k = seqlen;
      made.p.dq = dq, made.p.section_heads = section;
      made.plan(128, {-1, 0, true}, 0);
      std::vector<int> visits;
      return double(turns_of<128>(made, 16, 1, 132, visits));
    };
    INFO(seqlen);
    const double any = turns(DqOrder::any, std::min(16, 132 * 128 / seqlen));
    CHECK(turns(DqOrder::from_diagonal, 16) < 1.06 * any);
    CHECK(turns(DqOrder::downwards, 16) > 1.1 * any);
  }
}

// Lengths that overlap: then the list may have no room for all key blocks, and has none of those sequences.
TEST_CASE("in a fixed order none waits for ever where sequences overlap", "[lengths][backward]") {
  std::mt19937_64 random(6);
  int dropped = 0;
  for (int n = 0; n < 600; ++n) {
    PlannedPiece made = right_lengths(random, 1 + random() % 8);
    const size_t rows = 1 + random() % 3;  // of q, of k, of both
    for (auto* numbers : {&made.cu_q, &made.cu_k})
      for (int32_t& number : *numbers)
        if ((numbers == &made.cu_q ? rows & 1 : rows & 2) && random() % 2)
          number = int32_t(random() % uint64_t(numbers == &made.cu_q ? made.p.total_q : made.p.total_k));
    made.max_q = made.p.total_q, made.max_k = made.p.total_k;
    made.p.dq = n % 3 == 2 ? DqOrder::downwards_by_head : n % 3 ? DqOrder::from_diagonal : DqOrder::downwards;
    made.p.section_heads = 1, made.spread_shift = n % 6 ? 31 : 1;
    made.plan(128, windows[random() % std::size(windows)], 0);
    for (int32_t i = 0; i < made.p.sequences; ++i) {
      const Sequence s = seen_part(sequence_at(made.p.lengths, made.p.total_q, made.p.total_k, made.p.window, i));
      dropped += s.seqlen_q > 0 && made.list.sequences[i].seqlen_q == 0;
    }
    for (const size_t thread_blocks : {1, 5, 132}) {
      std::vector<int> visits;
      REQUIRE(turns_of<128>(made, 1, 1, thread_blocks, visits) >= 0);
    }
  }
  CHECK(dropped > 20);
}

// Sequences with rows of which others have none: these are right, whatever the numbers of others are. Those that have
// all their key blocks in the list have tiles of their own, and the list of tiles says so.
static int count_right(const PlannedPiece& made, int32_t Br) {
  const PlanBackwardParams& p = made.p;
  const auto claims = [&](bool is_q) {
    std::vector<int> rows(size_t(is_q ? p.total_q : p.total_k));
    for (int32_t i = 0; i < p.sequences; ++i) {
      const Sequence s = seen_part(sequence_at(p.lengths, p.total_q, p.total_k, p.window, p.cuts, i));
      for (int32_t n = 0; n < (is_q ? s.seqlen_q : s.seqlen_k); ++n) ++rows[size_t((is_q ? s.q_row : s.k_row) + n)];
    }
    return rows;
  };
  const std::vector<int> claims_q = claims(true), claims_k = claims(false);
  std::vector<int> owners(size_t(p.most_tiles));  // sequences whose blocks visit the tile
  std::set<std::pair<int32_t, int32_t>> visited;
  for (int32_t n = 0; n < made.list.counts->blocks; ++n) {
    const PlannedBlock& block = made.list.blocks[n];
    if (!visited.emplace(block.first_tile, block.sequence.q_row).second) continue;
    for (int32_t tile = 0; tile * Br < block.sequence.seqlen_q; ++tile) ++owners[size_t(block.first_tile + tile)];
  }
  int right = 0;
  for (int32_t i = 0; i < p.sequences; ++i) {
    const Sequence s = seen_part(sequence_at(p.lengths, p.total_q, p.total_k, p.window, p.cuts, i));
    bool is_alone = s.seqlen_q > 0;
    for (int32_t n = 0; n < s.seqlen_q; ++n) is_alone &= claims_q[size_t(s.q_row + n)] == 1;
    for (int32_t n = 0; n < s.seqlen_k; ++n) is_alone &= claims_k[size_t(s.k_row + n)] == 1;
    if (!is_alone) continue;
    int32_t keys = 0, first_tile = -1;
    for (int32_t n = 0; n < made.list.counts->blocks; ++n) {
      const PlannedBlock& block = made.list.blocks[n];
      if (block.sequence.q_row != s.q_row || block.sequence.k_row != s.k_row) continue;
      CHECK((block.key == keys && (first_tile < 0 || block.first_tile == first_tile)));
      keys += 128, first_tile = block.first_tile;
    }
    CHECK(keys == (s.seqlen_k + 127) / 128 * 128);
    for (int32_t tile = 0; tile * Br < s.seqlen_q && first_tile >= 0; ++tile) {
      const PlannedTile& listed = made.list.tiles[first_tile + tile];
      CHECK((listed.sequence == i && listed.tile == tile));
      CHECK(owners[size_t(first_tile + tile)] == 1);
    }
    ++right;
  }
  return right;
}

TEST_CASE("sequences keep their tiles where prefix sums decrease", "[lengths][backward]") {
  std::mt19937_64 random(8);
  int right = 0;
  for (int n = 0; n < 600; ++n) {
    PlannedPiece made = right_lengths(random, 1 + random() % 12);
    const size_t batch = made.cu_q.size() - 1;
    if (n % 3 == 0) {  // places of a batch that are not in use, as graphs have them
      for (auto* sums : {&made.cu_q, &made.cu_k})
        if (sums == &made.cu_q || random() % 2) sums->insert(sums->end(), 5, 0);
        else sums->insert(sums->end(), 5, sums->back());
      for (auto* used : {&made.used_q, &made.used_k})
        if (!used->empty()) used->insert(used->end(), 5, 0);
    } else if (n % 3 == 1) {  // sequences in any order, and between each two what decreases, or what lies between them
      std::vector<size_t> order(batch);
      for (size_t i = 0; i < batch; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      for (auto* sums : {&made.cu_q, &made.cu_k}) {
        const std::vector<int32_t> before = std::exchange(*sums, {});
        for (const size_t i : order) sums->push_back(before[i]), sums->push_back(before[i + 1]);
      }
      for (auto* used : {&made.used_q, &made.used_k}) {
        if (used->empty()) continue;
        const std::vector<int32_t> before = std::exchange(*used, {});
        for (const size_t i : order) used->push_back(before[i]), used->push_back(0);
        used->pop_back();
      }
    } else {  // some are any
      for (int32_t& number : made.cu_q)
        if (random() % 4 == 0) number = int32_t(random() % 3000) - 100;
    }
    made.max_q = made.p.total_q, made.max_k = made.p.total_k;
    made.p.dq = dq_orders[n % 5 == 4 ? 0 : n % 5], made.p.section_heads = 1;
    const int32_t chunk = random() % 4 ? 0 : int32_t(1 + random() % 400), Br = n % 2 ? 64 : 128;
    made.plan(Br, chunk ? Window{-1, 0, true} : windows[random() % std::size(windows)], chunk);
    INFO(n);
    REQUIRE(made.is_within());
    right += count_right(made, Br);
  }
  CHECK(right > 1500);
}

TEST_CASE("blocks that begin apart wait little for one another", "[lengths][backward]") {
  PlannedPiece made;
  made.cu_q = made.cu_k = {0, 8192};
  made.p.total_q = made.p.total_k = made.max_q = made.max_k = 8192;
  made.p.section_heads = 4;
  std::vector<int> visits;
  const auto turns = [&](DqOrder dq, int32_t shift) {
    made.p.dq = dq, made.spread_shift = shift;
    made.plan(64, {-1, 0, true}, 0);
    return double(turns_of<64>(made, 4, 1, 132, visits));
  };
  const double any = turns(DqOrder::any, 31);
  CHECK(turns(DqOrder::downwards, 31) > 1.2 * any);
  CHECK(turns(DqOrder::downwards, 2) < 1.05 * any);
}

// Where one kernel computes dK and dV and another dQ, the list has the tiles of the second one.
TEST_CASE("a kernel of smaller tiles than the list's visits those that see its keys", "[lengths][backward]") {
  std::mt19937_64 random(4);
  constexpr int Br = 64, Bc = 64, listed = 128, heads = 2, kv_readers = 6;
  for (int n = 0; n < 200; ++n) {
    const int32_t chunk = random() % 4 ? 0 : int32_t(1 + random() % 400);
    PlannedPiece made = right_lengths(random, 1 + random() % 8);
    made.p.section_heads = 1;
    made.plan(listed, chunk ? Window{-1, 0, true} : windows[random() % std::size(windows)], chunk, Bc);
    check<listed, Bc>(made);
    PlannedBackwardParams p{};
    p.counts = made.list.counts, p.blocks = made.list.blocks;
    const int parts = n % 2 ? 3 : 1, readers = kv_readers / parts;
    p.order.heads = Divisor::of(heads * parts), p.order.section = Divisor::of(1), p.readers = readers;
    p.order.parts = Divisor::of(parts);
    p.rows.tiles = Divisor::of(made.p.most_tiles * 2);
    for (int number = 0; number < made.list.counts->blocks * heads * parts; ++number) {
      const KeyBlockWork<Br, Bc, listed> work(p, number);
      const Sequence& s = made.list.blocks[work.batch].sequence;
      const Visible seen = visible_of(s, true, true, {0});
      std::set<int> visited;
      QueryTile tile(work);
      for (int j = 0; j < work.all; ++j, tile.next(p, work)) {
        const int in_head = tile.number(work) - tile.head(work) * made.p.most_tiles * 2;
        const PlannedTile& found = made.list.tiles[in_head / 2];
        REQUIRE((found.tile * 2 + in_head % 2 == tile.tile && made.list.sequences[found.sequence].q_row == s.q_row));
        REQUIRE((tile.head(work) / kv_readers == work.head_kv && tile.head(work) / readers == work.part));
        REQUIRE(visited.insert(tile.number(work)).second);
      }
      for (int i = 0; i * Br < s.seqlen_q; ++i) {
        bool sees = false;
        for (int row = i * Br; row < std::min(i * Br + Br, s.seqlen_q); ++row)
          for (int key = work.key; key < std::min(work.key + Bc, s.seqlen_k); ++key) sees |= seen.sees(row, key);
        REQUIRE(visited.count(work.first_number + i) == sees);
      }
    }
  }
}

TEST_CASE("more sequences than shared memory holds are kept in the list's memory", "[lengths][backward]") {
  std::mt19937_64 random(2);
  PlannedPiece made = right_lengths(random, BackwardPlanScratch::most_sequences + 7);
  made.p.section_heads = 2;
  made.plan(64, {-1, 0, true}, 0);
  CHECK(made.list.numbers != nullptr);
  check<64>(made);
}

TEST_CASE("key blocks with many tiles come first, and those of a sequence together", "[lengths][backward]") {
  PlannedPiece made;
  made.cu_q = made.cu_k = {0, 128, 1128, 1628, 5628};
  made.p.total_q = made.p.total_k = made.max_q = made.max_k = 5628;
  made.p.section_heads = 1;
  made.plan(64, {-1, 0, true}, 0);
  check<64>(made);
  std::vector<int32_t> starts;
  for (int32_t n = 0; n < made.list.counts->blocks; ++n)
    if (made.list.blocks[n].block == 0) starts.push_back(made.list.blocks[n].sequence.q_row);
  CHECK(starts == std::vector<int32_t>{1628, 128, 1128, 0});
}

// Behind the last one is one without rows, which begins where that ends.
TEST_CASE("as many sequences have rows as there may be", "[lengths][backward]") {
  PlannedPiece made;
  made.cu_q = {0, 505}, made.used_q = {500}, made.cu_k = {0, 500};
  made.p.total_q = made.max_q = 505, made.p.total_k = made.max_k = 500;
  made.p.section_heads = 1;
  made.plan(64, {-1, 0, true}, 1);
  CHECK((made.p.most_blocks == 500 && made.p.sequences == 501 && made.list.counts->blocks == 500));
  check<64>(made);
}

// A key block's share is rounded `behind` blocks later: then all of its sequence and head have been taken.
TEST_CASE("each block of each head is taken once, section by section", "[lengths][backward]") {
  for (const int32_t heads : {1, 6})
    for (const int32_t section : {1, 2, 3, 6}) {
      if (heads % section != 0) continue;
      const BlockCounts counts{5, Divisor::of(5 * section)};
      std::set<std::pair<int32_t, int32_t>> all;
      for (int32_t n = 0; n < 5 * heads; ++n) {
        const ListedBlock block = listed_block(counts, Divisor::of(section), n);
        CHECK((block.entry < 5 && block.head < heads && block.head / section == n / (5 * section)));
        all.emplace(block.entry, block.head);
      }
      CHECK(all.size() == size_t(5 * heads));
    }
}

TEST_CASE("whatever numbers the lengths are, lists keep within their bounds", "[lengths][backward]") {
  std::mt19937_64 random(3);
  for (int n = 0; n < 400; ++n) {
    PlannedPiece made = right_lengths(random, 1 + random() % 12);
    for (auto* numbers : {&made.cu_q, &made.cu_k, &made.used_q, &made.used_k})
      for (int32_t& number : *numbers)
        if (random() % 3 == 0) number = random() % 2 ? int32_t(random()) : int32_t(random() % 3000);
    const int32_t chunk = random() % 4 ? 0 : int32_t(1 + random() % 400);
    made.p.dq = dq_orders[n % 5], made.p.section_heads = 1, made.spread_shift = n % 4 ? 31 : 1;
    made.plan(64, chunk ? Window{-1, 0, true} : windows[random() % std::size(windows)], chunk);
    REQUIRE(made.is_within());
    const int32_t count = made.list.counts->blocks;
    REQUIRE((count >= 0 && count <= made.p.most_blocks));
    for (int32_t i = 0; i < count; ++i) {
      const PlannedBlock& block = made.list.blocks[i];
      const Sequence& s = block.sequence;
      REQUIRE((s.q_row >= 0 && s.q_row + s.seqlen_q <= made.p.total_q && s.seqlen_q <= made.max_q));
      REQUIRE((s.k_row >= 0 && s.k_row + s.seqlen_k <= made.p.total_k && s.seqlen_k <= made.max_k));
      REQUIRE((block.first >= 0 && block.end <= (s.seqlen_q + 63) / 64 && block.first < block.end));
      REQUIRE((block.first_tile >= 0 && block.first_tile + block.end <= made.p.most_tiles));
      const bool is_last_first = made.p.dq == DqOrder::from_diagonal;
      const int32_t first = i - (is_last_first ? block.blocks - 1 - block.block : block.block);
      REQUIRE((block.block < block.blocks && first >= 0 && first + block.blocks <= count));
    }
    for (const size_t thread_blocks : {1, 5, 132}) {
      std::vector<int> visits;
      REQUIRE(turns_of<64>(made, 2, 1 + n % 2, thread_blocks, visits) >= 0);
    }
    for (int32_t b = 0; b < made.p.lengths.batch; ++b) {
      const UnseenRows unseen = unseen_rows(made.p, b);
      for (int32_t i = 0; i < unseen.q.count(); ++i)
        REQUIRE((unseen.q.row(i) >= 0 && unseen.q.row(i) < made.p.total_q));
      for (int32_t i = 0; i < unseen.k.count(); ++i)
        REQUIRE((unseen.k.row(i) >= 0 && unseen.k.row(i) < made.p.total_k));
    }
  }
}

}  // namespace fa3::test
