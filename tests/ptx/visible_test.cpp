// Which keys rows see (ptx/plan/visible.h), against counting.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <set>

#include "plan/work.h"

namespace fa3::test {
namespace {

// By the definition, key by key. With packed heads a query has several rows.
bool sees(const Visible& v, int row, int key) {
  const int query = int(std::floor(row / std::pow(2, v.packing.shift)));
  if (v.bounded_left && key < query - v.left) return false;
  if (v.bounded_right && key > query + v.right) return false;
  return key >= 0 && key < v.seqlen_k;
}
std::set<int> keys_of(const Visible& v, int row) {
  std::set<int> keys;
  for (int key = 0; key < v.seqlen_k; ++key)
    if (sees(v, row, key)) keys.insert(key);
  return keys;
}
std::set<int> all_of(const Keys& keys) {
  std::set<int> all;
  for (int key = keys.begin; key < keys.end; ++key) all.insert(key);
  return all;
}

// All masks on sequences of up to six queries and keys, a row or two for each query. Where a side is not bounded its
// number must not matter.
template <class Check>
void for_all_small(Check check) {
  for (int seqlen_q = 0; seqlen_q <= 6; ++seqlen_q)
    for (int seqlen_k = 0; seqlen_k <= 6; ++seqlen_k)
      for (const bool bounded_left : {false, true})
        for (const bool bounded_right : {false, true})
          for (int left = bounded_left ? -8 : -3; left <= (bounded_left ? 8 : -3); ++left)
            for (int right = bounded_right ? -8 : -3; right <= (bounded_right ? 8 : -3); ++right)
              for (const uint8_t shift : {0, 1})
                check(Visible{seqlen_q, seqlen_k, left, right, bounded_left, bounded_right, {shift}});
}

}  // namespace

TEST_CASE("the keys of a row are those it sees", "[visible]") {
  int wrong = 0;
  for_all_small([&](const Visible& v) {
    for (int row = -3; row < 10; ++row) wrong += all_of(v.of(row)) != keys_of(v, row);
  });
  CHECK(wrong == 0);
}

TEST_CASE("the keys that any of some rows see go from the first to the last of them", "[visible]") {
  int wrong = 0, empty = 0;
  for_all_small([&](const Visible& v) {
    for (int first = -3; first < 10; ++first)
      for (int last = first; last < 10; ++last) {
        std::set<int> keys;
        for (int row = std::max(first, 0); row <= std::min(last, v.rows() - 1); ++row) keys.merge(keys_of(v, row));
        const Keys any = v.any(first, last);
        if (keys.empty()) {
          // Where each row's window lies beside the keys, they may lie between the rows' windows.
          ++empty;
          continue;
        }
        wrong += any.begin != *keys.begin() || any.end != *keys.rbegin() + 1;
      }
  });
  CHECK(wrong == 0);
  CHECK(empty > 1000);
}

TEST_CASE("where no row sees a key there is none between, unless a window jumps over the keys", "[visible]") {
  int wrong = 0;
  for_all_small([&](const Visible& v) {
    if (v.bounded_left && v.bounded_right && v.left + v.right < 0) return;  // windows without keys
    for (int first = -3; first < 10; ++first)
      for (int last = first; last < 10; ++last) {
        bool some = false;
        for (int row = std::max(first, 0); row <= std::min(last, v.rows() - 1); ++row)
          some |= !keys_of(v, row).empty();
        wrong += v.any(first, last).none() == some;
      }
  });
  CHECK(wrong == 0);
}

TEST_CASE("the keys that all of some rows see", "[visible]") {
  int wrong = 0;
  for_all_small([&](const Visible& v) {
    for (int first = -3; first < 10; ++first)
      for (int last = first; last < 10; ++last) {
        std::set<int> keys;
        for (int key = 0; key < v.seqlen_k; ++key) {
          bool all = true;
          for (int row = first; row <= last; ++row) all &= sees(v, row, key);
          if (all) keys.insert(key);
        }
        wrong += all_of(v.all(first, last)) != keys;
      }
  });
  CHECK(wrong == 0);
}

TEST_CASE("the rows that see any of some keys go from the first to the last of them", "[visible]") {
  int wrong = 0, empty = 0;
  for_all_small([&](const Visible& v) {
    const bool has_gaps = v.bounded_left && v.bounded_right && v.left + v.right < 0;  // windows without keys
    for (int first = 0; first < v.seqlen_k; ++first)
      for (int last = first; last < 9; ++last) {
        std::set<int> rows;
        for (int row = 0; row < v.rows(); ++row)
          for (int key = first; key <= last; ++key)
            if (sees(v, row, key)) rows.insert(row);
        const Rows tile_rows = v.rows_of(first, last);
        empty += rows.empty();
        if (!has_gaps) wrong += all_of(tile_rows) != rows;
        else for (const int row : rows) wrong += row < tile_rows.begin || row >= tile_rows.end;
      }
  });
  CHECK(wrong == 0);
  CHECK(empty > 1000);
}

TEST_CASE("whether all of some rows see all of some keys", "[visible]") {
  int wrong = 0, number = 0;
  for_all_small([&](const Visible& v) {
    for (int first_row = -1; first_row < 8; ++first_row)
      for (int last_row = first_row; last_row < first_row + 3; ++last_row)
        for (int first_key = 0; first_key < 8; ++first_key)
          for (int last_key = first_key; last_key < first_key + 3; ++last_key) {
            bool all = true;
            for (int row = first_row; row <= last_row; ++row)
              for (int key = first_key; key <= last_key; ++key) {
                all &= sees(v, row, key);
                wrong += v.sees(row, key) != sees(v, row, key);
              }
            wrong += v.all_see_all({first_row, last_row + 1}, {first_key, last_key + 1}) != all;
            number += all;
          }
  });
  CHECK(wrong == 0);
  CHECK(number > 1000);
}

TEST_CASE("whether later rows see more keys", "[visible]") {
  const auto later_rows_see_more = [](bool bounded_left, bool bounded_right) {
    return Visible{100, 100, 8, 8, bounded_left, bounded_right, {0}}.later_rows_see_more();
  };
  CHECK(later_rows_see_more(false, true));
  CHECK((!later_rows_see_more(false, false) && !later_rows_see_more(true, true) && !later_rows_see_more(true, false)));
}

TEST_CASE("tiles that hold rows", "[visible]") {
  int wrong = 0;
  for (int Br = 1; Br <= 5; ++Br)
    for (int begin = 0; begin < 12; ++begin)
      for (int end = begin + 1; end < 12; ++end) {
        std::set<int> tiles;
        for (int row = begin; row < end; ++row) tiles.insert(row / Br);
        wrong += all_of(tiles_of({begin, end}, Br)) != tiles;
      }
  CHECK(wrong == 0);
}

TEST_CASE("rows that see no key because of the right bound are the first ones", "[visible]") {
  int wrong = 0;
  for_all_small([&](Visible v) {
    v.bounded_left = false;
    int count = 0;
    while (count < v.rows() && keys_of(v, count).empty()) ++count;
    wrong += v.empty_rows() != count;
  });
  CHECK(wrong == 0);
}

TEST_CASE("blocks that hold keys", "[visible]") {
  int wrong = 0;
  for (int Bc = 1; Bc <= 5; ++Bc)
    for (int begin = 0; begin < 12; ++begin)
      for (int end = 0; end < 12; ++end) {
        std::set<int> blocks;
        for (int key = begin; key < end; ++key) blocks.insert(key / Bc);
        wrong += all_of(blocks_of({begin, end}, Bc)) != blocks;
      }
  CHECK(wrong == 0);
}

TEST_CASE("a tile has the blocks of the keys that its rows see, one at least", "[visible]") {
  int wrong = 0;
  for_all_small([&](const Visible& v) {
    if (v.bounded_left && v.bounded_right && v.left + v.right < 0) return;  // windows without keys
    for (int first = -2; first < 6; ++first)
      for (int rows = 1; rows <= 4; ++rows)
        for (int Bc = 1; Bc <= 3; ++Bc) {
          std::set<int> blocks;
          for (int row = std::max(first, 0); row < std::min(first + rows, v.rows()); ++row)
            for (const int key : keys_of(v, row)) blocks.insert(key / Bc);
          const Keys tile_rows = tile_blocks(v, first, rows, Bc);
          wrong += blocks.empty() ? tile_rows.end != tile_rows.begin + 1 : all_of(tile_rows) != blocks;
        }
  });
  CHECK(wrong == 0);
}

TEST_CASE("the longest sequences do not overflow", "[visible]") {
  constexpr int most = INT32_MAX - 1024;
  const Visible causal{most, most, 0, 0, false, true, {0}};
  CHECK(causal.of(most - 1).end == most);
  CHECK(causal.any(most - 64, most + 191).end == most);
  CHECK(causal.all(most - 64, most + 191).end == most - 63);
  const Visible many_keys{64, most, 0, most - 64, false, true, {0}};
  CHECK(many_keys.any(0, 255).end == most);
  const Visible many_rows{most, 64, 0, 64 - most, false, true, {0}};
  CHECK(many_rows.empty_rows() == most - 64);
  CHECK(many_rows.of(most - 1).end == 64);
  const Visible window{most, most, most - 1, 0, true, true, {0}};
  CHECK(window.of(most - 1).begin == 0);
  CHECK((window.rows_of(0, 127).end == most && window.rows_of(most - 1, most - 1).end == most));
  CHECK((causal.rows_of(most - 1, most + 127).begin == most - 1 && many_rows.rows_of(0, 127).begin == most - 64));
  CHECK(causal.all_see_all({most - 64, most}, {0, most - 63}));
}

}  // namespace fa3::test
