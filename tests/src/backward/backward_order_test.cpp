// In which order thread blocks of the backward pass take key blocks, and how these add to dQ.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "backward_calls.h"
#include "backward_turns.h"

namespace fa3::test {
namespace {

constexpr int32_t full = FA3_MASK_NONE, causal = FA3_MASK_CAUSAL_TOP_LEFT;

template <int Br, int Bc>
int64_t turns_of(const BackwardParams& p, int thread_blocks, std::vector<int>& visits) {
  const size_t tiles = size_t(p.order.batch_heads * p.order.head_tiles) / (Br / backward_tile_rows);
  REQUIRE((p.order.spread.second == 0 || size_t(p.order.spread.second) == tiles));
  visits.assign(tiles + size_t(p.order.spread.second), 0);
  const auto take = [&](int number) {
    KeyBlockWork<Br, Bc> block(p, number);
    block.find_tiles(p, p.visible);
    return block;
  };
  const auto seen_of = [&](const auto&) { return p.visible; };
  const int64_t blocks = int64_t{p.order.batch_heads} * p.order.blocks;
  return count_turns(p, size_t(thread_blocks), blocks, tiles, take, seen_of, visits);
}

// Whatever the kernel's mask and tile.
int64_t turns_of(const Launch& launch, int thread_blocks, std::vector<int>& visits) {
  const BackwardParams& p = launch.carried.backward;
  return backward_row_of(launch).Br == 128 ? turns_of<128, 128>(p, thread_blocks, visits)
                                  : turns_of<64, 128>(p, thread_blocks, visits);
}

// How many key blocks each tile is visited for: those with a key that one of its rows sees, counted key by key. Where
// the last tile has fewer rows than others, it counts as a whole one.
std::vector<int> expected_visits(const BackwardParams& p, int Br, int Bc, int64_t query_heads) {
  const int tiles = p.rows.tiles / (Br / backward_tile_rows);  // of a head; the last ones may be of no row
  std::vector<int> keys(static_cast<size_t>(tiles));
  for (int tile = 0; tile * Br < p.visible.seqlen_q; ++tile)
    for (int key = 0; key < p.visible.seqlen_k; key += Bc) {
      bool seen = false;
      for (int row = tile * Br; row < tile * Br + Br; ++row)
        for (int k = key; k < std::min(key + Bc, p.visible.seqlen_k); ++k)
          seen |= (!p.visible.bounded_right || k <= row + p.visible.right) &&
                  (!p.visible.bounded_left || k >= row - p.visible.left);
      keys[size_t(tile)] += seen;
    }
  std::vector<int> expected;
  for (int64_t head = 0; head < query_heads; ++head) expected.insert(expected.end(), keys.begin(), keys.end());
  return expected;
}

Shape model(int64_t batch, int64_t seqlen, int64_t heads, int64_t heads_kv, int64_t head_dim = 128) {
  return {.batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .heads_kv = heads_kv,
          .head_dim = head_dim};
}
KeyOrder order_of(const Shape& shape, int32_t mask, uint64_t flags = FA3_FLAG_DETERMINISTIC) {
  FakeCuda& fake = fresh();
  B p = imaginary_backward(shape);
  p.mask = mask, p.flags = flags;
  REQUIRE(backward(p, size_t{1} << 50) == FA3_OK);
  return fake.launches.at(1).carried.backward.order;
}

}  // namespace

TEST_CASE("each key block visits the tiles that see it once, and in a fixed order none waits for ever",
          "[launch][backward]") {
  FakeCuda& fake = fresh();
  int from_diagonal = 0, spread = 0;
  for (const int64_t head_dim : {64, 128})
    for (const auto& [seqlen_q, seqlen_k] :
         {std::pair{300, 500}, {500, 300}, {900, 200}, {1, 700}, {700, 1}, {640, 640}})
      for (const auto& [batch, heads_kv] : {std::pair{3, 1}, {3, 2}, {3, 6}, {20, 3}, {20, 6}, {64, 6}})
        for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
          for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) {
            INFO(head_dim << " " << seqlen_q << " " << seqlen_k << " " << batch << " x " << heads_kv << " " << mask);
            INFO(flags);
            B p = imaginary_backward({.batch = batch, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .heads = 6,
                                      .heads_kv = heads_kv, .head_dim = head_dim});
            p.mask = mask, p.flags = flags;
            fake.launches.clear();
            REQUIRE(backward(p) == FA3_OK);
            Launch& launch = fake.launches.at(1);
            BackwardParams& g = launch.carried.backward;
            REQUIRE(g.order.is_fixed() == (flags != 0 && seqlen_k > 128));  // one block has nobody to wait for
            from_diagonal += g.order.dq == DqOrder::from_diagonal, spread += g.order.spread.second > 0;
            // No mask of fa3.h is bounded on the left; but what the kernels and this walk go by may be.
            for (const int window : {0, 50, 300}) {
              INFO("window " << window);
              g.visible.bounded_left = window > 0;
              g.visible.left = window - (g.visible.bounded_right ? g.visible.right : 0);
              const BackwardRow& row = backward_row_of(launch);
              const auto expected = expected_visits(g, row.Br, row.Bc, batch * 6);
              for (const int thread_blocks : {1, 2, 7, 132}) {
                std::vector<int> visits;
                CHECK(turns_of(launch, thread_blocks, visits) >= 0);
                for (size_t second = expected.size(); second < visits.size(); ++second)
                  visits[second - expected.size()] += visits[second];
                visits.resize(expected.size());
                CHECK(visits == expected);
              }
            }
          }
  CHECK((from_diagonal > 10 && spread > 10));
}

