#include "online_softmax.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "half.h"
#include "parallel.h"

namespace fa3::test {
namespace {

constexpr int64_t warp_rows = 16, warpgroup_rows = 64;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

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

// The forward kernels' softmax in 16 bits (ptx/tile/scores/speculative.cuh) for the rows of a warp, which all take the branch
// behind the exponentials if one of them does. A block's scores, -inf where a row does not see the key, become P.
class WarpSoftmax {
 public:
  struct Row {
    std::vector<float> scores, o;  // of a block: scores, then P in 16 bits; of all blocks so far: P V
    float m = lowest, l[4] = {}, excess[4] = {}, bound = 0;  // of the four lanes that share the row
    float alpha = 1;  // what O before this block is to be multiplied by

    float sum() const { return (l[0] + l[1]) + (l[2] + l[3]); }
    // What O of the row is to be multiplied by to fit sum().
    float fit() const {
      const float low = to_bf16(excess[0] + excess[1]), high = to_bf16(excess[2] + excess[3]);
      const float part = to_bf16(low + high) / (sum() == 0 ? 1 : sum());
      return std::fma(part, part - 1, 1.0f);
    }
  };
  std::vector<Row> rows;

  WarpSoftmax(int64_t count, int64_t columns, int64_t Bc, float scale, fa3_dtype dtype)
      : rows(static_cast<size_t>(count)), scale_(scale), dtype_(dtype),
        limit_(dtype == FA3_DTYPE_BF16 ? 0x1p64f : 0x1p15f) {
    for (Row& row : rows) row.scores.resize(size_t(Bc)), row.o.resize(size_t(columns));
  }

  // The first block; in the second one, if the bound is set late, all take the branch.
  void first(bool sets_bound_late) {
    for (Row& row : rows) {
      online(row);
      if (!sets_bound_late) set_bound(row);
    }
  }
  void masked() {
    for (Row& row : rows) online(row), set_bound(row);
  }
  void plain() {
    bool exceed = false, moves = false, lowers = true;
    std::vector<std::vector<float>> P;
    std::vector<Sums> sums;
    for (Row& row : rows) {
      P.push_back(row.scores), sums.push_back(exponentiate(row, P.back()));
      row.alpha = 1;
      for (const float sum : sums.back().of)
        exceed |= sum > row.bound, moves |= sum > limit_, lowers &= sum <= most_lowered;
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      if (moves && !lowers) {
        online(row);
      } else if (moves) {
        lower(row, P[r], sums[r]);
      } else {
        for (size_t lane = 0; lane < 4; ++lane) row.l[lane] += sums[r].of[lane];
        if (exceed) add_excess(row, P[r]);
        row.scores = P[r];
        round(row.scores);
      }
      if (exceed) set_bound(row);
    }
  }

 private:
  static constexpr float lowest = -1e30f, most_lowered = 0x1p96f;
  struct Sums {
    float of[4] = {};
  };
  static float to_bf16(float x) { return tools::round_to(x, FA3_DTYPE_BF16); }
  static size_t lane_of(size_t key) { return key / 2 % 4; }

  Sums exponentiate(const Row& row, std::vector<float>& P) const {
    Sums sums;
    for (size_t j = 0; j < P.size(); ++j) {
      P[j] = std::exp2(std::fma(P[j], scale_, -row.m));
      sums.of[lane_of(j)] += P[j];
    }
    return sums;
  }
  void round(std::vector<float>& P) const {
    for (float& p : P) p = tools::round_to(p, dtype_);
  }
  void online(Row& row) const {
    const float m = std::max(row.m, *std::max_element(row.scores.begin(), row.scores.end()) * scale_);
    row.alpha = std::exp2(row.m - m);
    row.m = m;
    const Sums sums = exponentiate(row, row.scores);
    for (size_t lane = 0; lane < 4; ++lane) {
      row.l[lane] = row.l[lane] * row.alpha + sums.of[lane];
      row.excess[lane] = to_bf16(row.excess[lane] * to_bf16(row.alpha));
    }
    round(row.scores);
  }
  void lower(Row& row, const std::vector<float>& P, const Sums& sums) const {
    const float moved = std::max(std::log2(*std::max_element(P.begin(), P.end())), 0.0f);
    row.alpha = std::exp2(-moved), row.m += moved;
    for (size_t lane = 0; lane < 4; ++lane) {
      row.l[lane] = row.l[lane] * row.alpha + sums.of[lane] * row.alpha;
      row.excess[lane] = to_bf16(row.excess[lane] * to_bf16(row.alpha));
    }
    for (size_t j = 0; j < P.size(); ++j) row.scores[j] = P[j] * row.alpha;
    round(row.scores);
  }
  void set_bound(Row& row) const { row.bound = std::min(2 * row.sum(), limit_); }
  void add_excess(Row& row, const std::vector<float>& P) const {
    float largest[4] = {};
    for (size_t j = 0; j < P.size(); ++j) largest[lane_of(j)] = std::max(largest[lane_of(j)], P[j]);
    for (size_t lane = 0; lane < 4; ++lane)
      row.excess[lane] =
          to_bf16(row.excess[lane] + to_bf16(tools::round_to(largest[lane], dtype_) - largest[lane]));
  }

