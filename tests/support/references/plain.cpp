#include "plain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "half.h"
#include "parallel.h"
#include "random.h"
#include "wider.h"

namespace fa3::test {

namespace {

// Rows [first, last) of one (batch, head) of q, k or v (0, 1, 2) as float32, v's times their scales; transposed if
// wanted: S then sums over head_dim in order, for many keys at a time.
std::vector<float> widen(const Case& made, int tensor, int64_t b, int64_t h, int64_t first, int64_t last,
                         bool transposed) {
  const int64_t rows = last - first, d = tensor == 2 ? made.problem.v_dim() : made.problem.head_dim;
  constexpr int64_t together = 16;  // rows whose columns fill a cache line of a transposed row
  std::vector<float> out(size_t(rows * d)), block(transposed ? size_t(together * d) : 0);
  for (int64_t i = 0; i < rows; i += together) {
    const int64_t n = std::min(together, rows - i);
    float* const read = transposed ? block.data() : &out[size_t(i * d)];
    for (int64_t r = 0; r < n; ++r) {
      made.read_row(tensor, b, first + i + r, h, read + r * d);
      const float scale = tensor == 2 ? made.scale_of(tensor, b, first + i + r, h) : 1;
      for (int64_t c = 0; c < d; ++c) read[r * d + c] *= scale;
    }
    for (int64_t c = 0; transposed && c < d; ++c)
      for (int64_t r = 0; r < n; ++r) out[size_t(c * rows + i + r)] = block[size_t(r * d + c)];
  }
  return out;
}

}  // namespace

FA3_WIDER void add_products(bool e4m3, int64_t count, const float* a, const float* b, int64_t stride, int64_t width,
                            float* sum) {
  if (!e4m3) {
    constexpr int64_t together = 64, rows = 32;  // so many sums stay in registers, and rows of b in the cache
    for (int64_t begin = 0; begin < count; begin += rows) {
      const int64_t end = std::min(count, begin + rows);
      int64_t first = 0;
      for (; first + together <= width; first += together) {
        float sums[together];
        std::copy_n(sum + first, together, sums);
        for (int64_t i = begin; i < end; ++i)
          for (int64_t j = 0; j < together; ++j) sums[j] += a[i] * b[i * stride + first + j];
        std::copy_n(sums, together, sum + first);
      }
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = first; j < width; ++j) sum[j] += a[i] * b[i * stride + j];
    }
    return;
  }
  constexpr int64_t most = 256;
  for (int64_t first = 0; first < width; first += most) {
    const int64_t n = std::min(most, width - first);
    float largest[most], unit[most], inverse[most], units[most];  // unit: a power of two, so its inverse is exact
    for (int64_t j = 0; j < n; ++j) largest[j] = std::fabs(sum[first + j]);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < n; ++j) largest[j] = std::max(largest[j], std::fabs(a[i] * b[i * stride + first + j]));
    for (int64_t j = 0; j < n; ++j) {
      const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(largest[j]) & 0x7f800000);
      unit[j] = std::max(power, 0x1p-100f) * 0x1p-13f;
      inverse[j] = 1 / unit[j];
      units[j] = float(int32_t(sum[first + j] * inverse[j]));
    }
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < n; ++j) units[j] += float(int32_t(a[i] * b[i * stride + first + j] * inverse[j]));
    for (int64_t j = 0; j < n; ++j) sum[first + j] = units[j] * unit[j];
  }
}

