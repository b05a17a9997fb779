// A call of fa3_backward with its tensors, and what its gradients are to be: against float64, within what the same
// mathematics loses where P, dS and the gradients are rounded to the same dtype; what lies around the outputs stays as
// it was.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../gpu.h"
#include "half.h"
#include "references/wider.h"

namespace fa3::test::gradients {

struct Shape {
  int64_t batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim;
  int64_t head_dim_v = 0;  // of v, o and their gradients; 0: head_dim

  int64_t v_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
};

// A tensor (batch, seqlen, heads, head_dim) or (batch, heads, seqlen), packed or with gaps, on both sides.
struct Tensor {
  static constexpr unsigned char poison = 0xa5;
  fa3_tensor host{};
  std::vector<unsigned char> bytes;
  tools::DeviceBuffer device;

  Tensor() = default;
  Tensor(int32_t dtype, std::vector<int64_t> dim, bool padded) {
    host.dtype = dtype, host.rank = int32_t(dim.size());
    std::copy(dim.begin(), dim.end(), host.dim);
    const int size = dtype == FA3_DTYPE_FP32 ? 4 : 2;
    int64_t next = 1;
    for (int i = host.rank - 1; i >= 0; --i) {
      host.stride[i] = next;
      next *= std::max<int64_t>(1, dim[size_t(i)]);
      if (padded) next += 16 / size;
    }
    bytes.assign(size_t(next) * size + 512, poison);
    host.data = bytes.data() + 256;
  }
  void upload() {
    if (device.size() == 0) device = tools::DeviceBuffer::for_tensor(bytes.size());
    device.upload(bytes.data(), bytes.size());
  }
  void download() { device.download(bytes.data(), bytes.size()); }
  fa3_tensor on_device() const {
    fa3_tensor t = host;
    t.data = device.at(256);
    return t;
  }
  // function(where an element is), or function(where, its indices).
  template <class Function>
  void each(Function function) const {
    const int64_t last = host.rank == 4 ? host.dim[3] : 1;
    for (int64_t a = 0; a < host.dim[0]; ++a)
      for (int64_t b = 0; b < host.dim[1]; ++b)
        for (int64_t c = 0; c < host.dim[2]; ++c)
          for (int64_t d = 0; d < last; ++d) {
            const int64_t at = a * host.stride[0] + b * host.stride[1] + c * host.stride[2] + (host.rank == 4 ? d : 0);
            const int64_t index[4] = {a, b, c, d};
            if constexpr (std::is_invocable_v<Function, int64_t>) function(at);
            else function(at, index);
          }
  }
  double at(int64_t i) const {
    if (host.dtype == FA3_DTYPE_FP32) return static_cast<const float*>(host.data)[i];
    const uint16_t bits = static_cast<const uint16_t*>(host.data)[i];
    return host.dtype == FA3_DTYPE_BF16 ? tools::from_bf16(bits) : tools::from_fp16(bits);
  }
  void set(int64_t i, float x) {
    if (host.dtype == FA3_DTYPE_FP32) static_cast<float*>(host.data)[i] = x;
    else static_cast<uint16_t*>(host.data)[i] = host.dtype == FA3_DTYPE_BF16 ? tools::to_bf16(x) : tools::to_fp16(x);
  }
  // Is everything but the elements as the constructor left it?
  bool is_clean_around() const {
    std::vector<bool> element(bytes.size(), false);
    const size_t size = host.dtype == FA3_DTYPE_FP32 ? 4 : 2;
    each([&](int64_t i) { std::fill_n(element.begin() + 256 + i * int64_t(size), size, true); });
    for (size_t i = 0; i < bytes.size(); ++i)
      if (!element[i] && bytes[i] != poison) return false;
    return true;
  }
};

inline double rounded(double x, int32_t dtype) {
  if (dtype == FA3_DTYPE_BF16) return tools::from_bf16(tools::to_bf16(float(x)));
  return tools::from_fp16(tools::to_fp16(float(x)));
}

// Gradients computed exactly; with P, dS and themselves rounded as the kernel does; and the magnitudes of all that is
// summed up, to which the errors of float32 are in proportion.
struct Ways {
  std::vector<double> exact, rounded, magnitudes;

