#include "online_softmax.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "half.h"
#include "parallel.h"

namespace fa3::test {
namespace {

// Up to 32 products as the FP8 tensor cores add them to a sum (plain.h).
float add_truncated(float sum, const float* products, int64_t count) {
  float largest = std::fabs(sum);
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(products[i]));
  if (largest == 0) return sum;
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 13);
  double result = std::trunc(sum / unit);
  for (int64_t i = 0; i < count; ++i) result += std::trunc(products[i] / unit);
  return float(result * unit);
}

// Algorithm 2's arithmetic for one row: blocks of Bc keys, running maximum, P rounded against it, O rescaled in
// float32. For e4m3 with the tensor cores' sums, and with a reference of P that lags behind the maximum; two levels
// begin a new sum with each block.
void online_row(const Case& made, int64_t Bc, int64_t b, int64_t h, int64_t i, float* o, float& lse) {
  const Problem& p = made.problem;
  const int64_t d = p.head_dim, dv = p.v_dim(), kv = h / (p.heads / p.heads_kv), visible = p.visible_keys(i);
  const bool e4m3 = p.is_e4m3();
  const float scale = float(p.scale() * 1.4426950408889634), threshold = e4m3 ? 3.5f : 0, factor = e4m3 ? 32 : 1;
  std::vector<float> q(static_cast<size_t>(d)), k(q), products(static_cast<size_t>(std::max(d, Bc)));
  std::vector<float> v(size_t(Bc * dv)), rounded(static_cast<size_t>(Bc));
  made.read_row(0, b, i, h, q.data());
  float m = -INFINITY, l = 0;
  std::fill(o, o + dv, 0.0f);
  for (int64_t first = (visible + Bc - 1) / Bc * Bc - Bc; first >= 0; first -= Bc) {
    const int64_t n = std::min(Bc, visible - first);
    std::vector<float> s(size_t(n), 0.0f);
    float block_max = m;
    for (int64_t j = 0; j < n; ++j) {
      made.read_row(1, b, first + j, kv, k.data());
      made.read_row(2, b, first + j, kv, &v[size_t(j * dv)]);
      const float v_scale = made.scale_of(2, b, first + j, kv);
      for (int64_t c = 0; c < dv; ++c) v[size_t(j * dv + c)] *= v_scale;
      float& sum = s[size_t(j)];
      for (int64_t c = 0; c < d; ++c) products[size_t(c)] = q[size_t(c)] * k[size_t(c)];
      for (int64_t c = 0; c < d; c += 32)
        if (e4m3) sum = add_truncated(sum, &products[size_t(c)], std::min<int64_t>(32, d - c));
      for (int64_t c = 0; c < d; ++c)
        if (!e4m3) sum += products[size_t(c)];
      sum *= made.scale_of(0, b, i, h) * made.scale_of(1, b, first + j, kv);
      block_max = std::max(block_max, sum);
    }
    if (!(block_max * scale <= m * scale + threshold)) {
      const float rescale = std::exp2((m - block_max) * scale);
      m = block_max;
      l *= rescale;
      for (int64_t c = 0; c < dv; ++c) o[c] *= rescale;
    }
    // Summed up for itself, as in Algorithm 2: added to l one by one, thousands of equal weights are all rounded the
    // same way.
    float block_sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      const float e = factor * std::exp2(std::fma(s[size_t(j)], scale, -m * scale));
      block_sum += e;
      rounded[size_t(j)] = tools::round_to(e, p.dtype);
    }
    l += block_sum;
    for (int64_t c = 0; c < dv; ++c) {
      float sum = p.two_level ? 0 : o[c];
      for (int64_t j = 0; j < n; ++j) products[size_t(j)] = rounded[size_t(j)] * v[size_t(j * dv + c)];
      for (int64_t j = 0; j < n; j += 32)
        if (e4m3) sum = add_truncated(sum, &products[size_t(j)], std::min<int64_t>(32, n - j));
      for (int64_t j = 0; j < n; ++j)
        if (!e4m3) sum += products[size_t(j)];
      o[c] = p.two_level ? o[c] + sum : sum;
    }
  }
  for (int64_t c = 0; c < dv; ++c) o[c] = visible ? o[c] / l + made.number(made.v_mean, b, kv, c) : 0;
  lse = visible ? (m * scale + std::log2(l / factor)) * 0.6931471805599453f + made.number(made.lse_offset, b, h, i)
                : -INFINITY;
}

