// fa3_quantize in float64, a row at a time, by the formulas of fa3.h. It is the oracle of the kernels and shares
// nothing with them. Rows are computed anew wherever they are needed, so no memory is.
#include <algorithm>
#include <cmath>

#include "cpu/number.h"
#include "cpu/rotate.h"
#include "quantize/quantize.h"

namespace fa3 {
namespace {

using Granularity = QuantizeParams::Granularity;
constexpr int max_d = 256;

float& number(const View& view, int64_t i, int64_t j, int64_t k) {
  return static_cast<float*>(view.data)[i * view.stride[0] + j * view.stride[1] + k * view.stride[2]];
}

bool sign_is_negative(uint64_t seed, int64_t column) {
  uint64_t z = seed + static_cast<uint64_t>(column) + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return (z ^ (z >> 31)) >> 63;
}

// Columns [0, n) times the Hadamard matrix of n rows, without its factor: from the halves' products.
void hadamard(double* x, int64_t n) {
  if (n == 1) return;
  const int64_t half = n / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double a = x[i], b = x[i + half];
    x[i] = a + b;
    x[i + half] = a - b;
  }
  hadamard(x, half);
  hadamard(x + half, half);
}

// A head of a batch entry.
struct QuantizedHead {
  const QuantizeProblem& p;
  int64_t batch, head;

  void transformed(int64_t row, double* x) const {
    const int64_t index = batch * p.x.stride[0] + row * p.x.stride[1] + head * p.x.stride[2];
    read_elements(static_cast<const uint16_t*>(p.x.data) + index, 1, static_cast<int>(p.head_dim), p.x.dtype, x);
    rotate(p.rotary, row, x);
    if (!p.incoherent) return;
    int64_t n = 1;
    while (p.head_dim % (2 * n) == 0) n *= 2;
    for (int64_t c = 0; c < p.head_dim; ++c)
      if (sign_is_negative(p.seed, c)) x[c] = -x[c];
    for (int64_t c = 0; c < p.head_dim; c += n) hadamard(x + c, n);
    for (int64_t c = 0; c < p.head_dim; ++c) x[c] /= std::sqrt(static_cast<double>(n));
  }

  // Less the mean as it was written: y is what remains to it.
  void difference(int64_t row, double* x) const {
    transformed(row, x);
    for (int64_t c = 0; p.has_mean && c < p.head_dim; ++c) x[c] -= number(p.mean, batch, head, c);
  }

  void write_mean() const {
    double sum[max_d] = {}, x[max_d];
    for (int64_t row = 0; row < p.rows; ++row) {
      transformed(row, x);
      for (int64_t c = 0; c < p.head_dim; ++c) sum[c] += x[c];
    }
    for (int64_t c = 0; c < p.head_dim; ++c)
      number(p.mean, batch, head, c) = to_float(sum[c] / static_cast<double>(p.rows));
  }

  double largest(int64_t first, int64_t end) const {
    double most = 0, x[max_d];
    for (int64_t row = first; row < end; ++row) {
      difference(row, x);
      for (int64_t c = 0; c < p.head_dim; ++c)
        if (std::isfinite(x[c])) most = std::fmax(most, std::fabs(x[c]));
    }
    return most;
  }

  uint8_t& y(int64_t row, int64_t column) const {
    uint8_t* const bytes = static_cast<uint8_t*>(p.y.data) + batch * p.y.stride[0] + head * p.y.stride[2];
    if (!p.tiles) return bytes[row * p.y.stride[1] + column];
    const int64_t key = row % 16, a = column / 16, r = column % 16 / 2, c = column % 2;
    const int64_t b = key / 8, q = key % 8 / 2, e = key % 2;
    return bytes[row / 16 * p.y.stride[1] + (16 * a + 8 * c + r) * 16 + 4 * q + 2 * b + e];
  }

  // The product is exact, and so is every quotient in the middle between two numbers of e4m3.
  void write_row(int64_t row, double range) const {
    double x[max_d];
    difference(row, x);
    for (int64_t c = 0; c < p.head_dim; ++c) y(row, c) = to_e4m3(x[c] * 448 / range);
  }

  void write_lse_offset(int64_t row) const {
    double x[max_d], sum = 0;
    transformed(row, x);
    const int64_t head_kv = head / (p.heads / p.heads_kv);
    for (int64_t c = 0; c < p.head_dim; ++c) sum += x[c] * number(p.k_mean, batch, head_kv, c);
    number(p.lse_offset, batch, head, row) = to_float(p.softmax_scale * sum);
  }

  // Rounded to nearest even; what exceeds 448 becomes 448.
  static uint8_t to_e4m3(double value) {
    const double magnitude = std::fabs(value);
    const int sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) return 0x7f;
    if (magnitude >= 448) return static_cast<uint8_t>(sign | 0x7e);
    const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
    const int eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
    return static_cast<uint8_t>(sign | ((exponent + 6) * 8 + eighths));  // 16 eighths are the next exponent's 8
  }
};

// What becomes 448.
double range_of(double largest) { return largest == 0 ? 448 : std::fmax(largest, 448 * 0x1p-126); }
float scale_of(double range) { return static_cast<float>(range / 448); }

void quantize_head(const QuantizedHead& head, double range) {
  const QuantizeProblem& p = head.p;
  if (p.scales == Granularity::head) {
    range = range_of(head.largest(0, p.rows));
    number(p.scale, head.batch, head.head, 0) = scale_of(range);
  }
  for (int64_t first = 0; first < p.rows; first += FA3_SCALE_ROWS) {
    const int64_t end = std::min<int64_t>(first + FA3_SCALE_ROWS, p.rows);
    if (p.scales == Granularity::block) {
      range = range_of(head.largest(first, end));
      number(p.scale, head.batch, head.head, first / FA3_SCALE_ROWS) = scale_of(range);
    }
    for (int64_t row = first; row < end; ++row) {
      head.write_row(row, range);
      if (p.has_lse_offset) head.write_lse_offset(row);
    }
  }
  for (int64_t row = p.rows; p.tiles && row % 16 != 0; ++row)
    for (int64_t c = 0; c < p.head_dim; ++c) head.y(row, c) = 0;
}

template <class Body>
void for_each_head(const QuantizeProblem& p, const Body& body) {
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t head = 0; head < p.heads; ++head) body(QuantizedHead{p, batch, head});
}

}  // namespace

fa3_status reference_quantize(const QuantizeProblem& p) {
  if (p.empty()) return FA3_OK;
  if (p.has_mean) for_each_head(p, [](const QuantizedHead& head) { head.write_mean(); });
  double largest = 0;
  if (p.scales == Granularity::tensor) {
    for_each_head(p, [&](const QuantizedHead& head) { largest = std::fmax(largest, head.largest(0, p.rows)); });
    number(p.scale, 0, 0, 0) = scale_of(range_of(largest));
  }
  for_each_head(p, [&](const QuantizedHead& head) { quantize_head(head, range_of(largest)); });
  return FA3_OK;
}

}  // namespace fa3
