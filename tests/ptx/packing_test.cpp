// Where heads and queries stand in the rows of packed heads (ptx/plan/packing.h), against counting.
#include <catch2/catch_test_macros.hpp>
#include <set>
#include <utility>

#include "plan/packing.h"

namespace fa3::test {

TEST_CASE("every head of every query has one row, and queries come in order", "[packing]") {
  for (int heads = 1; heads <= 300; ++heads) {
    const Packing packing = Packing::of(heads);
    int64_t query_rows = 1;
    while (query_rows < heads) query_rows *= 2;
    int wrong = 0;
    for (const int queries : {1, 2, 3, 17, 64}) {
      std::set<std::pair<int, int>> seen;
      wrong += packing.rows(queries) != queries * query_rows;
      for (int32_t row = 0; row < packing.rows(queries); ++row) {
        wrong += packing.query(row) != int(row / query_rows);
        wrong += packing.head(row) < 0 || packing.head(row) >= query_rows;
        if (packing.head(row) < heads) seen.insert({packing.query(row), packing.head(row)});
      }
      wrong += int(seen.size()) != queries * heads || seen.rbegin()->first != queries - 1;
    }
    INFO(heads << " heads");
    CHECK(wrong == 0);
  }
  // Rows before the first are those of queries before the first.
  CHECK((Packing::of(4).query(-1) == -1 && Packing::of(4).query(-4) == -1 && Packing::of(4).query(-5) == -2));
  // More than any kernel counts, but no overflow.
  CHECK(Packing::of(INT32_MAX).rows(INT32_MAX) == int64_t{INT32_MAX} << 31);
}

TEST_CASE("a box of rows is one of heads and queries", "[packing]") {
  for (const int box : {64, 16})
    for (int heads = 1; heads <= 300; ++heads) {
      const Packing packing = Packing::of(heads);
      const int box_heads = packing.box_heads(box);
      int wrong = box_heads * packing.box_queries(box) != box;
      for (int32_t first = 0; first < 4 * 512; first += box)
        for (int32_t row = 0; row < box; ++row) {  // as TMA fills it, heads first
          wrong += packing.head(first + row) != packing.head(first) + row % box_heads;
          wrong += packing.query(first + row) != packing.query(first) + row / box_heads;
        }
      INFO(heads << " heads, boxes of " << box);
      CHECK(wrong == 0);
    }
}

}  // namespace fa3::test