  explicit Ways(int64_t count) : exact(size_t(count)), rounded(size_t(count)), magnitudes(size_t(count)) {}
  struct Place {
    double *exact, *rounded, *magnitudes;
  };
  Place at(int64_t i) { return {exact.data() + i, rounded.data() + i, magnitudes.data() + i}; }
};

struct Dot {
  double sum, size;  // of the products, and of their magnitudes
};
// Lengths are multiples of 8, as head dimensions are.
FA3_WIDER inline Dot dot(int64_t length, const double* a, const double* b) {
  constexpr int chains = 8;
  double sum[chains] = {}, size[chains] = {};
  for (int64_t first = 0; first < length; first += chains)
    for (int i = 0; i < chains; ++i) {
      const double product = a[first + i] * b[first + i];
      sum[i] += product, size[i] += std::fabs(product);
    }
  Dot all{};
  for (int i = 0; i < chains; ++i) all.sum += sum[i], all.size += size[i];
  return all;
}

// So many queries and keys are worked on at once: sums are read and written once for all of them.
constexpr int at_once = 4;
struct Vectors {
  const double* at[at_once];
};
struct Factors {
  double exact[at_once], rounded[at_once], magnitudes[at_once];
};
// Adds the vectors times their factors.
FA3_WIDER inline void add(int64_t length, const Vectors& x, const Factors& factors, const Ways::Place& to) {
  static_assert(at_once == 4);
  const double *const __restrict a = x.at[0], *const __restrict b = x.at[1];
  const double *const __restrict c = x.at[2], *const __restrict d = x.at[3];
  const auto& [e, r, m] = factors;
  double *const __restrict exact = to.exact, *const __restrict rounded = to.rounded;
  double* const __restrict magnitudes = to.magnitudes;
  for (int64_t i = 0; i < length; ++i) exact[i] += e[0] * a[i] + e[1] * b[i] + e[2] * c[i] + e[3] * d[i];
  for (int64_t i = 0; i < length; ++i) rounded[i] += r[0] * a[i] + r[1] * b[i] + r[2] * c[i] + r[3] * d[i];
  for (int64_t i = 0; i < length; ++i)
    magnitudes[i] += std::fabs(m[0] * a[i]) + std::fabs(m[1] * b[i]) + std::fabs(m[2] * c[i]) + std::fabs(m[3] * d[i]);
}

class Call {
 public:
  Call(const Shape& s, int32_t dtype, int32_t mask, bool padded, bool with_dlse, float spread, uint64_t seed,
       uint64_t flags = 0, bool fp32 = false)
      : shape_(s), dtype_(dtype), fp32_(fp32), adds_(flags & FA3_FLAG_ACCUMULATE) {
    p_.struct_size = sizeof p_;
    p_.flags = flags;
    p_.mask = mask;
    const std::vector<int64_t> q_dim{s.batch, s.seqlen_q, s.heads, s.head_dim};
    const std::vector<int64_t> k_dim{s.batch, s.seqlen_k, s.heads_kv, s.head_dim}, rows{s.batch, s.heads, s.seqlen_q};
    const std::vector<int64_t> o_dim{s.batch, s.seqlen_q, s.heads, s.v_dim()};
    const std::vector<int64_t> v_dim{s.batch, s.seqlen_k, s.heads_kv, s.v_dim()};
    q_ = Tensor(dtype, q_dim, padded), k_ = Tensor(dtype, k_dim, padded), v_ = Tensor(dtype, v_dim, padded);
    for (Tensor* t : {&o_, &dout_}) *t = Tensor(dtype, o_dim, padded);
    const int32_t gradients = fp32 ? FA3_DTYPE_FP32 : dtype;
    dq_ = Tensor(gradients, q_dim, padded), dk_ = Tensor(gradients, k_dim, padded);
    dv_ = Tensor(gradients, v_dim, padded);
    lse_ = Tensor(FA3_DTYPE_FP32, rows, padded);
    if (with_dlse) dlse_ = Tensor(FA3_DTYPE_FP32, rows, padded);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (Tensor* t : {&q_, &k_, &v_, &dout_, &dlse_})
      t->each([&](int64_t i) { t->set(i, (t == &q_ ? spread : 1) * normal(random)); });
    if (adds_)
      for (Tensor* t : {&dq_, &dk_, &dv_}) t->each([&](int64_t i) { t->set(i, normal(random)); });
    for (Tensor* t : {&dq_, &dk_, &dv_}) before_.push_back(t->bytes);
    fa3_forward_params f{};
    f.struct_size = sizeof f;
    f.q = q_.host, f.k = k_.host, f.v = v_.host, f.o = o_.host, f.lse = lse_.host, f.mask = mask;
    REQUIRE(fa3_reference_forward(&f, 0) == FA3_OK);
    for (auto& [tensor, place] : tensors()) tensor->upload(), *place = tensor->on_device();
    if (!with_dlse) p_.dlse = {};
    choose(nullptr);
  }
  // The kernel by its name; null: any.
  void choose(const char* kernel) {
    p_.kernel = kernel;
    REQUIRE(fa3_backward_workspace_size(&p_, &workspace_bytes_) == FA3_OK);
    workspace_ = tools::DeviceBuffer(workspace_bytes_ + 512);
    workspace_.fill(0xff);  // NaN
  }