TEST_CASE("thread blocks end at about the same time, and wait little for one another", "[launch][backward]") {
  FakeCuda& fake = fresh();
  struct Shares {
    double any_order, fixed_order;  // of an even split of all turns, at least
  };
  const auto check = [&](int64_t batch, int64_t heads, int64_t heads_kv, int64_t seqlen, int32_t mask, Shares least) {
    INFO(batch << " x " << seqlen << ", heads " << heads << " / " << heads_kv);
    for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) {
      B p = imaginary_backward({.batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads,
                                .heads_kv = heads_kv, .head_dim = 128});
      p.mask = mask, p.flags = flags;
      fake.launches.clear();
      REQUIRE(backward(p) == FA3_OK);
      std::vector<int> visits;
      const int64_t turns = turns_of(fake.launches.at(1), 132, visits);
      const KeyOrder& order = fake.launches[1].carried.backward.order;
      int64_t work = 2 * order.batch_heads * order.blocks;
      for (const int n : visits) work += n;
      CHECK(double(work) / 132 / double(turns) >= (flags ? least.fixed_order : least.any_order));
    }
  };
  for (const int64_t seqlen : {512, 1024, 2048, 4096, 8192, 16384}) {  // the paper's grid
    check(16384 / seqlen, 16, 16, seqlen, full, {0.96, 0.94});
    check(16384 / seqlen, 16, 16, seqlen, causal, {0.96, 0.93});
  }
  // Few heads.
  check(1, 9, 9, 8192, causal, {0.96, 0.95});
  check(1, 3, 3, 16384, causal, {0.88, 0.88});
  check(1, 10, 10, 4096, causal, {0.89, 0.88});
  check(1, 33, 33, 1024, causal, {0.9, 0.8});
  check(4, 1, 1, 8192, causal, {0.98, 0.98});
  // Grouped ones.
  check(2, 32, 8, 4096, causal, {0.97, 0.96});
  check(2, 64, 8, 2048, causal, {0.96, 0.93});
  check(8, 64, 8, 512, causal, {0.96, 0.94});
  // And so few heads of K and V that they have parts.
  check(1, 32, 8, 2048, causal, {0.96, 0.87});
  check(1, 28, 4, 4096, causal, {0.97, 0.95});
  check(1, 8, 1, 8192, causal, {0.98, 0.98});
  check(1, 8, 1, 8192, full, {0.96, 0.96});
  check(1, 64, 8, 2048, causal, {0.96, 0.91});
  // So few heads in all that a part is a range of a query head's tiles.
  check(1, 8, 8, 2048, causal, {0.88, 0.77});
  check(1, 4, 4, 4096, causal, {0.94, 0.78});
  check(1, 4, 4, 2048, full, {0.96, 0.96});
  check(1, 1, 1, 16384, causal, {0.98, 0.78});
}