// The same for a row of a served case: blocks from the last key that it sees to the first one.
void online_row(const ServedCase& made, int64_t Bc, const ServedRow& row, float* o, float& lse) {
  const ServedProblem& p = made.problem;
  const auto& [s, query, head] = row;
  constexpr float log2_e = 1.4426950408889634f;
  const bool e4m3 = p.is_e4m3();
  const int64_t kv = head / p.group(), q_at = made.query_position(made.q, s, query, head);
  const float scale = float(p.scale()) * log2_e * made.scale_of(made.q_scale, s.number, head) *
                      made.scale_of(made.k_scale, s.number, kv);
  const float v_scale = made.scale_of(made.v_scale, s.number, kv), factor = e4m3 ? 16 : 1;
  const float offset = made.offset_of(s, query, head);
  const float sink = p.has_sinks ? (p.sinks[size_t(head)] - offset) * log2_e : -INFINITY;
  std::vector<float> products(static_cast<size_t>(std::max(p.head_dim, Bc)));
  // Of so many products, in e4m3 as the tensor cores add them.
  const auto add = [&](float sum, int64_t count) {
    for (int64_t n = 0; n < count; n += 32)
      if (e4m3) sum = add_truncated(sum, &products[size_t(n)], std::min<int64_t>(32, count - n));
    for (int64_t n = 0; n < count; ++n)
      if (!e4m3) sum += products[size_t(n)];
    return sum;
  };
  float m = -INFINITY, l = 0;
  std::fill(o, o + p.head_dim_v, 0.0f);
  const ServedProblem::Range near = p.keys_near(s);
  for (int64_t first = (near.end + Bc - 1) / Bc * Bc - Bc; first + Bc > near.begin; first -= Bc) {
    std::vector<float> scores(static_cast<size_t>(Bc), -INFINITY);
    float block_max = m, block_sum = 0;
    for (int64_t j = std::max(first, near.begin); j < std::min(first + Bc, near.end); ++j) {
      if (!p.sees(s, query, j)) continue;
      const int64_t k_at = made.key_position(made.k, s, j, kv);
      for (int64_t c = 0; c < p.head_dim; ++c)
        products[size_t(c)] = made.q.read(made.images, q_at + c) * made.k.read(made.images, k_at + c);
      float sum = add(0, p.head_dim);
      if (p.softcap > 0 || p.has_slopes)
        sum = p.transformed(sum * float(p.scale()), s, query, head, j) / float(p.scale());
      scores[size_t(j - first)] = sum;
      block_max = std::max(block_max, sum);
    }
    if (block_max == -INFINITY) continue;
    const float rescale = std::exp2((m - block_max) * scale);
    m = block_max;
    for (int64_t c = 0; c < p.head_dim_v; ++c) o[c] *= rescale;
    std::vector<int64_t> v_at;
    std::vector<float> weights;
    for (int64_t j = first; j < first + Bc; ++j) {
      if (scores[size_t(j - first)] == -INFINITY) continue;
      const float e = factor * std::exp2(std::fma(scores[size_t(j - first)], scale, -m * scale));
      weights.push_back(tools::round_to(e, p.dtype));
      v_at.push_back(made.key_position(made.v, s, j, kv));
      block_sum += e;
    }
    for (int64_t c = 0; c < p.head_dim_v; ++c) {
      for (size_t n = 0; n < v_at.size(); ++n) products[n] = weights[n] * made.v.read(made.images, v_at[n] + c);
      o[c] = add(o[c], int64_t(v_at.size()));
    }
    l = l * rescale + block_sum;
  }
  const float largest = std::max(m * scale, sink);
  if (largest == -INFINITY) {
    lse = -INFINITY;
    return;
  }
  const float own = std::exp2(m * scale - largest), sum = l / factor * own + std::exp2(sink - largest);
  const float share = l / factor * own / sum;  // of the keys
  for (int64_t c = 0; c < p.head_dim_v; ++c)
    o[c] = m == -INFINITY ? 0 : o[c] * (own / factor / sum * v_scale) + share * made.mean_of(s.number, kv, c);
  lse = m == -INFINITY ? sink / log2_e + offset : (largest + std::log2(sum)) / log2_e + offset;
}

}  // namespace

void online_forward(ServedCase& made, int64_t Bc) {
  const ServedProblem& p = made.problem;
  std::vector<ServedRow> rows;
  for (int64_t b = 0; b < p.batch; ++b) {
    const ServedSequence s = p.sequence(b);
    for (int64_t n = 0; n < s.queries * p.heads; ++n) rows.push_back({s, n / p.heads, n % p.heads});
  }
  tools::parallel_for(int64_t(rows.size()), 8, [&](int64_t begin, int64_t end) {
    std::vector<float> o(size_t(p.head_dim_v));
    for (int64_t n = begin; n < end; ++n) {
      const auto& [s, query, head] = rows[size_t(n)];
      float lse = NAN;
      if (p.poisoned[size_t(s.number)]) std::fill(o.begin(), o.end(), NAN);
      else online_row(made, Bc, rows[size_t(n)], o.data(), lse);
      const int64_t at = made.query_position(made.o, s, query, head);
      for (int64_t c = 0; c < p.head_dim_v; ++c)
        made.o.write(made.images, at + c, o[size_t(c)] / made.output_scale());
      if (p.want_lse) made.lse.write(made.images, made.query_position(made.lse, s, query, head), lse);
    }
  });
}

void online_forward(Case& made, int64_t Bc) {
  const Problem& p = made.problem;
  const float o_scale = made.output_scale();
  tools::parallel_for(p.batch * p.heads * p.seqlen_q, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> o(size_t(p.v_dim()));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t i = n % p.seqlen_q, h = n / p.seqlen_q % p.heads, b = n / p.seqlen_q / p.heads;
      float lse = 0;
      online_row(made, Bc, b, h, i, o.data(), lse);
      const int64_t o_index[4] = {b, i, h, 0}, lse_index[3] = {b, h, i};
      for (int64_t c = 0; c < p.v_dim(); ++c)
        made.o.write(made.images, made.o.layout.position(o_index) + c, o[size_t(c)] / o_scale);
      if (p.want_lse) made.lse.data<float>(made.images)[made.lse.layout.position(lse_index)] = lse;
    }
  });
}

}  // namespace fa3::test
