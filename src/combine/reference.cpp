// fa3_combine in float64, a row at a time, by the formulas of fa3.h: the largest LSE first, then weights relative to
// it. It is the oracle of the kernel and shares nothing with it.
#include <cmath>

#include "combine/combine.h"
#include "cpu/host_view.h"

namespace fa3 {
namespace {

constexpr int max_d = 512;

// A row of the problem: of a batch entry and a head.
struct CombinedRow {
  const CombineProblem& p;
  int64_t batch, row, head;

  double lse_of(int64_t part) const {
    const int64_t* const stride = p.lse_parts.stride;
    return static_cast<const float*>(
        p.lse_parts.data)[part * stride[0] + batch * stride[1] + head * stride[2] + row * stride[3]];
  }

  void read_part(int64_t part, double* x) const {
    View view = p.part;
    view.data = static_cast<char*>(view.data) + part * p.part_stride * bytes_per_element(view.dtype);
    read_row(view, batch, row, head, x);
  }

  // NaN is no number to max, but makes the sum NaN.
  void combine() const {
    double largest = -INFINITY, sum = 0, o[max_d] = {}, x[max_d];
    for (int64_t part = 0; part < p.parts; ++part) largest = std::fmax(largest, lse_of(part));
    for (int64_t part = 0; part < p.parts; ++part) {
      if (lse_of(part) == -INFINITY) continue;
      const double weight = std::exp(lse_of(part) - largest);
      sum += weight;
      read_part(part, x);
      for (int64_t c = 0; c < p.head_dim; ++c) o[c] += weight * x[c];
    }
    for (int64_t c = 0; c < p.head_dim; ++c) o[c] = sum == 0 ? 0 : o[c] / sum;
    write_row(p.o, batch, row, head, o);
    if (!p.wants_lse) return;
    const int64_t* const stride = p.lse.stride;
    static_cast<float*>(p.lse.data)[batch * stride[0] + head * stride[1] + row * stride[2]] =
        to_float(sum == 0 ? -INFINITY : largest + std::log(sum));
  }
};

}  // namespace

fa3_status reference_combine(const CombineProblem& p) {
  if (p.empty()) return FA3_OK;  // as the rows of no heads may be more than can be counted
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t row = 0; row < p.rows; ++row)
      for (int64_t head = 0; head < p.heads; ++head) CombinedRow{p, batch, row, head}.combine();
  return FA3_OK;
}

}  // namespace fa3
