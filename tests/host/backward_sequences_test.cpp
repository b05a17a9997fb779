// The tiles of sequences with lengths of their own, and where their LSE and D lie.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <random>
#include <vector>

#include "backward_tiles.h"

namespace fa3::test {
namespace {

// Sequences of any length, many of them of none, in their order in the rows of a tensor.
std::vector<Sequence> sequences_of(std::mt19937_64& random, int32_t entries, int32_t entry_rows) {
  std::vector<Sequence> all;
  for (int32_t entry = 0; entry < entries; ++entry)
    for (int32_t row = 0;;) {
      row += int32_t(random() % 3);
      const auto length = random() % 3 ? int32_t(random() % 200) : 0;
      if (row + length > entry_rows) break;
      all.push_back({row, entry, row, entry, length, 1, no_bound, no_bound});
      row += length;
    }
  return all;
}

template <int Br>
void check(std::mt19937_64& random) {
  const auto entries = int32_t(1 + random() % 3), entry_rows = int32_t(1 + random() % 1000);
  const auto heads_kv = int32_t(1 + random() % 3), readers = int32_t(1 + random() % 3);
  const std::vector<Sequence> sequences = sequences_of(random, entries, entry_rows);
  if (sequences.empty()) return;
  const auto count = int32_t(sequences.size());
  const int32_t tiles = first_tile_of_sequence(entries * entry_rows, count, Br);  // of a head
  PlannedBackwardParams p{};
  p.sequences = sequences.data(), p.entry_rows_q = p.entry_rows_k = entry_rows;
  p.rows.tiles = Divisor::of(tiles * (Br / backward_tile_rows));
  p.readers = readers;
  p.order.batch_heads = count * heads_kv, p.order.blocks = 1;
  p.order.section_heads = p.order.batch_heads, p.order.sections = 1;
  p.order.section = Divisor::of(p.order.batch_heads), p.order.heads = Divisor::of(heads_kv);
  p.order.parts = p.order.ranges = Divisor::of(1);

  std::vector<int> visits(size_t(tiles * heads_kv * readers));
  int64_t all = 0;
  for (int32_t number = 0; number < p.order.batch_heads; ++number) {
    KeyBlockWork<Br, 128> work(p, number);
    work.take_all_tiles(p);
    const Sequence& s = sequences[size_t(work.batch)];
    REQUIRE(work.key == 0);
    REQUIRE(work.all == tiles_of_sequence(s.seqlen_q, Br) * readers);
    QueryTile tile(work);
    for (int32_t n = 0; n < work.all; ++n, tile.next(p, work)) {
      const int32_t head = tile.head(work);
      REQUIRE((head / readers == work.head_kv && tile.tile * Br < std::max(s.seqlen_q, 1)));
      REQUIRE(tile.number(work) ==
              head * tiles + first_tile_of_sequence(p.q_row(s), work.batch, Br) + tile.tile);
      REQUIRE((tile.number(work) >= head * tiles && tile.number(work) < (head + 1) * tiles));
      ++visits[size_t(tile.number(work))], ++all;
    }
  }
  int64_t expected = 0;
  for (const Sequence& s : sequences) expected += (std::max(s.seqlen_q, 1) + Br - 1) / Br * readers * heads_kv;
  CHECK(all == expected);
  for (const int n : visits) REQUIRE(n <= 1);  // no two sequences share a tile
}

}  // namespace

TEST_CASE("each tile of each sequence has LSE and D of its own", "[sequence][backward]") {
  std::mt19937_64 random(1);
  for (int n = 0; n < 300; ++n) check<64>(random), check<128>(random);
}

}  // namespace fa3::test
