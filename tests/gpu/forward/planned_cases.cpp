// Makes the cases of planned.cpp, computes what is right, and judges.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <thread>

#include "../compared.h"
#include "half.h"
#include "problems/memory.h"
#include "random.h"
#include "planned.h"

namespace fa3::test {

using tools::from_bf16, tools::to_bf16, tools::Random;

float PlannedCall::scale() const { return float(1 / std::sqrt(double(head_dim))); }

namespace {

void fill(PlannedCall& made, uint64_t seed) {
  const auto poison = [](std::vector<uint16_t>& to, int64_t elements) { to.assign(size_t(elements), poison16); };
  poison(made.q, made.batch * made.rows_q * made.heads * made.head_dim);
  poison(made.k, made.batch_k * made.rows_k * made.heads_kv * made.head_dim);
  made.v = made.k, made.o = made.q;
  made.lse.assign(size_t(made.batch * made.rows_q * made.heads), std::bit_cast<float>(poison32));
  std::vector<float> numbers(size_t(made.heads * made.head_dim));
  uint64_t row = 0;
  const auto write = [&](std::vector<uint16_t>& to, int64_t at, int heads) {
    tools::normal(seed, row++ * numbers.size(), numbers.data(), numbers.size());
    for (int n = 0; n < heads * made.head_dim; ++n) to[size_t(at + n)] = to_bf16(numbers[size_t(n)]);
  };
  for (size_t n = 0; n < made.sequences.size(); ++n) {
    const Sequence& s = made.sequences[n];
    if (made.poisoned[n]) continue;
    for (int64_t i = 0; i < s.seqlen_q; ++i) write(made.q, made.q_at(s, i, 0), made.heads);
    for (int64_t j = 0; j < s.seqlen_k; ++j) {
      write(made.k, made.k_at(s, j, 0), made.heads_kv);
      write(made.v, made.k_at(s, j, 0), made.heads_kv);
    }
  }
}

// Sequences of these numbers of queries and keys, in packed tensors that have no elements yet.
PlannedCall lay(const ForwardRow& row, const std::vector<std::array<int, 2>>& lengths, Bounds bounds, Random& random) {
  PlannedCall made{.row = row};
  for (const auto& [seqlen_q, seqlen_k] : lengths) {
    const auto q_row = int32_t(made.rows_q + random.between(0, 3)), k_row = int32_t(made.rows_k + random.between(0, 3));
    const int32_t diagonal = seqlen_k - seqlen_q;
    made.sequences.push_back(
        {q_row, 0, k_row, 0, seqlen_q, seqlen_k, bounds.left_of(diagonal), bounds.right_of(diagonal)});
    made.poisoned.push_back(random.chance(0.15));
    made.rows_q = q_row + seqlen_q, made.rows_k = k_row + seqlen_k;
  }
  made.rows_q += 1, made.rows_k += 1;
  return made;
}

// One row of O, and its LSE, in numbers of this type; P and O are rounded.
template <class Number, class Round>
void attend(const PlannedCall& made, const Sequence& s, int64_t i, int head, Round round, float* o, float& lse) {
  const Keys keys = made.visible(s).of(int32_t(i));
  const int head_kv = head / (made.heads / made.heads_kv), d = made.head_dim;
  const float sink = made.sinks.empty() ? -INFINITY : made.sinks[size_t(head)];
  std::fill_n(o, d, 0.f), lse = sink;
  if (keys.none()) return;
  const uint16_t* q = &made.q[size_t(made.q_at(s, i, head))];
  const auto row_of = [&](const std::vector<uint16_t>& from, size_t j) {
    return &from[size_t(made.k_at(s, keys.begin + int64_t(j), head_kv))];
  };
  std::vector<Number> p(size_t(keys.end - keys.begin)), sums(static_cast<size_t>(d));
  for (size_t j = 0; j < p.size(); ++j) {
    const uint16_t* k = row_of(made.k, j);
    for (int c = 0; c < d; ++c) p[j] += Number(from_bf16(q[c])) * Number(from_bf16(k[c]));
    p[j] *= made.scale();
  }
  const Number m = *std::max_element(p.begin(), p.end());
  Number l = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    p[j] = std::exp(p[j] - m), l += p[j], p[j] = round(p[j]);
    const uint16_t* v = row_of(made.v, j);
    for (int c = 0; c < d; ++c) sums[size_t(c)] += p[j] * Number(from_bf16(v[c]));
  }
  // One addend more, without a value: the keys have a share of O.
  const Number keys_lse = m + std::log(l), beyond = Number(sink) - keys_lse, share = 1 / (1 + std::exp(beyond));
  for (int c = 0; c < d; ++c) o[c] = float(round(sums[size_t(c)] / l * share));
  lse = float(std::max(keys_lse, Number(sink)) + std::log1p(std::exp(-std::abs(beyond))));
}

void expect_row(const PlannedCall& made, const Sequence& s, int64_t i, int head, Expectation& to) {
  const auto at = size_t(made.q_at(s, i, head)), row = size_t(made.lse_at(s, i, head));
  attend<double>(made, s, i, head, [](double x) { return x; }, &to.o[at], to.lse[row]);
  attend<float>(made, s, i, head, [](float x) { return from_bf16(to_bf16(x)); }, &to.plain_o[at], to.plain_lse[row]);
}

// "", or what was written where no sequence has a row.
std::string check_untouched(float lse, const uint16_t* o, int d) {
  if (std::bit_cast<uint32_t>(lse) != poison32) return "lse was overwritten";
  return std::all_of(o, o + d, [](uint16_t x) { return x == poison16; }) ? "" : "o was overwritten";
}

// "", or what a row has that must be finite, or if it has no keys 0 and its sink.
std::string check_numbers(float lse, const uint16_t* o, int d, bool has_keys, float sink) {
  if (has_keys ? !std::isfinite(lse) : lse != sink) return "lse is " + std::to_string(lse);
  for (int c = 0; c < d; ++c)
    if (const float x = from_bf16(o[c]); has_keys ? !std::isfinite(x) : x != 0) return "o is " + std::to_string(x);
  return "";
}

}  // namespace

