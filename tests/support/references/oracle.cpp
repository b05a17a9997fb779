#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "half.h"

namespace fa3::test {

using tools::Layout;

Output reference_forward(Case& made) {
  const Problem& p = made.problem;
  Output out;
  out.o.resize(size_t(p.batch * p.seqlen_q * p.heads * p.v_dim()));
  out.lse.resize(size_t(p.batch * p.heads * p.seqlen_q));
  fa3_forward_params params = made.host_params();
  params.o = Layout::packed({p.batch, p.seqlen_q, p.heads, p.v_dim()}).tensor(out.o.data(), FA3_DTYPE_FP32);
  params.o_scale = {};
  params.lse = Layout::packed({p.batch, p.heads, p.seqlen_q}).tensor(out.lse.data(), FA3_DTYPE_FP32);
  if (fa3_reference_forward(&params, 0) != FA3_OK)
    throw std::runtime_error(std::string("fa3_reference_forward: ") + fa3_last_error_message());
  return out;
}

Errors errors(const std::vector<float>& result, const std::vector<float>& reference) {
  Errors e;
  double sum = 0, size = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    if (!std::isfinite(reference[i])) continue;
    const double difference = std::abs(double(result[i]) - double(reference[i])), magnitude = std::abs(reference[i]);
    e.max = std::isnan(difference) ? INFINITY : std::max(e.max, difference);
    e.size_max = std::max(e.size_max, magnitude);
    sum += difference * difference;
    size += magnitude * magnitude;
    ++e.count;
  }
  if (e.count > 0) {
    e.rms = std::isnan(sum) ? INFINITY : std::sqrt(sum / double(e.count));
    e.size_rms = std::sqrt(size / double(e.count));
  }
  return e;
}

Output gather(const Case& made) {
  Output out;
  const float scale = made.output_scale();
  made.o.layout.for_each([&](int64_t position) { out.o.push_back(made.o.read(made.images, position) * scale); });
  if (made.problem.want_lse) {
    const float* lse = made.lse.data<float>(made.images);
    made.lse.layout.for_each([&](int64_t position) { out.lse.push_back(lse[position]); });
  }
  return out;
}

Expected expect(Case& made) { return {reference_forward(made), plain_forward(made)}; }

// Rows without keys, exactly; all others are finite.
static std::string check_empty_rows(const Problem& p, const Output& ours) {
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t i = 0; i < p.seqlen_q; ++i)
      for (int64_t h = 0; h < p.heads; ++h) {
        const bool empty = p.visible_keys(i) == 0;
        const auto wrong = [&](const char* what, double value) {
          char text[160];
          std::snprintf(text, sizeof text, "%s of batch %lld row %lld head %lld is %g", what, static_cast<long long>(b),
                        static_cast<long long>(i), static_cast<long long>(h), value);
          return std::string(text);
        };
        const float* o = &ours.o[size_t(((b * p.seqlen_q + i) * p.heads + h) * p.v_dim())];
        for (int64_t c = 0; c < p.v_dim(); ++c)
          if (empty ? o[c] != 0 : !std::isfinite(o[c])) return wrong("an element of o", o[c]);
        if (!p.want_lse) continue;
        const float lse = ours.lse[size_t((b * p.heads + h) * p.seqlen_q + i)];
        if (empty ? lse != -INFINITY : !std::isfinite(lse)) return wrong("lse", lse);
      }
  return "";
}

static std::string compare(const char* what, double ours, double plain, double floor) {
  const double limit = 1.25 * plain + floor;
  if (ours <= limit) return "";
  char text[200];
  std::snprintf(text, sizeof text, "%s error %.4g exceeds %.4g = 1.25 * %.4g (plain float32 code) + %.4g", what, ours,
                limit, plain, floor);
  return text;
}