TEST_CASE("in which order thread blocks take key blocks", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto heads_of_section = [&](int32_t mask, uint64_t flags, int64_t seqlen, int64_t heads = 32) {
    B p = imaginary_backward({.batch = 8, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .heads_kv = heads});
    p.mask = mask, p.flags = flags;
    fake.launches.clear();
    REQUIRE(backward(p) == FA3_OK);
    return fake.launches.at(1).carried.backward.order.section_heads;
  };
  CHECK(heads_of_section(FA3_MASK_NONE, 0, 512) == 1);
  CHECK(heads_of_section(FA3_MASK_NONE, FA3_FLAG_DETERMINISTIC, 512) == 33);
  CHECK(heads_of_section(FA3_MASK_NONE, FA3_FLAG_DETERMINISTIC, 4096) == 4);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, 0, 512) == 16);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, FA3_FLAG_DETERMINISTIC, 512) == 16);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, 0, 4096) == 4);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, FA3_FLAG_DETERMINISTIC, 4096) == 4);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, FA3_FLAG_DETERMINISTIC, 2048, 3) == 12);
  // Not so many heads: 32, 24 and 40 of 16 blocks, of which the machine runs those of 8 at once; and 128 of 4 blocks.
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, 0, 2048, 4) == 8);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, 0, 2048, 3) == 12);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, 0, 2048, 5) == 14);
  CHECK(heads_of_section(FA3_MASK_CAUSAL_TOP_LEFT, 0, 512, 16) == 64);
}

TEST_CASE("in which order key blocks add to dQ", "[launch][backward]") {
  const auto dq = [](const Shape& shape, int32_t mask) { return order_of(shape, mask).dq; };
  for (const int64_t seqlen : {512, 1024, 2048, 4096, 8192}) {
    CHECK(dq(model(16384 / seqlen, seqlen, 16, 16), causal) == DqOrder::from_diagonal);
    CHECK(dq(model(16384 / seqlen, seqlen, 16, 16), full) == DqOrder::downwards);
    CHECK(dq(model(16384 / seqlen, seqlen, 16, 16, 256), causal) == DqOrder::any);
    CHECK(dq(model(16384 / seqlen, seqlen, 32, 16), causal) == DqOrder::downwards);  // grouped heads
  }
  CHECK(dq(model(1, 16384, 16, 16), causal) == DqOrder::downwards);  // not all blocks of a head together
  CHECK(dq(model(3, 8192, 2, 2), causal) == DqOrder::downwards);     // heads are too few
  CHECK(dq(model(2, 8192, 4, 4), causal) == DqOrder::from_diagonal);
  CHECK(dq(model(2, 8192, 5, 5), causal) == DqOrder::downwards);  // sections would not come out even
}

TEST_CASE("without the flag, a fixed order of dQ where tiles do not fit into the L2 cache", "[launch][backward]") {
  const auto dq = [](const Shape& shape, int32_t mask) { return order_of(shape, mask, 0).dq; };
  for (const int64_t seqlen : {512, 1024, 2048, 4096, 8192, 16384}) {
    CHECK(dq(model(16384 / seqlen, seqlen, 16, 16), causal) == DqOrder::any);
    CHECK(dq(model(16384 / seqlen, seqlen, 16, 16), full) == DqOrder::any);
  }
  CHECK((dq(model(1, 24576, 16, 16), causal) == DqOrder::any && dq(model(1, 24640, 16, 16), causal) != DqOrder::any));
  CHECK(dq(model(1, 32768, 8, 8), causal) == DqOrder::downwards);
  CHECK(dq(model(1, 131072, 8, 8), causal) == DqOrder::downwards);
  CHECK(dq(model(1, 8192, 17, 17), causal) == DqOrder::any);  // sections of 9 heads; one of them fits
  CHECK(dq(model(1, 4096, 28, 4), causal) == DqOrder::any);    // blocks are too few
  CHECK(dq(model(1, 32768, 32, 8), causal) == DqOrder::any);   // several readers
  CHECK(dq(model(1, 65536, 8, 8), full) == DqOrder::any);
  CHECK(dq(model(1, 65536, 8, 8, 64), causal) == DqOrder::any);
  CHECK(dq(model(1, 65536, 8, 8, 256), causal) == DqOrder::any);
  CHECK(dq(model(1, 65536, 8, 8, 72), causal) == DqOrder::downwards);  // as d 128
}