PlannedCall packed(const ForwardRow& row, const std::vector<std::array<int, 2>>& lengths, Bounds bounds,
                   uint64_t seed) {
  Random random(seed);
  PlannedCall made = lay(row, lengths, bounds, random);
  fill(made, seed);
  return made;
}

PlannedCall paged(const ForwardRow& row, const std::vector<std::array<int, 2>>& lengths, int page_size, Bounds bounds,
                  uint64_t seed) {
  Random random(seed);
  PlannedCall made = lay(row, lengths, bounds, random);
  made.paged = true, made.rows_k = page_size;
  const auto pages_of = [&](const Sequence& s) { return (s.seqlen_k + page_size - 1) / page_size; };
  int64_t used = 0;
  for (const Sequence& s : made.sequences) {
    used += pages_of(s);
    made.table_pages = std::max<int64_t>(made.table_pages, pages_of(s) + 2);
  }
  // Half as many again are nobody's.
  std::vector<int32_t> pages(size_t(used + used / 2 + 2));
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t n = pages.size(); n > 1; --n) std::swap(pages[n - 1], pages[size_t(random.between(0, int64_t(n) - 1))]);
  made.batch_k = int64_t(pages.size());
  const auto any_number = [&] {
    const int32_t nobodys = pages[size_t(random.between(used, int64_t(pages.size()) - 1))];
    return random.pick<int32_t>({nobodys, nobodys, -1, int32_t(pages.size()), INT32_MAX, INT32_MIN});
  };
  auto next = pages.begin();
  for (size_t n = 0; n < made.sequences.size(); ++n) {
    Sequence& s = made.sequences[n];
    s.k_row = 0, s.k_batch = int32_t(n);
    // The first pages are those of the sequence before, as of a common prompt.
    const bool shares = n > 0 && !made.poisoned[n] && !made.poisoned[n - 1] && random.chance(0.4);
    for (int64_t page = 0; page < made.table_pages; ++page) {
      const bool is_shared = shares && page < pages_of(s) / 2 && page < pages_of(made.sequences[n - 1]) / 2;
      made.page_table.push_back(page >= pages_of(s) || made.poisoned[n] ? any_number()
                                : is_shared ? made.page_table[(n - 1) * size_t(made.table_pages) + size_t(page)]
                                            : *next++);
    }
  }
  fill(made, seed);
  return made;
}

