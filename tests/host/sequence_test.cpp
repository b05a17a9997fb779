// Where sequences of packed lengths lie and what their rows see (ptx/sequence.h).
#include <catch2/catch_test_macros.hpp>
#include <random>
#include <vector>

#include "sequence.h"

namespace fa3::test {
namespace {

constexpr Window no_window{-1, -1, true}, causal{-1, 0, true};

// By the definition: a query's own position is its number, or as far from the last key as it is from the last query.
bool sees(const Window& window, int64_t seqlen_q, int64_t seqlen_k, int64_t query, int64_t key) {
  const int64_t position = query + (window.bottom_right ? seqlen_k - seqlen_q : 0);
  return (window.left < 0 || key >= position - window.left) && (window.right < 0 || key <= position + window.right);
}

void check_inside(const Lengths& lengths, int32_t total_q, int32_t total_k, const Sequence& s, int32_t b) {
  const int32_t rows_q = lengths.cu_q ? total_q : lengths.max_q, rows_k = lengths.cu_k ? total_k : lengths.max_k;
  REQUIRE(s.q_batch == (lengths.cu_q ? 0 : b));
  REQUIRE(s.k_batch == (lengths.cu_k ? 0 : b));
  REQUIRE((s.seqlen_q >= 0 && s.seqlen_q <= lengths.max_q && s.q_row >= 0 && s.q_row <= rows_q - s.seqlen_q));
  REQUIRE((s.seqlen_k >= 0 && s.seqlen_k <= lengths.max_k && s.k_row >= 0 && s.k_row <= rows_k - s.seqlen_k));
}

}  // namespace

TEST_CASE("sequences lie where the lengths say", "[sequence]") {
  const int32_t cu_q[] = {0, 17, 17, 4113}, cu_k[] = {0, 20, 120, 5000};
  const int32_t used_q[] = {5, 0, 4096}, used_k[] = {20, 90, 0}, leftpad[] = {3, 90, 0};
  const auto check = [](const Sequence& s, const Sequence& wanted) {
    CHECK((s.q_row == wanted.q_row && s.q_batch == wanted.q_batch && s.seqlen_q == wanted.seqlen_q));
    CHECK((s.k_row == wanted.k_row && s.k_batch == wanted.k_batch && s.seqlen_k == wanted.seqlen_k));
    CHECK((s.left == wanted.left && s.right == wanted.right));
  };
  const Lengths packed{cu_q, cu_k, nullptr, nullptr, nullptr, nullptr, 3, 4096, 4880};
  check(sequence_at(packed, 4113, 5000, causal, 0), {0, 0, 0, 0, 17, 20, no_bound, 3});
  check(sequence_at(packed, 4113, 5000, no_window, 1), {17, 0, 20, 0, 0, 100, no_bound, no_bound});
  check(sequence_at(packed, 4113, 5000, {500, -1, true}, 2), {17, 0, 120, 0, 4096, 4880, 500 - 784, no_bound});
  check(sequence_at(packed, 4113, 5000, {-1, 0, false}, 2), {17, 0, 120, 0, 4096, 4880, no_bound, 0});
  const Lengths in_use{cu_q, cu_k, used_q, used_k, leftpad, nullptr, 3, 4096, 4880};
  check(sequence_at(in_use, 4113, 5000, causal, 0), {0, 0, 3, 0, 5, 17, no_bound, 12});
  check(sequence_at(in_use, 4113, 5000, no_window, 1), {17, 0, 110, 0, 0, 0, no_bound, no_bound});
  check(sequence_at(in_use, 4113, 5000, causal, 2), {17, 0, 120, 0, 4096, 0, no_bound, -4096});
  // Batched tensors, and queries that are packed beside a batched cache.
  const Lengths batched{nullptr, nullptr, nullptr, used_k, leftpad, nullptr, 3, 7, 100};
  check(sequence_at(batched, 0, 0, causal, 1), {0, 1, 90, 1, 7, 0, no_bound, -7});
  const Lengths mixed{cu_q, nullptr, nullptr, used_k, nullptr, nullptr, 3, 4096, 100};
  check(sequence_at(mixed, 4113, 0, no_window, 1), {17, 0, 0, 1, 0, 90, no_bound, no_bound});
}

TEST_CASE("rows of a sequence see what the window leaves", "[sequence]") {
  int wrong = 0, hidden = 0;
  for (int32_t seqlen_q = 1; seqlen_q <= 6; ++seqlen_q)
    for (int32_t seqlen_k = 0; seqlen_k <= 6; ++seqlen_k)
      for (int32_t left = -1; left <= 8; ++left)
        for (int32_t right = -1; right <= 8; ++right)
          for (const bool bottom_right : {false, true}) {
            const Window window{left, right, bottom_right};
            const Lengths lengths{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, seqlen_q, seqlen_k};
            const Visible visible = visible_of(sequence_at(lengths, 0, 0, window, 0), true, true, {0});
            for (int32_t query = 0; query < seqlen_q; ++query)
              for (int32_t key = 0; key < seqlen_k; ++key) {
                const Keys keys = visible.of(query);
                const bool is_seen = sees(window, seqlen_q, seqlen_k, query, key);
                wrong += (key >= keys.begin && key < keys.end) != is_seen;
                hidden += !is_seen;
              }
          }
  CHECK(wrong == 0);
  CHECK(hidden > 1000);
}

TEST_CASE("the longest sequences and the largest windows do not overflow", "[sequence]") {
  constexpr int32_t most = most_packed_rows;
  for (const int32_t seqlen_q : {1, 64, most - 1, most})
    for (const int32_t seqlen_k : {0, 1, 64, most - 1, most})
      for (const int32_t left : {-1, 0, 1, most - 1, most, INT32_MAX})
        for (const int32_t right : {-1, 0, 1, most - 1, most, INT32_MAX})
          for (const bool bottom_right : {false, true}) {
            const Window window{left, right, bottom_right};
            const Lengths lengths{nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 1, seqlen_q, seqlen_k};
            const Visible visible = visible_of(sequence_at(lengths, 0, 0, window, 0), true, true, {0});
            // Rows of a tile's length beyond both ends, too.
            for (const int32_t row : {-256, -1, 0, seqlen_q / 2, seqlen_q - 1, seqlen_q + 255}) {
              const Keys keys = visible.of(row);
              if (row < 0 || row >= seqlen_q) continue;
              for (const int32_t key : {0, seqlen_k / 2, seqlen_k - 1})
                if (key >= 0 && key < seqlen_k)
                  REQUIRE((key >= keys.begin && key < keys.end) == sees(window, seqlen_q, seqlen_k, row, key));
              REQUIRE((keys.begin >= 0 && keys.end <= seqlen_k));
            }
          }
}

TEST_CASE("whatever numbers the lengths are, sequences lie within the tensors", "[sequence]") {
  std::mt19937 random(3);
  const auto any_number = [&] {
    switch (random() % 6) {
      case 0: return int32_t(random());
      case 1: return INT32_MIN + int32_t(random() % 3);
      case 2: return INT32_MAX - int32_t(random() % 3);
      case 3: return -int32_t(random() % 3);
      default: return int32_t(random() % 3000);
    }
  };
  constexpr int32_t batch = 7;
  size_t empty = 0, full = 0;
  for (int n = 0; n < 20000; ++n) {
    std::vector<int32_t> numbers[5];
    for (auto& of : numbers)
      for (int32_t i = 0; i <= batch; ++i) of.push_back(any_number());
    const auto given = [&](int i) { return random() % 2 ? numbers[i].data() : nullptr; };
    const int32_t total_q = int32_t(random() % 2000), total_k = int32_t(random() % 2000);
    const Lengths lengths{given(0), given(1), given(2), given(3), given(4), nullptr, batch, int32_t(random() % 1500),
                          int32_t(random() % 1500)};
    const Window window{any_number(), any_number(), random() % 2 == 0};
    for (int32_t b = 0; b < batch; ++b) {
      const Sequence s = sequence_at(lengths, total_q, total_k, window, b);
      check_inside(lengths, total_q, total_k, s, b);
      empty += s.seqlen_q == 0, full += s.seqlen_q > 0 && s.seqlen_k > 0;
      const Visible visible = visible_of(s, true, true, {3});
      for (const int32_t row : {0, 8 * s.seqlen_q, 8 * s.seqlen_q + 255}) {
        const Keys keys = visible.of(row);
        REQUIRE((keys.none() || (keys.begin >= 0 && keys.end <= s.seqlen_k)));
      }
    }
  }
  CHECK((empty > 10000 && full > 10000));
}

}  // namespace fa3::test