TEST_CASE("where key blocks begin in a fixed order, with few heads", "[launch][backward]") {
  const auto shift = [](const Shape& shape, int32_t mask, uint64_t flags = FA3_FLAG_DETERMINISTIC) {
    const KeyOrder order = order_of(shape, mask, flags);
    if (order.spread.second == 0) {
      CHECK(order.spread.shift == 31);
    } else {
      CHECK((order.done_behind == 0 && order.behind == order.sections));  // only the pass behind knows second sums
    }
    return order.spread.shift;
  };
  constexpr int32_t none = 31;
  CHECK((shift(model(1, 8192, 4, 4), full) == 1 && shift(model(1, 8192, 4, 4), causal) == 2));
  CHECK((shift(model(1, 8192, 4, 4), full, 0) == none && shift(model(1, 8192, 4, 4), causal, 0) == none));
  CHECK((shift(model(1, 4096, 2, 2), full) == 0 && shift(model(1, 8192, 8, 1), full) == 0));  // ranges; readers
  CHECK((shift(model(1, 16384, 3, 3, 64), full) == 0 && shift(model(1, 16384, 3, 3, 64), causal) == 1));
  CHECK((shift(model(1, 2048, 16, 16), causal) == 2 && shift(model(1, 2048, 32, 8), causal) == none));
  CHECK((shift(model(1, 4096, 10, 10), causal) == 2 && shift(model(1, 8192, 9, 9), causal) == none));
  CHECK((shift(model(1, 2048, 8, 8, 64), causal) == none && shift(model(1, 2048, 8, 8, 64), full) == 0));  // 128 blocks
  CHECK((shift(model(1, 8192, 3, 3, 256), full) == none));
  CHECK(shift(model(1, 12800, 5, 5), full) == 1);  // several sections behind one another
  CHECK(shift({.batch = 1, .seqlen_q = 64, .seqlen_k = 200000, .heads = 1, .heads_kv = 1, .head_dim = 128}, full) ==
        none);
  Shape unlike = model(1, 8192, 4, 4);
  unlike.seqlen_k = 2048;
  CHECK(shift(unlike, full) == 2);  // 16 blocks; two ranges of 64 tiles
  for (const int64_t seqlen : {512, 1024, 2048, 4096, 8192, 16384})
    CHECK((shift(model(16384 / seqlen, seqlen, 16, 16), causal) == none &&
           shift(model(16384 / seqlen, seqlen, 16, 16), full) == none));
}

TEST_CASE("what second sums of dQ take", "[launch][backward]") {
  const auto bytes = [](const Shape& shape, int32_t mask, uint64_t flags) {
    B p = imaginary_backward(shape);
    p.mask = mask, p.flags = flags;
    size_t bytes = 0;
    REQUIRE(fa3_backward_workspace_size(&p, &bytes) == FA3_OK);
    return bytes;
  };
  size_t most = 0;
  for (const int64_t heads : {1, 2, 3, 5, 8, 17, 40, 100, 300, 1000})
    for (const int64_t seqlen_q : {1, 100, 1000, 4000, 16384, 40000, 100000, 300000})
      for (const int64_t seqlen_k : {100, 1000, 4000, 16384, 40000, 100000, 300000})
        for (const int64_t head_dim : {64, 128, 256})
          for (const int32_t mask : {full, causal, int32_t{FA3_MASK_CAUSAL_BOTTOM_RIGHT}}) {
            const Shape shape{1, seqlen_q, seqlen_k, heads, heads, head_dim};
            const size_t plain = bytes(shape, mask, 0), fixed = bytes(shape, mask, FA3_FLAG_DETERMINISTIC);
            INFO(heads << " q " << seqlen_q << " k " << seqlen_k << " d " << head_dim << " mask " << mask);
            REQUIRE(fixed >= plain);
            CHECK(fixed - plain <= 35000000);
            most = std::max(most, fixed - plain);
          }
  CHECK(most > 20'000'000);
  const Shape shape = model(1, 8192, 4, 4);
  CHECK(bytes(shape, full, FA3_FLAG_DETERMINISTIC) - bytes(shape, full, 0) == 4 * 8192 * 128 * 4 + 4 * 128 * 4);
}

TEST_CASE("two threads add dQ where no warp prepares rows", "[launch][backward]") {
  const auto adders = [](const Shape& shape, int32_t mask, uint64_t flags) {
    return order_of(shape, mask, flags).adders;
  };
  CHECK((adders(model(8, 2048, 16, 16), full, 0) == 1 && adders(model(16, 1024, 16, 16), full, 0) == 2));
  CHECK((adders(model(4, 4096, 16, 16), causal, 0) == 1 && adders(model(4, 4096, 32, 32, 64), causal, 0) == 2));
  CHECK(adders(model(1, 4096, 28, 4), causal, 0) == 2);  // two sections: those that prepare would come too late
  CHECK((adders(model(8, 2048, 16, 16), full, FA3_FLAG_DETERMINISTIC) == 2));
  // Several readers under a causal mask; but not parts of one reader each.
  CHECK((adders(model(4, 4096, 32, 8), causal, 0) == 2 && adders(model(4, 4096, 32, 8), full, 0) == 1));
  CHECK(adders(model(1, 32768, 32, 8), causal, 0) == 2);
}

}  // namespace fa3::test