PlannedCall batched(const ForwardRow& row, int batch, int seqlen_q, int seqlen_k, Bounds bounds, uint64_t seed) {
  PlannedCall made{.row = row, .rows_q = seqlen_q, .rows_k = seqlen_k, .batch = batch, .batch_k = batch};
  const int32_t diagonal = seqlen_k - seqlen_q;
  for (int b = 0; b < batch; ++b)
    made.sequences.push_back(
        {0, b, 0, b, seqlen_q, seqlen_k, bounds.left_of(diagonal), bounds.right_of(diagonal)});
  made.poisoned.assign(size_t(batch), false);
  fill(made, seed);
  return made;
}

Expectation expect(const PlannedCall& made) {
  Expectation to;
  to.o.assign(made.o.size(), NAN), to.plain_o = to.o;
  to.lse.assign(made.lse.size(), NAN), to.plain_lse = to.lse;
  to.rows.assign(made.lse.size(), Expectation::Is::outside);
  struct Place {
    size_t sequence;
    int64_t i;
    int head;
  };
  std::vector<Place> places;  // of rows to be computed
  for (size_t n = 0; n < made.sequences.size(); ++n)
    for (int64_t i = 0; i < made.sequences[n].seqlen_q; ++i)
      for (int head = 0; head < made.heads; ++head) {
        to.rows[size_t(made.lse_at(made.sequences[n], i, head))] =
            made.poisoned[n]                                            ? Expectation::Is::poisoned
            : made.visible(made.sequences[n]).of(int32_t(i)).none() ? Expectation::Is::without_keys
                                                                        : Expectation::Is::computed;
        if (!made.poisoned[n]) places.push_back({n, i, head});
      }
  std::vector<std::thread> threads;
  const size_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (size_t worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      for (size_t n = worker; n < places.size(); n += workers)
        expect_row(made, made.sequences[places[n].sequence], places[n].i, places[n].head, to);
    });
  for (std::thread& thread : threads) thread.join();
  return to;
}

std::string verify(const PlannedCall& made, const Expectation& expected) {
  Compared o, lse;
  for (int64_t b = 0; b < made.batch; ++b)
    for (int64_t i = 0; i < made.rows_q; ++i)
      for (int head = 0; head < made.heads; ++head) {
        const auto row = size_t((b * made.heads + head) * made.rows_q + i);
        const auto at = size_t(((b * made.rows_q + i) * made.heads + head) * made.head_dim);
        const Expectation::Is is = expected.rows[row];
        if (is == Expectation::Is::poisoned) continue;
        const bool has_keys = is == Expectation::Is::computed;
        const std::string bad = is == Expectation::Is::outside
                                    ? check_untouched(made.lse[row], &made.o[at], made.head_dim)
                                    : check_numbers(made.lse[row], &made.o[at], made.head_dim, has_keys,
                                                    expected.lse[row]);
        if (!bad.empty())
          return "batch " + std::to_string(b) + " row " + std::to_string(i) + " head " + std::to_string(head) + ": " +
                 bad;
        if (is == Expectation::Is::outside) continue;
        if (has_keys) lse.add(made.lse[row], expected.lse[row], expected.plain_lse[row]);
        for (size_t c = at; c < at + size_t(made.head_dim); ++c)
          o.add(from_bf16(made.o[c]), expected.o[c], expected.plain_o[c]);
      }
  if (const std::string bad = o.verdict("o", 0x1p-8); !bad.empty()) return bad;
  return lse.verdict("lse", 0x1p-17);
}

}  // namespace fa3::test