  void launch(const tools::Stream& stream) {
    const fa3_status status = fa3_backward(&p_, workspace_.at(256), workspace_bytes_, stream.get());
    INFO(fa3_last_error_message());
    REQUIRE(status == FA3_OK);
  }
  // K from the host's memory: it comes much later than V, although it is sent for first.
  void keep_k_on_host() {
    slow_k_ = tools::HostBuffer(k_.bytes.size());
    std::copy(k_.bytes.begin(), k_.bytes.end(), static_cast<unsigned char*>(slow_k_.get()));
    p_.k.data = static_cast<unsigned char*>(slow_k_.get()) + 256;
  }
  // Gradients as they were before the first launch.
  void poison() {
    size_t n = 0;
    for (Tensor* t : {&dq_, &dk_, &dv_}) {
      std::copy(before_[n].begin(), before_[n].end(), t->bytes.begin());
      t->upload(), ++n;
    }
  }
  // In rows that see no key, on the device only: NaN in all that is read of queries.
  void poison_empty_rows() {
    const auto is_empty = [&](int64_t i) { return visible(i) == 0; };
    for (Tensor* t : {&q_, &o_, &dout_, &lse_, &dlse_}) {
      if (t->host.rank == 0) continue;
      const std::vector<unsigned char> clean = t->bytes;
      const int rows = t->host.rank == 4 ? 1 : 2;  // the dim that counts them
      t->each([&](int64_t at, const int64_t (&index)[4]) {
        if (is_empty(index[rows])) t->set(at, NAN);
      });
      t->upload();
      t->bytes = clean;
      t->host.data = t->bytes.data() + 256;
    }
  }
  std::vector<unsigned char> results(const tools::Stream& stream) {
    stream.synchronize();
    std::vector<unsigned char> all;
    for (Tensor* t : {&dq_, &dk_, &dv_}) t->download(), all.insert(all.end(), t->bytes.begin(), t->bytes.end());
    return all;
  }
  // dq, dk and dv, computed three ways.
  std::vector<Ways> expected() const {
    const Shape& s = shape_;
    const int64_t group = s.heads_kv ? s.heads / s.heads_kv : 0;
    std::vector<Ways> all;
    all.emplace_back(s.batch * s.seqlen_q * s.heads * s.head_dim);
    all.emplace_back(s.batch * s.seqlen_k * s.heads_kv * s.head_dim);
    all.emplace_back(s.batch * s.seqlen_k * s.heads_kv * s.v_dim());
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h) add_head(b, h, h / group, all);
    if (!fp32_)
      for (Ways& ways : all)
        for (double& x : ways.rounded) x = rounded(x, dtype_);
    return all;
  }
  // What is wrong with the results; "" if nothing is.
  std::string verdict() const {
    const std::vector<Ways> all = expected();
    const Tensor* const tensors[] = {&dq_, &dk_, &dv_};
    const char* const names[] = {"dq", "dk", "dv"};
    for (size_t n = 0; n < 3; ++n) {
      if (!tensors[n]->is_clean_around()) return std::string(names[n]) + ": bytes around it were written";
      double ours = 0, theirs = 0, worst_of_ours = 0, worst_of_theirs = 0, size = 0, slack = 0, worst_slack = 0;
      const auto& [exact, same, magnitudes] = all[n];
      size_t i = 0;
      tensors[n]->each([&](int64_t at) {
        const double there = adds_ ? reinterpret_cast<const float*>(before_[n].data() + 256)[at] : 0;
        const double off = std::fabs(tensors[n]->at(at) - there - exact[i]), other = std::fabs(same[i] - exact[i]);
        ours += off * off, theirs += other * other, size += exact[i] * exact[i];
        worst_of_ours = off <= worst_of_ours ? worst_of_ours : off;
        worst_of_theirs = std::max(worst_of_theirs, other);
        // Sums, exponentials, LSE times log2(e).
        const double float32 = 0x1p-19 * magnitudes[i] + 0x1p-23 * std::fabs(there);
        slack += float32 * float32, worst_slack = std::max(worst_slack, float32);
        ++i;
      });
      // Three roundings of each product: of P, of dS and of the gradient. More is a fault of the exact ones.
      const double roundoff = dtype_ == FA3_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
      if (!(std::sqrt(theirs) <= 3 * roundoff * std::sqrt(size) + std::sqrt(slack)))
        return std::string(names[n]) + ": the test's own two ways are " +
               std::to_string(std::sqrt(theirs / std::max(size, 1e-300))) + " of its size apart";
      if (!(std::sqrt(ours) <= 1.3 * std::sqrt(theirs) + std::sqrt(slack)) ||
          !(worst_of_ours <= 2.5 * worst_of_theirs + worst_slack))
        return std::string(names[n]) + ": error " + std::to_string(std::sqrt(ours / std::max(size, 1e-300))) +
               " of its size, " + std::to_string(std::sqrt(theirs / std::max(size, 1e-300))) + " by rounding; worst " +
               std::to_string(worst_of_ours) + " and " + std::to_string(worst_of_theirs);
    }
    return "";
  }

