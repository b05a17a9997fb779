// What is right for a planned case: each row by itself, first in float64, then as plain float32 code computes it.
#include <algorithm>
#include <cmath>

#include "../planned_case.h"
#include "half.h"
#include "parallel.h"
#include "plain.h"
#include "random.h"
#include "wider.h"

namespace fa3::test {

namespace {

// Keys of one head, as far as rows may look at them: K with keys side by side, and with a second query V's columns
// behind K's; V row by row.
struct HeadKeys {
  PlannedProblem::Range range;
  std::vector<float> k, v;

  int64_t count() const { return range.end - range.begin; }
};

HeadKeys read_keys(const PlannedCase& made, const PlannedSequence& s, PlannedProblem::Range range, int64_t head_kv) {
  const PlannedProblem& p = made.problem;
  HeadKeys keys{range, {}, {}};
  keys.k.resize(size_t(keys.count() * p.score_columns())), keys.v.resize(size_t(keys.count() * p.head_dim_v));
  for (int64_t j = 0; j < keys.count(); ++j) {
    const int64_t k = made.key_position(made.k, s, range.begin + j, head_kv);
    const int64_t v = made.key_position(made.v, s, range.begin + j, head_kv);
    for (int64_t c = 0; c < p.head_dim; ++c) keys.k[size_t(c * keys.count() + j)] = made.k.read(made.images, k + c);
    const int64_t scale = p.e4m3_latent ? made.key_position(made.latent_scale, s, range.begin + j, head_kv) : 0;
    for (int64_t c = 0; c < p.head_dim_v; ++c) keys.v[size_t(j * p.head_dim_v + c)] = made.value_at(v, scale, c);
    for (int64_t c = p.head_dim; c < p.score_columns(); ++c)
      keys.k[size_t(c * keys.count() + j)] = keys.v[size_t(j * p.head_dim_v + c - p.head_dim)];
  }
  return keys;
}

// As code in 16 bits has them: a latent cache of e4m3, which its scales have made other numbers of, is rounded.
HeadKeys in_16_bits(const PlannedProblem& p, HeadKeys keys) {
  if (!p.e4m3_latent) return keys;
  for (float& x : keys.v) x = tools::round_to(x, p.dtype);
  for (size_t n = size_t(p.head_dim * keys.count()); n < keys.k.size(); ++n)
    keys.k[n] = tools::round_to(keys.k[n], p.dtype);
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
  double squares = 0, fourths = 0;  // sums of the weights' powers
  float partial = 0;                // Output::partial
};

// A row, and the numbers that are its own: of its sequence and head, and of itself.
struct RowInput {
  std::vector<float> q;
  std::vector<int64_t> seen;  // keys
  double score_scale, v_scale;
  float sink, offset;         // of LSE
  std::vector<float> v_mean;  // empty: none
};

// What becomes of a row's sums: the sink is one more addend, from which all scores' offset must be taken as it is taken
// from them; the mean has the keys' share.
template <class Number>
struct Finish {
  Number lse, all;  // of the keys alone; the sum over theirs

