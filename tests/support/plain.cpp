#include "plain.h"

#include <cmath>
#include <limits>

#include "half.h"
#include "parallel.h"

namespace fa3::test {

namespace {

// Rows of one (batch, head) as float32, transposed if wanted: S then sums over head_dim in order, for many keys at a
// time.
std::vector<float> widen(const Case& made, const View& view, int64_t b, int64_t h, bool transposed) {
  const int64_t rows = view.layout.dim[1], d = view.layout.dim[3];
  const uint16_t* data = view.data<uint16_t>(made.images);
  std::vector<float> out(size_t(rows * d));
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t index[4] = {b, i, h, 0};
    const uint16_t* row = data + view.layout.position(index);
    for (int64_t c = 0; c < d; ++c)
      out[size_t(transposed ? c * rows + i : i * d + c)] = tools::from_half(row[c], view.dtype);
  }
  return out;
}

void row(const Problem& p, const float* q, const std::vector<float>& k_transposed, const std::vector<float>& v,
         int64_t visible, std::vector<float>& s, float* o, float& lse) {
  const int64_t d = p.head_dim;
  for (int64_t c = 0; c < d; ++c) o[c] = 0;
  lse = -std::numeric_limits<float>::infinity();
  if (visible == 0) return;
  s.assign(size_t(visible), 0.0f);
  for (int64_t c = 0; c < d; ++c) {
    const float* keys = &k_transposed[size_t(c * p.seqlen_k)];
    for (int64_t j = 0; j < visible; ++j) s[size_t(j)] += q[c] * keys[j];
  }
  const float scale = float(p.scale());
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
  for (float& x : s) maximum = std::fmax(maximum, x *= scale);
  for (int64_t j = 0; j < visible; ++j) {
    const float e = std::exp(s[size_t(j)] - maximum);
    sum += e;
    const float rounded = tools::from_half(tools::to_half(e, p.dtype), p.dtype);
    for (int64_t c = 0; c < d; ++c) o[c] += rounded * v[size_t(j * d + c)];
  }
  for (int64_t c = 0; c < d; ++c) o[c] = tools::from_half(tools::to_half(o[c] / sum, p.dtype), p.dtype);
  lse = maximum + std::log(sum);
}

}  // namespace

Output plain_forward(const Case& made) {
  const Problem& p = made.problem;
  Output out;
  out.o.resize(size_t(p.batch * p.seqlen_q * p.heads * p.head_dim));
  out.lse.resize(size_t(p.batch * p.heads * p.seqlen_q));
  if (out.lse.empty()) return out;
  // A work item is a part of one head's rows, so that few heads still use all cores.
  constexpr int64_t part_rows = 64;
  const int64_t parts = (p.seqlen_q + part_rows - 1) / part_rows;
  tools::parallel_for(p.batch * p.heads * parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> q, k, v, s;
    int64_t widened = -1;
    for (int64_t n = begin; n < end; ++n) {
      const int64_t bh = n / parts, b = bh / p.heads, h = bh % p.heads, kv = h / (p.heads / p.heads_kv);
      if (widened != bh) {
        q = widen(made, made.q, b, h, false);
        k = widen(made, made.k, b, kv, true);
        v = widen(made, made.v, b, kv, false);
        widened = bh;
      }
      const int64_t first = n % parts * part_rows, last = std::min(p.seqlen_q, first + part_rows);
      for (int64_t i = first; i < last; ++i)
        row(p, &q[size_t(i * p.head_dim)], k, v, p.visible_keys(i), s,
            &out.o[size_t(((b * p.seqlen_q + i) * p.heads + h) * p.head_dim)], out.lse[size_t(bh * p.seqlen_q + i)]);
    }
  });
  return out;
}

}  // namespace fa3::test