namespace {

struct QueryRow {
  int64_t b, h, kv, i;
};
// What is told of a row beside o (Output).
struct RowNumbers {
  float lse = -std::numeric_limits<float>::infinity(), partial = 0, squares = 0, fourths = 0;
};

RowNumbers row(const Case& made, const QueryRow& at, const float* q, const std::vector<float>& k_transposed,
               const std::vector<float>& v, std::vector<float>& s, float* o) {
  const Problem& p = made.problem;
  const bool e4m3 = p.is_e4m3();
  const int64_t d = p.head_dim, dv = p.v_dim(), visible = p.visible_keys(at.i);
  for (int64_t c = 0; c < dv; ++c) o[c] = 0;
  RowNumbers numbers;
  if (visible == 0) return numbers;
  const float scale = float(p.scale()) * made.scale_of(0, at.b, at.i, at.h);
  s.assign(size_t(visible), 0.0f);
  constexpr int64_t step = 32;
  std::vector<float> largest(e4m3 ? size_t(visible) : 0, 0.0f);
  for (int64_t c = 0; c < d; c += step) {
    add_products(e4m3, std::min(step, d - c), q + c, &k_transposed[size_t(c * p.seqlen_k)], p.seqlen_k, visible,
                 s.data());
    for (size_t j = 0; j < largest.size(); ++j) largest[j] = std::max(largest[j], std::fabs(s[j]));
  }
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t j = 0; j < visible; ++j) {
    const float scale_of_key = e4m3 ? scale * made.scale_of(1, at.b, j, at.kv) : scale;
    s[size_t(j)] *= scale_of_key;
    maximum = std::fmax(maximum, s[size_t(j)]);
    if (e4m3) numbers.partial = std::max(numbers.partial, largest[size_t(j)] * scale_of_key);
  }
  const uint64_t number = uint64_t((at.b * p.heads + at.h) * p.seqlen_q + at.i);
  const float factor = e4m3 ? 16 * std::exp2(float(tools::mix(p.seed ^ 9, number) >> 40) * 0x1p-24f) : 1;
  for (float& x : s) {
    const float e = std::exp(x - maximum);
    sum += e;
    numbers.squares += e * e;
    numbers.fourths += e * e * e * e;
    x = tools::round_to(e * factor, p.dtype);
  }
  if (!e4m3) add_products(false, visible, s.data(), v.data(), dv, dv, o);
  std::vector<float> level(e4m3 ? size_t(dv) : 0, 0.0f);
  // From the last key to the first, as the kernels do.
  for (int64_t first = (visible - 1) / step * step; e4m3 && first >= 0; first -= step) {
    add_products(true, std::min(step, visible - first), &s[size_t(first)], &v[size_t(first * dv)], dv, dv,
                 level.data());
    if (first > 0 && !(p.two_level && first % two_level_keys == 0)) continue;
    for (int64_t c = 0; c < dv; ++c) o[c] += std::exchange(level[size_t(c)], 0.0f);
  }
  const float o_scale = made.output_scale();
  for (int64_t c = 0; c < dv; ++c) {
    const float mean = made.number(made.v_mean, at.b, at.kv, c);
    o[c] = tools::round_to((o[c] / (sum * factor) + mean) / o_scale, p.output_dtype()) * o_scale;
  }
  numbers.lse = maximum + std::log(sum) + made.number(made.lse_offset, at.b, at.h, at.i);
  numbers.squares /= sum * sum;
  numbers.fourths /= sum * sum * sum * sum;
  return numbers;
}

}  // namespace

Output plain_forward(const Case& made) {
  const Problem& p = made.problem;
  Output out;
  out.o.resize(size_t(p.batch * p.seqlen_q * p.heads * p.v_dim()));
  out.lse.resize(size_t(p.batch * p.heads * p.seqlen_q));
  for (std::vector<float>* numbers : {&out.partial, &out.squares, &out.fourths}) numbers->resize(out.lse.size());
  if (out.lse.empty()) return out;
  // Some K/V heads at a time, as all rows of the query heads that share one read its K and V.
  constexpr int64_t together = 64, part_rows = 64;
  const int64_t kv_heads = p.batch * p.heads_kv, group = p.heads / p.heads_kv;
  const int64_t parts = (p.seqlen_q + part_rows - 1) / part_rows;
  std::vector<std::vector<float>> k(together), v(together);
  for (int64_t first_kv = 0; first_kv < kv_heads; first_kv += together) {
    const int64_t heads_now = std::min(together, kv_heads - first_kv);
    tools::parallel_for(heads_now, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const int64_t b = (first_kv + n) / p.heads_kv, kv = (first_kv + n) % p.heads_kv;
        k[size_t(n)] = widen(made, 1, b, kv, 0, p.seqlen_k, true);
        v[size_t(n)] = widen(made, 2, b, kv, 0, p.seqlen_k, false);
      }
    });
    // A work item is a part of one head's rows, so that few heads still use all cores.
    tools::parallel_for(heads_now * group * parts, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> s;
      for (int64_t n = begin; n < end; ++n) {
        const int64_t which = n / parts / group, b = (first_kv + which) / p.heads_kv;
        const int64_t kv = (first_kv + which) % p.heads_kv, h = kv * group + n / parts % group;
        const int64_t first = n % parts * part_rows, last = std::min(p.seqlen_q, first + part_rows);
        const std::vector<float> q = widen(made, 0, b, h, first, last, false);
        for (int64_t i = first; i < last; ++i) {
          const size_t at = size_t((b * p.heads + h) * p.seqlen_q + i);
          const RowNumbers numbers = row(made, {b, h, kv, i}, &q[size_t((i - first) * p.head_dim)], k[size_t(which)],
                                         v[size_t(which)], s,
                                         &out.o[size_t(((b * p.seqlen_q + i) * p.heads + h) * p.v_dim())]);
          out.lse[at] = numbers.lse, out.partial[at] = numbers.partial;
          out.squares[at] = numbers.squares, out.fourths[at] = numbers.fourths;
        }
      }
    });
  }
  return out;
}

}  // namespace fa3::test
