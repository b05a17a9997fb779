// Where sequences of varlen sequences lie and what their rows see (ptx/plan/sequence.h).
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <random>
#include <vector>

#include "plan/sequence.h"

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
  // Entries of a cache; those that there are not have no keys.
  const int32_t entries[] = {6, 7, -1};
  const Lengths cached{cu_q, nullptr, nullptr, used_k, nullptr, entries, 3, 4096, 100, 7};
  check(sequence_at(cached, 4113, 0, no_window, 0), {0, 0, 0, 6, 17, 20, no_bound, no_bound});
  check(sequence_at(cached, 4113, 0, no_window, 1), {17, 0, 0, 0, 0, 0, no_bound, no_bound});
  check(sequence_at(cached, 4113, 0, no_window, 2), {17, 0, 0, 0, 4096, 0, no_bound, no_bound});
}

namespace {

// The keys that the queries of a sequence see, if it becomes several, by their places in the tensors.
std::map<int32_t, Keys> seen_keys(const Sequence& whole, const Window& window, const Cuts& cuts) {
  const int32_t cu_q[] = {whole.q_row, whole.q_row + whole.seqlen_q};
  const int32_t cu_k[] = {whole.k_row, whole.k_row + whole.seqlen_k};
  const Lengths lengths{cu_q, cu_k, nullptr, nullptr, nullptr, nullptr, 1, whole.seqlen_q, whole.seqlen_k};
  std::map<int32_t, Keys> seen;
  for (int32_t nth = 0; nth < cuts.each; ++nth) {
    const Sequence s = sequence_at(lengths, 1 << 20, 1 << 20, window, cuts, nth);
    const Visible visible = visible_of(s, true, true, {0});
    int32_t first_period = -1, last_period = -1;
    for (int32_t query = 0; query < s.seqlen_q; ++query) {
      const Keys keys = visible.of(query);
      REQUIRE((keys.none() || (keys.begin >= 0 && keys.end <= s.seqlen_k)));
      const Keys in_tensor{s.k_row + keys.begin, s.k_row + keys.end};
      REQUIRE(seen.insert({s.q_row + query, keys.none() ? Keys{0, 0} : in_tensor}).second);
      if (cuts.period == 0 || keys.none()) continue;
      if (first_period < 0) first_period = keys.begin / cuts.period, last_period = (keys.end - 1) / cuts.period;
      REQUIRE((keys.begin / cuts.period == first_period && (keys.end - 1) / cuts.period == last_period));
    }
  }
  REQUIRE(seen.size() == size_t(whole.seqlen_q));
  return seen;
}

}  // namespace

TEST_CASE("chunks of positions are sequences of their own", "[sequence]") {
  for (int32_t seqlen_q = 1; seqlen_q <= 9; ++seqlen_q)
    for (int32_t seqlen_k = 0; seqlen_k <= 12; ++seqlen_k)
      for (const int32_t chunk : {1, 2, 3, 5, 8, 100, most_packed_rows})
        for (const bool is_causal : {false, true}) {
          const auto each = int32_t(most_chunks(seqlen_q, seqlen_k, chunk));
          const auto seen = seen_keys({5, 0, 7, 0, seqlen_q, seqlen_k, 0, 0}, is_causal ? causal : no_window,
                                      {each, chunk, 0});
          for (int32_t query = 0; query < seqlen_q; ++query) {
            const int32_t position = query + seqlen_k - seqlen_q;
            Keys wanted{0, 0};
            for (int32_t key = 0; key < seqlen_k; ++key) {
              if (position < 0 || key / chunk != position / chunk || (is_causal && key > position)) continue;
              if (wanted.none()) wanted.begin = 7 + key;
              wanted.end = 7 + key + 1;
            }
            INFO(query << " of " << seqlen_q << ", keys " << seqlen_k << ", chunk " << chunk);
            REQUIRE((seen.at(5 + query).begin == wanted.begin && seen.at(5 + query).end == wanted.end));
          }
        }
  // As many chunks as there may be are needed.
  CHECK((most_chunks(1, 1000, 16) == 1 && most_chunks(17, 1000, 16) == 2 && most_chunks(18, 1000, 16) == 3));
  CHECK((most_chunks(1000, 16, 16) == 2 && most_chunks(0, 16, 16) == 1));
}

TEST_CASE("rows that see other periods of keys are sequences of their own", "[sequence]") {
  for (int32_t seqlen_q = 1; seqlen_q <= 9; ++seqlen_q)
    for (int32_t seqlen_k = 0; seqlen_k <= 20; ++seqlen_k)
      for (const int32_t period : {1, 2, 3, 7, 100})
        for (const Window& window : {no_window, causal, Window{3, 0, true}, Window{4, 2, true}, Window{6, -1, true}}) {
          const int32_t sides = (window.left >= 0) + (window.right >= 0);
          const auto each = int32_t(most_periods(seqlen_q, sides, period));
          const Sequence whole{5, 0, 7, 0, seqlen_q, seqlen_k, 0, 0};
          const auto seen = seen_keys(whole, window, {each, 0, period}), wanted = seen_keys(whole, window, {1, 0, 0});
          for (int32_t query = 5; query < 5 + seqlen_q; ++query)
            REQUIRE((seen.at(query).begin == wanted.at(query).begin && seen.at(query).end == wanted.at(query).end));
        }
  CHECK((most_periods(1, 2, 100) == 1 && most_periods(101, 1, 100) == 2 && most_periods(102, 2, 100) == 5));
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
      const int32_t each = 3, nth = b * each + int32_t(random() % 3);
      const Cuts cuts[] = {{each, 1 + int32_t(random() % 1000), 0}, {each, 0, 1 + int32_t(random() % 1000)}};
      const Window chunks{-1, window.right, true};
      check_inside(lengths, total_q, total_k, sequence_at(lengths, total_q, total_k, chunks, cuts[0], nth), b);
      check_inside(lengths, total_q, total_k, sequence_at(lengths, total_q, total_k, window, cuts[1], nth), b);
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