  Finish(const RowInput& row, Number keys_lse) : lse(keys_lse), all(1 + std::exp(sink(row) - keys_lse)) {}
  static Number sink(const RowInput& row) { return Number(row.sink) - Number(row.offset); }
  float lse_of(const RowInput& row) const {
    const Number other = sink(row);
    return float(std::max(lse, other) + std::log1p(std::exp(-std::abs(lse - other))) + Number(row.offset));
  }
  Number o_of(const RowInput& row, Number mean_of_keys, size_t c) const {
    return (mean_of_keys * Number(row.v_scale) + (row.v_mean.empty() ? 0 : Number(row.v_mean[c]))) / all;
  }
};

// One row in numbers of this type: scores, their exponentials relative to the largest one, sums. What becomes of a
// weight, and of an element of O, is rounded.
template <class Number, class RoundWeight, class RoundO>
RowResult attend(const PlannedProblem& p, const PlannedRow& at, const RowInput& row, const HeadKeys& keys,
                 RoundWeight round_weight, RoundO round_o, float* o) {
  const std::vector<int64_t>& seen = row.seen;
  std::fill_n(o, p.head_dim_v, 0.0f);
  if (seen.empty()) return {row.sink};
  std::vector<Number> s(size_t(keys.count())), sums(size_t(p.head_dim_v)), partial(p.softcap > 0 ? s.size() : 0);
  for (int64_t c = 0; c < p.score_columns(); ++c) {
    add(Number(row.q[size_t(c)]), &keys.k[size_t(c * keys.count())], keys.count(), s.data());
    for (size_t j = 0; c % 16 == 15 && j < partial.size(); ++j) partial[j] = std::max(partial[j], std::abs(s[j]));
  }
  Number largest = -INFINITY, sum = 0, largest_partial = 0;
  for (const int64_t j : seen) {
    Number& score = s[size_t(j)];
    const Number scale = Number(row.score_scale);
    if (p.softcap > 0)
      largest_partial = std::max(largest_partial, partial[size_t(j)] * scale * p.slope_of_cap(score * scale));
    score = p.transformed(score * scale, at.sequence, at.query, at.head, keys.range.begin + j);
    largest = std::max(largest, score);
  }
  double squares = 0, fourths = 0;
  for (const int64_t j : seen) {
    const Number weight = std::exp(s[size_t(j)] - largest);
    const double square = double(weight) * double(weight);
    sum += weight, squares += square, fourths += square * square;
    add(round_weight(weight), &keys.v[size_t(j * p.head_dim_v)], p.head_dim_v, sums.data());
  }
  // exp(sink - lse) may be beyond all numbers, and then O is 0; LSE is the larger one and what the other adds to it.
  const Finish<Number> finish(row, largest + std::log(sum));
  for (size_t c = 0; c < sums.size(); ++c) o[c] = float(round_o(finish.o_of(row, sums[c] / sum, c)));
  const double share = 1 / double(sum * finish.all);
  return {finish.lse_of(row), squares * share * share, fourths * share * share * share * share, float(largest_partial)};
}

// One row of e4m3 as plain code computes it (plain.h).
RowResult attend_e4m3(const PlannedCase& made, const RowInput& row, const HeadKeys& keys, uint64_t number, float* o) {
  const PlannedProblem& p = made.problem;
  constexpr int64_t step = 32;
  const int64_t d = p.head_dim, dv = p.head_dim_v, count = keys.count();
  std::fill_n(o, dv, 0.0f);
  if (row.seen.empty()) return {row.sink, 0, 0, -1};
  std::vector<float> s(static_cast<size_t>(count)), largest(s), weights(s), sums(static_cast<size_t>(dv));
  for (int64_t c = 0; c < d; c += step) {
    add_products(true, std::min(step, d - c), &row.q[size_t(c)], &keys.k[size_t(c * count)], count, count, s.data());
    for (size_t j = 0; j < s.size(); ++j) largest[j] = std::max(largest[j], std::fabs(s[j]));
  }
  const auto scale = float(row.score_scale);
  float most = -INFINITY, sum = 0;
  RowResult result{};
  for (const int64_t j : row.seen) {
    most = std::max(most, s[size_t(j)] *= scale);
    result.partial = std::max(result.partial, largest[size_t(j)] * scale);
  }
  const float factor = 16 * std::exp2(float(tools::mix(p.seed ^ 9, number) >> 40) * 0x1p-24f);
  for (const int64_t j : row.seen) {
    const float weight = std::exp(s[size_t(j)] - most);
    sum += weight;
    weights[size_t(j)] = tools::round_to(weight * factor, p.dtype);
  }
  // From the last key to the first, as the kernels do. Those that the row does not see may be NaN.
  std::vector<float> v(size_t(step * dv)), p_of_step(static_cast<size_t>(step));
  for (int64_t last = int64_t(row.seen.size()); last > 0; last -= step) {
    const int64_t first = std::max<int64_t>(last - step, 0);
    for (int64_t n = first; n < last; ++n) {
      const int64_t j = row.seen[size_t(n)];
      p_of_step[size_t(n - first)] = weights[size_t(j)];
      std::copy_n(&keys.v[size_t(j * dv)], dv, &v[size_t((n - first) * dv)]);
    }
    add_products(true, last - first, p_of_step.data(), v.data(), dv, dv, sums.data());
  }
  const Finish<float> finish(row, most + std::log(sum));
  const float o_scale = made.output_scale();
  for (size_t c = 0; c < sums.size(); ++c)
    o[c] = tools::round_to(finish.o_of(row, sums[c] / (sum * factor), c) / o_scale, p.output_dtype()) * o_scale;
  result.lse = finish.lse_of(row);
  return result;
}

RowInput read_row(const PlannedCase& made, const PlannedRow& at, const HeadKeys& keys) {
  const PlannedProblem& p = made.problem;
  const auto& [s, query, head] = at;
  const int64_t first = made.query_position(made.q, s, query, head), head_kv = head / p.group();
  RowInput row;
  for (int64_t c = 0; c < p.head_dim; ++c) row.q.push_back(made.q.read(made.images, first + c));
  for (int64_t c = 0; c < p.head_dim_v && p.has_qv; ++c)
    row.q.push_back(made.qv.read(made.images, made.query_position(made.qv, s, query, head) + c));
  for (int64_t j = keys.range.begin; j < keys.range.end; ++j)
    if (p.sees(s, query, j)) row.seen.push_back(j - keys.range.begin);
  row.score_scale = p.scale() * double(made.scale_of(made.q_scale, s.number, head)) *
                    double(made.scale_of(made.k_scale, s.number, head_kv));
  row.v_scale = made.scale_of(made.v_scale, s.number, head_kv);
  row.sink = p.has_sinks ? p.sinks[size_t(head)] : -INFINITY;
  row.offset = made.offset_of(s, query, head);
  for (int64_t c = 0; c < p.head_dim_v && p.v_mean; ++c) row.v_mean.push_back(made.mean_of(s.number, head_kv, c));
  return row;
}

void expect_rows(const PlannedCase& made, int64_t first, int64_t last, const HeadKeys& keys, PlannedExpected& to) {
  const PlannedProblem& p = made.problem;
  const HeadKeys rounded_keys = in_16_bits(p, keys);
  for (int64_t n = first; n < last; ++n) {
    const PlannedRow& at = to.rows[size_t(n)];
    const RowInput row = read_row(made, at, keys);
    Output &right = to.numbers.reference, &plain = to.numbers.plain;
    const size_t o = size_t(n * p.head_dim_v);
    const auto rounded = [&](float x) { return tools::round_to(x, p.dtype); };
    // Under a small cap all weights of a row are about 1. The kernels' may be above it, as they are relative to
    // something near the maximum, and from 1 to 2 steps of 16 bits are twice as wide. So here all are made to lie
    // there: the smallest is exp(-2 cap), and exp(2 * 0.34) is just below 2.
    const float above = p.softcap > 0 && p.softcap < 0.34f ? std::exp(2 * p.softcap) : 1;
    const auto weight = [&](float x) { return tools::round_to(x * above, p.weight_dtype()) / above; };
    const auto exact = [](double x) { return x; };
    right.lse[size_t(n)] = attend<double>(p, at, row, keys, exact, exact, &right.o[o]).lse;
    const RowResult result = p.is_e4m3() ? attend_e4m3(made, row, keys, uint64_t(n), &plain.o[o])
                                         : attend<float>(p, at, row, rounded_keys, weight, rounded, &plain.o[o]);
    plain.lse[size_t(n)] = result.lse, plain.partial[size_t(n)] = result.partial;
    plain.squares[size_t(n)] = float(result.squares), plain.fourths[size_t(n)] = float(result.fourths);
    to.keys[size_t(n)] = int64_t(row.seen.size());
  }
}

// The elements of rows [first, last).
Output slice(const Output& all, size_t first, size_t last, size_t row) {
  const auto of = [&](const std::vector<float>& from, size_t each) {
    if (from.empty()) return from;
    return std::vector<float>(from.begin() + int64_t(first * each), from.begin() + int64_t(last * each));
  };
  Output out;
  out.o = of(all.o, row), out.lse = of(all.lse, 1), out.partial = of(all.partial, 1);
  out.squares = of(all.squares, 1), out.fourths = of(all.fourths, 1);
  return out;
}

std::string text_of(const PlannedRow& row) {
  return "sequence " + std::to_string(row.sequence.number) + " query " + std::to_string(row.query) + " head " +
         std::to_string(row.head);
}

std::string check_written(const PlannedCase& made) {
  const PlannedProblem& p = made.problem;
  std::vector<char> o(made.images[size_t(made.o.image)].size() / size_t(tools::element_bytes(made.o.dtype)));
  std::vector<char> lse(p.want_lse ? made.images[size_t(made.lse.image)].size() / 4 : 0);
  const auto first_o = made.o.first / tools::element_bytes(made.o.dtype), first_lse = made.lse.first / 4;
  for (int64_t b = 0; b < p.batch; ++b) {
    const PlannedSequence s = p.sequence(b);
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
std::string check_numbers(const PlannedCase& made, const PlannedExpected& expected, const Output& ours) {
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

PlannedExpected expect(const PlannedCase& made) {
  const PlannedProblem& p = made.problem;
  PlannedExpected to;
  // Rows of one sequence that share a head of K and V, some at a time.
  struct Part {
    int64_t first, last, head_kv;
    PlannedProblem::Range keys;
  };
  std::vector<Part> parts;
  constexpr int64_t rows_of_part = 64;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.poisoned[size_t(b)]) continue;
    const PlannedSequence s = p.sequence(b);
    const PlannedProblem::Range keys = p.keys_near(s);
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
  for (auto* numbers : {&to.numbers.plain.partial, &to.numbers.plain.squares, &to.numbers.plain.fourths})
    numbers->resize(rows);
  tools::parallel_for(int64_t(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const auto& [first, last, head_kv, keys] = parts[size_t(n)];
      expect_rows(made, first, last, read_keys(made, to.rows[size_t(first)].sequence, keys, head_kv), to);
    }
  });
  return to;
}

std::string verify(const PlannedCase& made, const PlannedExpected& expected) {
  const PlannedProblem& p = made.problem;
  if (std::string bad = check_written(made); !bad.empty()) return bad;
  const Output ours = gather(made, expected.rows);
  if (std::string bad = check_numbers(made, expected, ours); !bad.empty()) return bad;
  const bool equal_weights = p.softcap > 0 && p.softcap < 0.1f && !p.has_slopes;  // all scores are about 0
  const Terms terms{p.dtype, p.output_dtype(), p.score_columns(), equal_weights, p.softcap > 0 || p.has_slopes};
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