  float scale_;
  fa3_dtype dtype_;
  float limit_;
};

// Rows of 16 bits from i on, as a kernel with blocks of Bc keys computes them. store is told the number of each, its O
// and its LSE.
template <class Store>
void online_warp(const Case& made, int64_t Bc, int64_t b, int64_t h, int64_t i, const Store& store) {
  const Problem& p = made.problem;
  const int64_t d = p.head_dim, dv = p.v_dim(), kv = h / (p.heads / p.heads_kv);
  const int64_t count = std::min(warp_rows, p.seqlen_q - i), seen = p.visible_keys(i + count - 1);
  const int64_t all_see = p.visible_keys(i / warpgroup_rows * warpgroup_rows);
  const bool causal = p.mask != FA3_MASK_NONE;
  WarpSoftmax softmax(count, dv, Bc, float(p.scale() * double(log2_e)), p.dtype);
  std::vector<float> q(static_cast<size_t>(count * d)), k(static_cast<size_t>(d)), v(static_cast<size_t>(Bc * dv));
  for (int64_t r = 0; r < count; ++r) made.read_row(0, b, i + r, h, &q[size_t(r * d)]);
  const int64_t last = (seen + Bc - 1) / Bc * Bc - Bc;
  for (int64_t first = last; first >= 0; first -= Bc) {
    const int64_t n = std::min(Bc, seen - first);
    for (WarpSoftmax::Row& row : softmax.rows) std::fill(row.scores.begin(), row.scores.end(), -INFINITY);
    for (int64_t j = 0; j < n; ++j) {
      made.read_row(1, b, first + j, kv, k.data());
      made.read_row(2, b, first + j, kv, &v[size_t(j * dv)]);
      for (int64_t r = 0; r < count; ++r) {
        if (first + j >= p.visible_keys(i + r)) continue;
        float sum = 0;
        for (int64_t c = 0; c < d; ++c) sum += q[size_t(r * d + c)] * k[size_t(c)];
        softmax.rows[size_t(r)].scores[size_t(j)] = sum;
      }
    }
    if (first == last) softmax.first(causal || p.seqlen_k - first < Bc / 4);
    else if (first + Bc > all_see) softmax.masked();
    else softmax.plain();
    for (WarpSoftmax::Row& row : softmax.rows)
      for (int64_t c = 0; c < dv; ++c) {
        float& sum = row.o[size_t(c)];
        sum *= row.alpha;
        for (int64_t j = 0; j < n; ++j) sum += row.scores[size_t(j)] * v[size_t(j * dv + c)];
      }
  }
  for (int64_t r = 0; r < count; ++r) {
    WarpSoftmax::Row& row = softmax.rows[size_t(r)];
    const float sum = row.sum(), weight = sum == 0 ? 0 : row.fit() / sum;
    for (float& x : row.o) x = sum == 0 ? 0 : x * weight;
    store(i + r, row.o.data(), sum == 0 ? -INFINITY : row.m * ln_2 + std::log(sum));
  }
}

// The same for a row in e4m3: Algorithm 2's arithmetic, with a reference of P that lags behind the maximum, and with
// the tensor cores' sums; two levels begin a new sum with each block.
void online_e4m3(const Case& made, int64_t Bc, int64_t b, int64_t h, int64_t i, float* o, float& lse) {
  const Problem& p = made.problem;
  const int64_t d = p.head_dim, dv = p.v_dim(), kv = h / (p.heads / p.heads_kv), visible = p.visible_keys(i);
  const float scale = float(p.scale() * double(log2_e)), threshold = 3.5f, factor = 32;
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
        sum = add_truncated(sum, &products[size_t(c)], std::min<int64_t>(32, d - c));
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
        sum = add_truncated(sum, &products[size_t(j)], std::min<int64_t>(32, n - j));
      o[c] = p.two_level ? o[c] + sum : sum;
    }
  }
  for (int64_t c = 0; c < dv; ++c) o[c] = visible ? o[c] / l + made.number(made.v_mean, b, kv, c) : 0;
  lse = visible ? (m * scale + std::log2(l / factor)) * ln_2 + made.number(made.lse_offset, b, h, i) : -INFINITY;
}