 private:
  // The rows of a head, and one vector of 0.
  struct HeadRows {
    std::vector<double> all;
    int64_t rows, length;

    HeadRows(const Tensor& t, int64_t b, int64_t h) : rows(t.host.dim[1]), length(t.host.dim[3]) {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < length; ++c)
          all.push_back(t.at(b * t.host.stride[0] + i * t.host.stride[1] + h * t.host.stride[2] + c));
      all.resize(all.size() + size_t(length));
    }
    const double* at(int64_t row) const { return &all[size_t(std::min(row, rows) * length)]; }
    Vectors from(int64_t row) const { return {{at(row), at(row + 1), at(row + 2), at(row + 3)}}; }
  };
  static double number(const Tensor& t, int64_t b, int64_t h, int64_t i) {
    return t.host.rank ? t.at(b * t.host.stride[0] + h * t.host.stride[1] + i * t.host.stride[2]) : 0;
  }

  // Of dS, with the scale, and of P.
  struct Weights {
    double exact = 0, rounded = 0, magnitude = 0;
  };
  static Factors factors(const Weights& a, const Weights& b, const Weights& c, const Weights& d) {
    return {{a.exact, b.exact, c.exact, d.exact},
            {a.rounded, b.rounded, c.rounded, d.rounded},
            {a.magnitude, b.magnitude, c.magnitude, d.magnitude}};
  }

  void add_head(int64_t b, int64_t h, int64_t head_kv, std::vector<Ways>& to) const {
    const Shape& s = shape_;
    const double scale = 1 / std::sqrt(double(s.head_dim));
    const HeadRows q(q_, b, h), dout(dout_, b, h), o(o_, b, h), k(k_, b, head_kv), v(v_, b, head_kv);
    struct RowNumbers {
      double lse, delta, size_of_delta;
    };
    std::vector<RowNumbers> numbers;
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      const double lse_gradient = number(dlse_, b, h, i);
      const Dot all = dot(s.v_dim(), dout.at(i), o.at(i));
      numbers.push_back({number(lse_, b, h, i), all.sum - lse_gradient, all.size + std::fabs(lse_gradient)});
    }
    constexpr int64_t tile = 32;  // keys, whose gradients fit into a cache
    for (int64_t first = 0; first < s.seqlen_k; first += tile)
      for (int64_t i = 0; i < s.seqlen_q; i += at_once)
        for (int64_t j = first; j < std::min(first + tile, visible(i + at_once - 1)); j += at_once) {
          const int64_t rows = std::min<int64_t>(at_once, s.seqlen_q - i);
          Weights ds[at_once][at_once], p[at_once][at_once];  // 0 where a row does not see a key, or there is none
          for (int64_t n = 0; n < rows; ++n)
            for (int64_t m = 0; m < at_once && j + m < visible(i + n); ++m) {
              const auto& [lse, delta, size_of_delta] = numbers[size_t(i + n)];
              const double weight = std::exp(dot(s.head_dim, q.at(i + n), k.at(j + m)).sum * scale - lse);
              const Dot dp = dot(s.v_dim(), dout.at(i + n), v.at(j + m));
              const double rounded_p = rounded(weight, dtype_);
              p[n][m] = {weight, rounded_p, weight};
              ds[n][m] = {weight * (dp.sum - delta) * scale,
                          rounded(rounded_p * (dp.sum - delta), dtype_) * scale,
                          weight * (dp.size + size_of_delta) * scale};
            }
          for (int64_t n = 0; n < rows; ++n)
            add(s.head_dim, k.from(j), factors(ds[n][0], ds[n][1], ds[n][2], ds[n][3]),
                to[0].at(((b * s.seqlen_q + i + n) * s.heads + h) * s.head_dim));
          for (int64_t m = 0; m < at_once && j + m < s.seqlen_k; ++m) {
            const int64_t key = (b * s.seqlen_k + j + m) * s.heads_kv + head_kv;
            add(s.head_dim, q.from(i), factors(ds[0][m], ds[1][m], ds[2][m], ds[3][m]), to[1].at(key * s.head_dim));
            add(s.v_dim(), dout.from(i), factors(p[0][m], p[1][m], p[2][m], p[3][m]), to[2].at(key * s.v_dim()));
          }
        }
  }

  std::vector<std::pair<Tensor*, fa3_tensor*>> tensors() {
    std::vector<std::pair<Tensor*, fa3_tensor*>> all = {{&q_, &p_.q},       {&k_, &p_.k},     {&v_, &p_.v},
                                                        {&o_, &p_.o},       {&lse_, &p_.lse}, {&dout_, &p_.dout},
                                                        {&dq_, &p_.dq},     {&dk_, &p_.dk},   {&dv_, &p_.dv}};
    if (dlse_.host.rank) all.push_back({&dlse_, &p_.dlse});
    return all;
  }
  int64_t visible(int64_t i) const {
    if (p_.mask == FA3_MASK_NONE) return shape_.seqlen_k;
    const int64_t offset = p_.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? shape_.seqlen_k - shape_.seqlen_q : 0;
    return std::clamp<int64_t>(i + offset + 1, 0, shape_.seqlen_k);
  }

  Shape shape_;
  int32_t dtype_;
  bool fp32_, adds_;                                // gradients
  std::vector<std::vector<unsigned char>> before_;  // the bytes of each
  fa3_backward_params p_{};
  Tensor q_, k_, v_, o_, lse_, dout_, dlse_, dq_, dk_, dv_;
  size_t workspace_bytes_ = 0;
  tools::DeviceBuffer workspace_;
  tools::HostBuffer slow_k_;
};

}  // namespace fa3::test::gradients
