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
  out.o.resize(size_t(p.batch * p.seqlen_q * p.heads * p.head_dim));
  out.lse.resize(size_t(p.batch * p.heads * p.seqlen_q));
  fa3_forward_params params = made.host_params();
  params.o = Layout::packed({p.batch, p.seqlen_q, p.heads, p.head_dim}).tensor(out.o.data(), FA3_DTYPE_FP32);
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
  const uint16_t* o = made.o.data<uint16_t>(made.images);
  made.o.layout.for_each([&](int64_t position) { out.o.push_back(tools::from_half(o[position], made.o.dtype)); });
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
        const float* o = &ours.o[size_t(((b * p.seqlen_q + i) * p.heads + h) * p.head_dim)];
        for (int64_t c = 0; c < p.head_dim; ++c)
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

std::string verify(const Case& made, const Expected& expected) {
  const Problem& p = made.problem;
  if (std::string problem = check_poison(made); !problem.empty()) return problem;
  const Output ours = gather(made);
  if (std::string problem = check_empty_rows(p, ours); !problem.empty()) return problem;

  const double u = tools::unit_roundoff(p.dtype);
  const Errors o = errors(ours.o, expected.reference.o), o_plain = errors(expected.plain.o, expected.reference.o);
  const double scatter = o.count ? 1 / std::sqrt(double(o.count)) : 0;
  std::string problem = compare("O's RMS", o.rms, o_plain.rms, u * o.size_rms * (0.025 + scatter));
  if (problem.empty()) problem = compare("O's largest", o.max, o_plain.max, 2 * u * o.size_max);
  if (!problem.empty() || !p.want_lse) return problem;
  const Errors l = errors(ours.lse, expected.reference.lse),
               l_plain = errors(expected.plain.lse, expected.reference.lse);
  const double truncated = std::max(8., double(p.head_dim) / 16) * 0x1p-23;
  problem = compare("LSE's RMS", l.rms, l_plain.rms, truncated * (1 + l.size_rms));
  if (problem.empty()) problem = compare("LSE's largest", l.max, l_plain.max, 2 * truncated * (1 + l.size_max));
  return problem;
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