// Both for rows of a planned case: blocks from the last key that they see to the first one. What is stored of a row
// beside l and m: its O, not divided by l, and what that is to be multiplied by to fit l.
struct PlannedSums {
  float m, l;
  float factor = 1, fit = 1, v_scale = 1, offset = 0;
};
template <class Store>
void store_planned(const PlannedCase& made, const PlannedRow& row, const PlannedSums& sums, float* o,
                   const Store& store) {
  const PlannedProblem& p = made.problem;
  const auto& [m, l, factor, fit, v_scale, offset] = sums;
  const int64_t kv = row.head / p.group();
  const float sink = p.has_sinks ? (p.sinks[size_t(row.head)] - offset) * log2_e : -INFINITY;
  const float largest = std::max(l == 0 ? -INFINITY : m, sink);
  if (largest == -INFINITY) {
    std::fill(o, o + p.head_dim_v, 0.0f);
    return store(row, o, -INFINITY);
  }
  const float own = std::exp2(m - largest), sum = l / factor * own + std::exp2(sink - largest);
  const float share = l / factor * own / sum;  // of the keys
  for (int64_t c = 0; c < p.head_dim_v; ++c)
    o[c] = l == 0 ? 0 : o[c] * (own / factor / sum * v_scale * fit) + share * made.mean_of(row.sequence.number, kv, c);
  store(row, o, l == 0 ? sink / log2_e + offset : (largest + std::log2(sum)) / log2_e + offset);
}

// Some rows of a sequence and a head.
template <class Store>
void online_warp(const PlannedCase& made, int64_t Bc, std::span<const PlannedRow> of, const Store& store) {
  const PlannedProblem& p = made.problem;
  const PlannedSequence& s = of[0].sequence;
  const int64_t head = of[0].head, kv = head / p.group(), dv = p.head_dim_v;
  const float scale = float(p.scale()) * made.scale_of(made.k_scale, s.number, kv);
  WarpSoftmax softmax(int64_t(of.size()), dv, Bc, scale * log2_e, p.weight_dtype());
  const PlannedProblem::Range near = p.keys_near(s);
  const int64_t last = (near.end + Bc - 1) / Bc * Bc - Bc;
  bool is_first = true;
  for (int64_t first = last; first + Bc > near.begin; first -= Bc) {
    bool any = false, all = true;  // of keys that rows see
    for (size_t r = 0; r < of.size(); ++r)
      for (int64_t j = first; j < first + Bc; ++j) {
        float& score = softmax.rows[r].scores[size_t(j - first)] = -INFINITY;
        const bool sees = j >= near.begin && j < near.end && p.sees(s, of[r].query, j);
        any |= sees, all &= sees;
        if (!sees) continue;
        const int64_t q_at = made.query_position(made.q, s, of[r].query, head);
        const int64_t k_at = made.key_position(made.k, s, j, kv);
        score = 0;
        for (int64_t c = 0; c < p.head_dim; ++c)
          score += made.q.read(made.images, q_at + c) * made.k.read(made.images, k_at + c);
        if (p.softcap > 0 || p.has_slopes)
          score = p.transformed(score * float(p.scale()), s, of[r].query, head, j) / float(p.scale());
      }
    if (!any) continue;
    if (is_first) softmax.first(true);
    else if (!all) softmax.masked();
    else softmax.plain();
    is_first = false;
    for (WarpSoftmax::Row& row : softmax.rows) {
      for (float& x : row.o) x *= row.alpha;
      for (int64_t j = std::max(first, near.begin); j < std::min(first + Bc, near.end); ++j) {
        const float weight = row.scores[size_t(j - first)];
        if (weight == 0) continue;
        const int64_t v_at = made.key_position(made.v, s, j, kv);
        for (int64_t c = 0; c < dv; ++c) row.o[size_t(c)] += weight * made.v.read(made.images, v_at + c);
      }
    }
  }
  for (size_t r = 0; r < of.size(); ++r) {
    WarpSoftmax::Row& row = softmax.rows[r];
    const float v_scale = made.scale_of(made.v_scale, s.number, kv);
    store_planned(made, of[r], {.m = row.m, .l = row.sum(), .fit = row.fit(), .v_scale = v_scale}, row.o.data(), store);
  }
}

