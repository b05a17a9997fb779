// What is right for a served case: each row by itself, first in float64, then as plain float32 code computes it.
#include <algorithm>
#include <cmath>

#include "half.h"
#include "parallel.h"
#include "served_case.h"
#include "wider.h"

namespace fa3::test {

namespace {

// Keys of one head, as far as rows may look at them: K with keys side by side, V row by row.
struct HeadKeys {
  ServedProblem::Range range;
  std::vector<float> k, v;

  int64_t count() const { return range.end - range.begin; }
};

HeadKeys read_keys(const ServedCase& made, const ServedSequence& s, ServedProblem::Range range, int64_t head_kv) {
  const ServedProblem& p = made.problem;
  HeadKeys keys{range, {}, {}};
  keys.k.resize(size_t(keys.count() * p.head_dim)), keys.v.resize(size_t(keys.count() * p.head_dim_v));
  for (int64_t j = 0; j < keys.count(); ++j) {
    const int64_t k = made.key_position(made.k, s, range.begin + j, head_kv);
    const int64_t v = made.key_position(made.v, s, range.begin + j, head_kv);
    for (int64_t c = 0; c < p.head_dim; ++c) keys.k[size_t(c * keys.count() + j)] = made.k.read(made.images, k + c);
    for (int64_t c = 0; c < p.head_dim_v; ++c)
      keys.v[size_t(j * p.head_dim_v + c)] = made.v.read(made.images, v + c);
  }
  return keys;
}

// sums[i] += factor * row[i]
template <class Number>
void add_row(Number factor, const float* row, int64_t count, Number* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += factor * Number(row[i]);
}
FA3_WIDER void add(double factor, const float* row, int64_t count, double* sums) { add_row(factor, row, count, sums); }
FA3_WIDER void add(float factor, const float* row, int64_t count, float* sums) { add_row(factor, row, count, sums); }

struct RowResult {
  float lse;
  double squares, fourths;  // sums of the weights' powers
};

// One row in numbers of this type: scores, their exponentials relative to the largest one, sums. `round` is what
// becomes of a weight, and of an element of O. The sink is one more addend of the sum.
template <class Number, class Round>
RowResult attend(const ServedProblem& p, const std::vector<float>& q, const HeadKeys& keys,
                 const std::vector<int64_t>& seen, Number sink, Round round, float* o) {
  std::fill_n(o, p.head_dim_v, 0.0f);
  if (seen.empty()) return {float(sink), 0, 0};
  std::vector<Number> s(size_t(keys.count())), sums(size_t(p.head_dim_v));
  for (int64_t c = 0; c < p.head_dim; ++c)
    add(Number(q[size_t(c)]), &keys.k[size_t(c * keys.count())], keys.count(), s.data());
  Number largest = -INFINITY, sum = 0;
  for (const int64_t j : seen) largest = std::max(largest, s[size_t(j)] *= Number(p.scale()));
  double squares = 0, fourths = 0;
  for (const int64_t j : seen) {
    const Number weight = std::exp(s[size_t(j)] - largest);
    const double square = double(weight) * double(weight);
    sum += weight, squares += square, fourths += square * square;
    add(round(weight), &keys.v[size_t(j * p.head_dim_v)], p.head_dim_v, sums.data());
  }
  // exp(sink - lse) may be beyond all numbers, and then O is 0; LSE is the larger one and what the other adds to it.
  const Number lse = largest + std::log(sum), all = 1 + std::exp(sink - lse);
  for (int64_t c = 0; c < p.head_dim_v; ++c) o[c] = float(round(sums[size_t(c)] / sum / all));
  const double share = 1 / double(sum * all);
  return {float(std::max(lse, sink) + std::log1p(std::exp(-std::abs(lse - sink)))), squares * share * share,
          fourths * share * share * share * share};
}

void expect_rows(const ServedCase& made, int64_t first, int64_t last, const HeadKeys& keys, ServedExpected& to) {
  const ServedProblem& p = made.problem;
  std::vector<float> q(static_cast<size_t>(p.head_dim));
  for (int64_t n = first; n < last; ++n) {
    const auto& [s, query, head] = to.rows[size_t(n)];
    const int64_t at = made.query_position(made.q, s, query, head);
    for (int64_t c = 0; c < p.head_dim; ++c) q[size_t(c)] = made.q.read(made.images, at + c);
    std::vector<int64_t> seen;
    for (int64_t j = keys.range.begin; j < keys.range.end; ++j)
      if (p.sees(s, query, j)) seen.push_back(j - keys.range.begin);
    const float sink = p.has_sinks ? p.sinks[size_t(head)] : -INFINITY;
    Output &right = to.numbers.reference, &plain = to.numbers.plain;
    const size_t o = size_t(n * p.head_dim_v);
    right.lse[size_t(n)] = attend<double>(p, q, keys, seen, sink, [](double x) { return x; }, &right.o[o]).lse;
    const RowResult result =
        attend<float>(p, q, keys, seen, sink, [&](float x) { return tools::round_to(x, p.dtype); }, &plain.o[o]);
    plain.lse[size_t(n)] = result.lse;
    plain.squares[size_t(n)] = float(result.squares), plain.fourths[size_t(n)] = float(result.fourths);
    to.keys[size_t(n)] = int64_t(seen.size());
  }
}

// The elements of rows [first, last).
Output slice(const Output& all, size_t first, size_t last, size_t row) {
  const auto of = [&](const std::vector<float>& from, size_t each) {
    if (from.empty()) return from;
    return std::vector<float>(from.begin() + int64_t(first * each), from.begin() + int64_t(last * each));
  };
  Output out;
  out.o = of(all.o, row), out.lse = of(all.lse, 1), out.squares = of(all.squares, 1), out.fourths = of(all.fourths, 1);
  return out;
}

std::string text_of(const ServedRow& row) {
  return "sequence " + std::to_string(row.sequence.number) + " query " + std::to_string(row.query) + " head " +
         std::to_string(row.head);
}

std::string check_written(const ServedCase& made) {
  const ServedProblem& p = made.problem;
  std::vector<char> o(made.images[size_t(made.o.image)].size() / size_t(tools::element_bytes(made.o.dtype)));
  std::vector<char> lse(p.want_lse ? made.images[size_t(made.lse.image)].size() / 4 : 0);
  const auto first_o = made.o.first / tools::element_bytes(made.o.dtype), first_lse = made.lse.first / 4;
  for (int64_t b = 0; b < p.batch; ++b) {
    const ServedSequence s = p.sequence(b);
    for (int64_t i = 0; i < s.queries; ++i)
      for (int64_t h = 0; h < p.heads; ++h) {
        std::fill_n(&o[size_t(first_o + made.query_position(made.o, s, i, h))], p.head_dim_v, true);
        if (p.want_lse) lse[size_t(first_lse + made.query_position(made.lse, s, i, h))] = true;
      }
  }
  const std::string bad = check_poison(made.images, made.o, o, "o");
  return bad.empty() && p.want_lse ? check_poison(made.images, made.lse, lse, "lse") : bad;
}

// Rows without keys exactly (a sink to the last bits); all others are finite.
std::string check_numbers(const ServedCase& made, const ServedExpected& expected, const Output& ours) {
  const int64_t d = made.problem.head_dim_v;
  for (size_t n = 0; n < expected.rows.size(); ++n) {
    const bool empty = expected.keys[n] == 0;
    for (int64_t c = 0; c < d; ++c)
      if (const float x = ours.o[n * size_t(d) + size_t(c)]; empty ? x != 0 : !std::isfinite(x))
        return text_of(expected.rows[n]) + ": o is " + std::to_string(x);
    if (ours.lse.empty()) continue;
    const bool is_number = std::isfinite(expected.numbers.reference.lse[n]);
    if (const float x = ours.lse[n]; is_number ? !std::isfinite(x) : x != -INFINITY)
      return text_of(expected.rows[n]) + ": lse is " + std::to_string(x);
  }
  return "";
}

}  // namespace

ServedExpected expect(const ServedCase& made) {
  const ServedProblem& p = made.problem;
  ServedExpected to;
  // Rows of one sequence that share a head of K and V, some at a time.
  struct Part {
    int64_t first, last, head_kv;
    ServedProblem::Range keys;
  };
  std::vector<Part> parts;
  constexpr int64_t rows_of_part = 64;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.poisoned[size_t(b)]) continue;
    const ServedSequence s = p.sequence(b);
    const ServedProblem::Range keys = p.keys_near(s);
    for (int64_t kv = 0; kv < p.heads_kv; ++kv) {
      const auto first = int64_t(to.rows.size());
      for (int64_t i = 0; i < s.queries; ++i)
        for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) to.rows.push_back({s, i, h});
      const auto last = int64_t(to.rows.size());
      for (int64_t n = first; n < last; n += rows_of_part)
        parts.push_back({n, std::min(n + rows_of_part, last), kv, keys});
    }
  }
  const size_t rows = to.rows.size();
  to.keys.resize(rows);
  for (Output* output : {&to.numbers.reference, &to.numbers.plain})
    output->o.resize(rows * size_t(p.head_dim_v)), output->lse.resize(rows);
  to.numbers.plain.squares.resize(rows), to.numbers.plain.fourths.resize(rows);
  tools::parallel_for(int64_t(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const auto& [first, last, head_kv, keys] = parts[size_t(n)];
      expect_rows(made, first, last, read_keys(made, to.rows[size_t(first)].sequence, keys, head_kv), to);
    }
  });
  return to;
}

std::string verify(const ServedCase& made, const ServedExpected& expected) {
  const ServedProblem& p = made.problem;
  if (std::string bad = check_written(made); !bad.empty()) return bad;
  const Output ours = gather(made, expected.rows);
  if (std::string bad = check_numbers(made, expected, ours); !bad.empty()) return bad;
  const Terms terms{p.dtype, p.output_dtype(), p.head_dim, false};
  const auto judge_rows = [&](size_t first, size_t last) {
    const auto of = [&](const Output& all) { return slice(all, first, last, size_t(p.head_dim_v)); };
    return judge(of(ours), {of(expected.numbers.reference), of(expected.numbers.plain)}, terms);
  };
  if (std::string bad = judge_rows(0, expected.rows.size()); !bad.empty()) return bad;
  for (size_t first = 0, last = 0; first < expected.rows.size(); first = last) {
    const int64_t number = expected.rows[first].sequence.number;
    while (last < expected.rows.size() && expected.rows[last].sequence.number == number) ++last;
    if (std::string bad = judge_rows(first, last); !bad.empty())
      return "sequence " + std::to_string(number) + ": " + bad;
  }
  return "";
}

}  // namespace fa3::test