namespace {

// Of O relative to its size; of scores as such.
struct Floors {
  double o_rms = 0, o_max, score_rms = 0, score_max = 0;
};

// What the tensor cores' sums of products in 16 bits lose, relative to their size.
double truncated(const Terms& terms) { return std::max(8., double(terms.head_dim) / 16) * 0x1p-23; }

// The largest partial sums on the way to the scores of rows that see a key.
struct Partial {
  double rms = 0, max = 0;
  int64_t rows = 0;
};
Partial partial_of(const Expected& expected) {
  Partial size;
  double sum = 0;
  for (size_t i = 0; i < expected.reference.lse.size(); ++i) {
    const double partial = expected.plain.partial[i];
    if (!std::isfinite(expected.reference.lse[i]) || partial < 0) continue;
    sum += partial * partial, size.max = std::max(size.max, partial), ++size.rows;
  }
  size.rms = std::sqrt(sum / double(std::max<int64_t>(size.rows, 1)));
  return size;
}

Floors floors_of(const Terms& terms, const Expected& expected, int64_t elements) {
  const double u_p = tools::unit_roundoff(terms.dtype), u_o = tools::unit_roundoff(terms.output_dtype);
  const double u = std::max(u_p, u_o);
  const bool e4m3 = terms.dtype == FA3_DTYPE_E4M3;
  Floors floors{.o_max = u_p + u_o};
  const Partial partial = e4m3 || terms.transformed ? partial_of(expected) : Partial{};
  const double partial_unit = e4m3 ? 0x1p-12 : truncated(terms);
  floors.score_rms = partial_unit * partial.rms, floors.score_max = 2 * partial_unit * partial.max;
  if (e4m3) {
    floors.o_rms = u * (0.025 + (partial.rows ? 1 / std::sqrt(double(partial.rows)) : 0)) +
                   (terms.equal_weights ? u_p : 0);
  } else {
    double squares = 0, fourths = 0;
    for (const float x : expected.plain.squares) squares += x;
    for (const float x : expected.plain.fourths) fourths += x;
    const double numbers = std::min(double(elements) / 4, fourths > 0 ? squares * squares / fourths : INFINITY);
    floors.o_rms = u * (0.025 + (elements ? 1 / std::sqrt(numbers) : 0));
  }
  floors.o_rms += floors.score_rms, floors.o_max += floors.score_max;
  return floors;
}

}  // namespace

double score_noise(double lse) { return 3 * 0x1p-23 * (1 + std::abs(lse)); }

std::string judge(const Output& ours, const Expected& expected, const Terms& terms) {
  const Errors o = errors(ours.o, expected.reference.o), o_plain = errors(expected.plain.o, expected.reference.o);
  const Errors l_size = errors(expected.reference.lse, expected.reference.lse);
  Floors floors = floors_of(terms, expected, o.count);
  if (terms.transformed) floors.o_rms += score_noise(l_size.size_rms), floors.o_max += 2 * score_noise(l_size.size_max);
  std::string problem = compare("O's RMS", o.rms, o_plain.rms, floors.o_rms * o.size_rms);
  if (problem.empty()) problem = compare("O's largest", o.max, o_plain.max, floors.o_max * o.size_max);
  if (!problem.empty() || ours.lse.empty()) return problem;
  const Errors l = errors(ours.lse, expected.reference.lse),
               l_plain = errors(expected.plain.lse, expected.reference.lse);
  problem = compare("LSE's RMS", l.rms, l_plain.rms, truncated(terms) * (1 + l.size_rms) + floors.score_rms);
  if (problem.empty())
    problem = compare("LSE's largest", l.max, l_plain.max, 2 * truncated(terms) * (1 + l.size_max) + floors.score_max);
  return problem;
}

std::string verify(const Case& made, const Expected& expected) {
  const Problem& p = made.problem;
  if (std::string problem = check_poison(made); !problem.empty()) return problem;
  const Output ours = gather(made);
  if (std::string problem = check_empty_rows(p, ours); !problem.empty()) return problem;
  const bool equal_weights = p.pattern == Pattern::constant || p.pattern == Pattern::sink;
  return judge(ours, expected, {p.dtype, p.output_dtype(), p.head_dim, equal_weights});
}

Ratios ratios(const Case& made, const Expected& expected) {
  const Output ours = gather(made);
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : a > 0 ? INFINITY : 1; };
  const Errors o = errors(ours.o, expected.reference.o), o_plain = errors(expected.plain.o, expected.reference.o);
  Ratios result{ratio(o.rms, o_plain.rms), ratio(o.max, o_plain.max), 1, 1};
  if (!made.problem.want_lse) return result;
  const Errors l = errors(ours.lse, expected.reference.lse),
               l_plain = errors(expected.plain.lse, expected.reference.lse);
  result.lse_rms = ratio(l.rms, l_plain.rms);
  result.lse_max = ratio(l.max, l_plain.max);
  return result;
}

}  // namespace fa3::test