template <class Store>
void online_e4m3(const PlannedCase& made, int64_t Bc, const PlannedRow& row, const Store& store) {
  const PlannedProblem& p = made.problem;
  const auto& [s, query, head] = row;
  const int64_t kv = head / p.group(), q_at = made.query_position(made.q, s, query, head);
  const float scale = float(p.scale()) * log2_e * made.scale_of(made.q_scale, s.number, head) *
                      made.scale_of(made.k_scale, s.number, kv);
  constexpr float factor = 16;
  std::vector<float> products(static_cast<size_t>(std::max(p.head_dim, Bc)));
  const auto add = [&](float sum, int64_t count) {
    for (int64_t n = 0; n < count; n += 32)
      sum = add_truncated(sum, &products[size_t(n)], std::min<int64_t>(32, count - n));
    return sum;
  };
  float m = -INFINITY, l = 0;
  std::vector<float> o(size_t(p.head_dim_v), 0.0f);
  const PlannedProblem::Range near = p.keys_near(s);
  for (int64_t first = (near.end + Bc - 1) / Bc * Bc - Bc; first + Bc > near.begin; first -= Bc) {
    std::vector<float> scores(static_cast<size_t>(Bc), -INFINITY);
    float block_max = m, block_sum = 0;
    for (int64_t j = std::max(first, near.begin); j < std::min(first + Bc, near.end); ++j) {
      if (!p.sees(s, query, j)) continue;
      const int64_t k_at = made.key_position(made.k, s, j, kv);
      for (int64_t c = 0; c < p.head_dim; ++c)
        products[size_t(c)] = made.q.read(made.images, q_at + c) * made.k.read(made.images, k_at + c);
      scores[size_t(j - first)] = add(0, p.head_dim);
      block_max = std::max(block_max, scores[size_t(j - first)]);
    }
    if (block_max == -INFINITY) continue;
    const float rescale = std::exp2((m - block_max) * scale);
    m = block_max;
    for (float& x : o) x *= rescale;
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
      o[size_t(c)] = add(o[size_t(c)], int64_t(v_at.size()));
    }
    l = l * rescale + block_sum;
  }
  store_planned(made, row,
                {.m = m * scale, .l = l, .factor = factor, .v_scale = made.scale_of(made.v_scale, s.number, kv),
                .offset = made.offset_of(s, query, head)},
                o.data(), store);
}

}  // namespace

void online_forward(PlannedCase& made, int64_t Bc) {
  const PlannedProblem& p = made.problem;
  const int64_t rows_each = p.is_e4m3() ? 1 : warp_rows;
  std::vector<std::vector<PlannedRow>> warps;
  for (int64_t b = 0; b < p.batch; ++b) {
    const PlannedSequence s = p.sequence(b);
    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t query = 0; query < s.queries; ++query) {
        if (query % rows_each == 0) warps.emplace_back();
        warps.back().push_back({s, query, head});
      }
  }
  const auto store = [&](const PlannedRow& row, const float* o, float lse) {
    const int64_t at = made.query_position(made.o, row.sequence, row.query, row.head);
    for (int64_t c = 0; c < p.head_dim_v; ++c) made.o.write(made.images, at + c, o[c] / made.output_scale());
    if (p.want_lse)
      made.lse.write(made.images, made.query_position(made.lse, row.sequence, row.query, row.head), lse);
  };
  tools::parallel_for(int64_t(warps.size()), 1, [&](int64_t begin, int64_t end) {
    const std::vector<float> poison(size_t(p.head_dim_v), NAN);
    for (int64_t n = begin; n < end; ++n) {
      const std::vector<PlannedRow>& rows = warps[size_t(n)];
      if (p.poisoned[size_t(rows[0].sequence.number)])
        for (const PlannedRow& row : rows) store(row, poison.data(), NAN);
      else if (p.is_e4m3()) online_e4m3(made, Bc, rows[0], store);
      else online_warp(made, Bc, rows, store);
    }
  });
}

void online_forward(Case& made, int64_t Bc) {
  const Problem& p = made.problem;
  const float o_scale = made.output_scale();
  const int64_t rows_each = p.is_e4m3() ? 1 : warp_rows, warps = (p.seqlen_q + rows_each - 1) / rows_each;
  tools::parallel_for(p.batch * p.heads * warps, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> o_e4m3(size_t(p.v_dim()));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t first = n % warps * rows_each, h = n / warps % p.heads, b = n / warps / p.heads;
      const auto store = [&](int64_t i, const float* o, float lse) {
        const int64_t o_index[4] = {b, i, h, 0}, lse_index[3] = {b, h, i};
        for (int64_t c = 0; c < p.v_dim(); ++c)
          made.o.write(made.images, made.o.layout.position(o_index) + c, o[c] / o_scale);
        if (p.want_lse) made.lse.data<float>(made.images)[made.lse.layout.position(lse_index)] = lse;
      };
      if (p.is_e4m3()) {
        float lse = 0;
        online_e4m3(made, Bc, b, h, first, o_e4m3.data(), lse);
        store(first, o_e4m3.data(), lse);
      } else {
        online_warp(made, Bc, b, h, first, store);
      }
    }
  });
}

}  // namespace fa3::test
