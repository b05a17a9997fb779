// fa3_reference_backward against finite differences of the forward pass, against the formulas of fa3.h in long double,
// and every rule about its arguments.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../call.h"
#include "../refused.h"

namespace fa3::test {
namespace {

using Real = long double;

int element_size(int32_t dtype) { return dtype == FA3_DTYPE_FP32 ? 4 : 2; }

Real read(const fa3_tensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t index = a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + (t.rank == 4 ? d * t.stride[3] : 0);
  const char* element = static_cast<const char*>(t.data) + index * element_size(t.dtype);
  if (t.dtype == FA3_DTYPE_FP32) return *reinterpret_cast<const float*>(element);
  if (t.dtype == FA3_DTYPE_FP16) return Real(*reinterpret_cast<const _Float16*>(element));
  return std::bit_cast<float>(uint32_t(*reinterpret_cast<const uint16_t*>(element)) << 16);
}

// A call with memory of its own: q, k, v, dout and dlse of N(0,1), o and lse by the forward reference.
struct Call {
  Shape shape;
  std::vector<Buffer> memory;
  fa3_backward_params p{};

  Call(const Shape& s, int32_t dtype, int32_t mask, int32_t gradients, bool with_dlse, uint64_t seed = 1) : shape(s) {
    p.struct_size = sizeof p;
    p.mask = mask;
    const std::vector<int64_t> q_dim{s.batch, s.seqlen_q, s.heads, s.head_dim};
    const std::vector<int64_t> k_dim{s.batch, s.seqlen_k, s.heads_kv, s.head_dim}, rows{s.batch, s.heads, s.seqlen_q};
    const std::vector<int64_t> o_dim{s.batch, s.seqlen_q, s.heads, s.v_dim()};
    const std::vector<int64_t> v_dim{s.batch, s.seqlen_k, s.heads_kv, s.v_dim()};
    make(p.q, dtype, q_dim), make(p.k, dtype, k_dim), make(p.v, dtype, v_dim);
    make(p.o, dtype, o_dim), make(p.dout, dtype, o_dim);
    make(p.lse, FA3_DTYPE_FP32, rows);
    if (with_dlse) make(p.dlse, FA3_DTYPE_FP32, rows);
    make(p.dq, gradients, q_dim), make(p.dk, gradients, k_dim), make(p.dv, gradients, v_dim);
    std::mt19937_64 random(seed);
    for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.dout, &p.dlse}) fill(*t, random);
    run_forward();
  }

  void run_forward() {
    fa3_forward_params f{};
    f.struct_size = sizeof f;
    f.q = p.q, f.k = p.k, f.v = p.v, f.o = p.o, f.lse = p.lse, f.mask = p.mask, f.softmax_scale = p.softmax_scale;
    REQUIRE(fa3_reference_forward(&f, 1) == FA3_OK);
  }
  void run(int threads = 1) {
    INFO(fa3_last_error_message());
    REQUIRE(fa3_reference_backward(&p, threads) == FA3_OK);
  }
  std::vector<unsigned char> gradients() {
    std::vector<unsigned char> bytes;
    for (Buffer* b : {&memory[memory.size() - 3], &memory[memory.size() - 2], &memory.back()})
      bytes.insert(bytes.end(), b->as<unsigned char>(), b->as<unsigned char>() + b->bytes());
    return bytes;
  }
  double scale() const { return p.softmax_scale ? p.softmax_scale : 1 / std::sqrt(double(shape.head_dim)); }
  int64_t visible(int64_t i) const {
    if (p.mask == FA3_MASK_NONE) return shape.seqlen_k;
    const int64_t offset = p.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? shape.seqlen_k - shape.seqlen_q : 0;
    return std::clamp<int64_t>(i + offset + 1, 0, shape.seqlen_k);
  }

 private:
  void make(fa3_tensor& t, int32_t dtype, const std::vector<int64_t>& dims) {
    t = {}, t.dtype = dtype, t.rank = int32_t(dims.size());
    int64_t elements = 1;
    for (size_t i = 0; i < dims.size(); ++i) elements *= t.dim[i] = dims[i];
    REQUIRE(fa3_tensor_pack(&t) == FA3_OK);
    // LSE and dLSE have so much room that a gradient in their place (bad_changes) reaches nothing else.
    memory.emplace_back(std::max<size_t>(size_t(elements) * element_size(dtype), t.rank == 3 ? 1024 : 0));
    t.data = memory.back().as();
  }
  static void fill(fa3_tensor& t, std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    int64_t elements = t.rank > 0;
    for (int i = 0; i < t.rank; ++i) elements *= t.dim[i];
    for (int64_t i = 0; i < elements; ++i) {
      const float x = normal(random);
      if (t.dtype == FA3_DTYPE_FP32) static_cast<float*>(t.data)[i] = x;
      else if (t.dtype == FA3_DTYPE_FP16) static_cast<_Float16*>(t.data)[i] = static_cast<_Float16>(x);
      else static_cast<uint16_t*>(t.data)[i] = uint16_t(std::bit_cast<uint32_t>(x) >> 16);
    }
  }
};

using Matrix = std::vector<Real>;

// The formulas, one element at a time: dq, dk and dv, packed as q, k and v.
struct Gradients {
  Matrix dq, dk, dv;

  explicit Gradients(const Call& call) {
    const Shape& s = call.shape;
    const auto& p = call.p;
    const int64_t d = s.head_dim, d_v = s.v_dim(), group = s.heads_kv ? s.heads / s.heads_kv : 0;
    dq.resize(size_t(s.batch * s.seqlen_q * s.heads * d)), dk.resize(size_t(s.batch * s.seqlen_k * s.heads_kv * d));
    dv.resize(size_t(s.batch * s.seqlen_k * s.heads_kv * d_v));
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t i = 0; i < s.seqlen_q; ++i) {
          Real delta = p.dlse.rank ? -read(p.dlse, b, h, i, 0) : 0;
          for (int64_t x = 0; x < d_v; ++x) delta += read(p.dout, b, i, h, x) * read(p.o, b, i, h, x);
          for (int64_t j = 0; j < call.visible(i); ++j) {
            Real score = 0, dp = 0;
            for (int64_t x = 0; x < d; ++x) score += read(p.q, b, i, h, x) * read(p.k, b, j, h / group, x);
            for (int64_t x = 0; x < d_v; ++x) dp += read(p.dout, b, i, h, x) * read(p.v, b, j, h / group, x);
            const Real weight = std::exp(score * Real(call.scale()) - read(p.lse, b, h, i, 0));
            const Real ds = weight * (dp - delta) * Real(call.scale());
            const int64_t key = (b * s.seqlen_k + j) * s.heads_kv + h / group;
            for (int64_t x = 0; x < d_v; ++x) dv[size_t(key * d_v + x)] += weight * read(p.dout, b, i, h, x);
            for (int64_t x = 0; x < d; ++x) {
              dq[size_t(((b * s.seqlen_q + i) * s.heads + h) * d + x)] += ds * read(p.k, b, j, h / group, x);
              dk[size_t(key * d + x)] += ds * read(p.q, b, i, h, x);
            }
          }
        }
  }
};

// The largest error, as a share of the largest element.
Real error(const fa3_tensor& t, const Matrix& expected) {
  Real worst = 0, largest = 0;
  size_t n = 0;
  for (int64_t a = 0; a < t.dim[0]; ++a)
    for (int64_t b = 0; b < t.dim[1]; ++b)
      for (int64_t c = 0; c < t.dim[2]; ++c)
        for (int64_t d = 0; d < t.dim[3]; ++d, ++n) {
          const Real off = std::fabs(read(t, a, b, c, d) - expected[n]);
          worst = off <= worst ? worst : off;  // NaN stays
          largest = std::max(largest, std::fabs(expected[n]));
        }
  return largest > 0 ? worst / largest : worst;
}

void check_against_formulas(Call& call, int threads, Real most) {
  call.run(threads);
  const Gradients expected(call);
  CHECK(error(call.p.dq, expected.dq) <= most);
  CHECK(error(call.p.dk, expected.dk) <= most);
  CHECK(error(call.p.dv, expected.dv) <= most);
}

// sum(dout * O) + sum(dlse * LSE) in long double, of fp32 tensors in which one number is changed.
Real loss(const Call& call, const fa3_tensor* changed, int64_t place, Real by) {
  const Shape& s = call.shape;
  const auto& p = call.p;
  const int64_t group = s.heads / s.heads_kv;
  const auto at = [&](const fa3_tensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t index = ((a * t.dim[1] + b) * t.dim[2] + c) * t.dim[3] + d;
    return read(t, a, b, c, d) + (&t == changed && index == place ? by : 0);
  };
  Real sum = 0;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.seqlen_q; ++i) {
        std::vector<Real> weights;
        Real total = 0;
        for (int64_t j = 0; j < call.visible(i); ++j) {
          Real score = 0;
          for (int64_t x = 0; x < s.head_dim; ++x) score += at(p.q, b, i, h, x) * at(p.k, b, j, h / group, x);
          total += weights.emplace_back(std::exp(score * Real(call.scale())));
        }
        if (weights.empty()) continue;
        if (p.dlse.rank) sum += read(p.dlse, b, h, i, 0) * std::log(total);
        for (size_t j = 0; j < weights.size(); ++j)
          for (int64_t x = 0; x < s.v_dim(); ++x)
            sum += read(p.dout, b, i, h, x) * weights[j] / total * at(p.v, b, int64_t(j), h / group, x);
      }
  return sum;
}

}  // namespace

TEST_CASE("gradients are what finite differences of the forward pass give", "[backward]") {
  const Shape shapes[] = {{.batch = 2, .seqlen_q = 3, .seqlen_k = 4, .heads = 4, .heads_kv = 2, .head_dim = 5},
                          {.batch = 1, .seqlen_q = 6, .seqlen_k = 3, .heads = 3, .heads_kv = 1, .head_dim = 7},
                          {.batch = 1, .seqlen_q = 2, .seqlen_k = 7, .heads = 2, .heads_kv = 2, .head_dim = 9},
                          {.seqlen_q = 2, .seqlen_k = 4, .heads = 2, .heads_kv = 1, .head_dim = 3, .head_dim_v = 10},
                          {.seqlen_q = 4, .seqlen_k = 3, .heads = 2, .heads_kv = 2, .head_dim = 9, .head_dim_v = 2}};
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const bool with_dlse : {false, true}) {
        Call call(shape, FA3_DTYPE_FP32, mask, FA3_DTYPE_FP32, with_dlse);
        call.p.softmax_scale = with_dlse ? 0.3f : 0.f;
        call.run_forward();
        call.run();
        INFO("seqlen_q " << shape.seqlen_q << " mask " << mask << " dlse " << with_dlse);
        const std::pair<const fa3_tensor*, const fa3_tensor*> pairs[] = {
            {&call.p.q, &call.p.dq}, {&call.p.k, &call.p.dk}, {&call.p.v, &call.p.dv}};
        for (const auto& [input, gradient] : pairs) {
          Matrix expected;
          const int64_t elements = input->dim[0] * input->dim[1] * input->dim[2] * input->dim[3];
          for (int64_t n = 0; n < elements; ++n) {
            constexpr Real step = 1e-5L;
            expected.push_back((loss(call, input, n, step) - loss(call, input, n, -step)) / (2 * step));
          }
          CHECK(error(*gradient, expected) < 1e-6L);
        }
      }
}

TEST_CASE("gradients are those of the formulas, at shapes, masks and dtypes", "[backward]") {
  std::mt19937_64 random(5);
  const auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  for (int n = 0; n < 60; ++n) {
    Shape shape{.batch = pick({1, 1, 2}), .seqlen_q = pick({1, 2, 63, 64, 65, 90, 130}),
                .seqlen_k = pick({1, 3, 63, 64, 65, 100, 129}), .heads = 1, .heads_kv = pick({1, 2}),
                .head_dim = pick({8, 16, 24, 40}), .head_dim_v = pick({0, 0, 8, 24, 32, 72})};
    shape.heads = shape.heads_kv * pick({1, 2, 3});
    const auto dtype = int32_t(pick({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}));
    const auto gradients = int32_t(pick({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32, FA3_DTYPE_FP32}));
    const auto mask = int32_t(random() % 3);
    INFO(n << ": q " << shape.seqlen_q << " k " << shape.seqlen_k << " heads " << shape.heads << "/" << shape.heads_kv
           << " d " << shape.head_dim << "/" << shape.v_dim() << " dtypes " << dtype << " " << gradients << " mask "
           << mask);
    Call call(shape, dtype, mask, gradients, random() % 2, random());
    const Real rounding = gradients == FA3_DTYPE_BF16 ? 0x1p-8L : gradients == FA3_DTYPE_FP16 ? 0x1p-11L : 0x1p-24L;
    check_against_formulas(call, 1 + int(random() % 3), 1.01L * rounding);
  }
  for (const auto& [head_dim, head_dim_v] : {std::pair{256, 256}, {256, 8}, {8, 256}, {192, 128}}) {
    Call large({.batch = 1, .seqlen_q = 70, .seqlen_k = 70, .heads = 1, .heads_kv = 1, .head_dim = head_dim,
                .head_dim_v = head_dim_v}, FA3_DTYPE_BF16, FA3_MASK_NONE, FA3_DTYPE_FP32, false);
    check_against_formulas(large, 2, 0x1p-23L);
  }
}

TEST_CASE("pairs that a mask separates do not meet, whatever they hold", "[backward]") {
  const Shape shape{.batch = 1, .seqlen_q = 150, .seqlen_k = 80, .heads = 2, .heads_kv = 1, .head_dim = 8};
  const auto nan_row = [](const fa3_tensor& t, int64_t row) {
    for (int64_t h = 0; h < t.dim[2]; ++h)
      for (int64_t x = 0; x < t.dim[3]; ++x)
        static_cast<float*>(t.data)[row * t.stride[1] + h * t.stride[2] + x] = x % 2 ? NAN : INFINITY;
  };
  // Bottom-right: query i sees keys up to i - 70. The first 70 see none; query 100 is the first that sees key 30.
  Call clean(shape, FA3_DTYPE_FP32, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_DTYPE_FP32, true);
  clean.run();
  const auto differs = [](const fa3_tensor& a, const fa3_tensor& b, int64_t row) {
    for (int64_t h = 0; h < a.dim[2]; ++h)
      for (int64_t x = 0; x < a.dim[3]; ++x)
        if (!(read(a, 0, row, h, x) == read(b, 0, row, h, x))) return true;
    return false;
  };
  for (int64_t i = 0; i < 150; ++i)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t x = 0; x < 8 && i < 70; ++x) CHECK(read(clean.p.dq, 0, i, h, x) == 0);
  {
    Call call(shape, FA3_DTYPE_FP32, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_DTYPE_FP32, true);
    for (const fa3_tensor* t : {&call.p.q, &call.p.dout, &call.p.o}) nan_row(*t, 100), nan_row(*t, 20);
    call.run();
    for (int64_t j = 0; j < 80; ++j) {
      INFO("key " << j);
      CHECK(differs(call.p.dk, clean.p.dk, j) == (j <= 30));
      CHECK(differs(call.p.dv, clean.p.dv, j) == (j <= 30));
    }
    for (int64_t i = 0; i < 150; ++i) CHECK(differs(call.p.dq, clean.p.dq, i) == (i == 100));
  }
  {
    Call call(shape, FA3_DTYPE_FP32, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_DTYPE_FP32, true);
    for (const fa3_tensor* t : {&call.p.k, &call.p.v}) nan_row(*t, 30);
    call.run();
    for (int64_t i = 0; i < 150; ++i) CHECK(differs(call.p.dq, clean.p.dq, i) == (i >= 100));
    for (int64_t j = 0; j < 80; ++j) CHECK(differs(call.p.dk, clean.p.dk, j) == (j == 30));
  }
  // More keys than queries, aligned top-left: nobody sees the last ones.
  Call unseen({.batch = 1, .seqlen_q = 10, .seqlen_k = 90, .heads = 2, .heads_kv = 2, .head_dim = 8}, FA3_DTYPE_FP32,
              FA3_MASK_CAUSAL_TOP_LEFT, FA3_DTYPE_FP32, false);
  for (const fa3_tensor* t : {&unseen.p.k, &unseen.p.v}) nan_row(*t, 11);
  unseen.run();
  for (int64_t j = 10; j < 90; ++j)
    for (int64_t x = 0; x < 8; ++x) CHECK((read(unseen.p.dk, 0, j, 0, x) == 0 && read(unseen.p.dv, 0, j, 1, x) == 0));
}

TEST_CASE("without queries dk and dv are 0, without keys dq", "[backward]") {
  const auto zeros = [](const fa3_tensor& t) {
    for (int64_t n = 0; n < t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]; ++n)
      if (static_cast<float*>(t.data)[n] != 0) return false;
    return true;
  };
  for (const Shape& shape : {Shape{.batch = 2, .seqlen_q = 0, .seqlen_k = 70, .heads = 4, .heads_kv = 2, .head_dim = 8},
                             Shape{.batch = 2, .seqlen_q = 70, .seqlen_k = 0, .heads = 4, .heads_kv = 2, .head_dim = 8},
                             Shape{.batch = 2, .seqlen_q = 70, .seqlen_k = 9, .heads = 0, .heads_kv = 2, .head_dim = 8},
                             Shape{.batch = 2, .seqlen_q = 70, .seqlen_k = 9, .heads = 0, .heads_kv = 0, .head_dim = 8},
                             Shape{.batch = 0, .seqlen_q = 7, .seqlen_k = 9, .heads = 2, .heads_kv = 1, .head_dim = 8}})
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
      Call call(shape, FA3_DTYPE_FP32, mask, FA3_DTYPE_FP32, true);
      call.run(3);
      CHECK((zeros(call.p.dq) && zeros(call.p.dk) && zeros(call.p.dv)));
    }
}

TEST_CASE("gradients do not depend on the number of threads", "[backward]") {
  Call call({.batch = 2, .seqlen_q = 200, .seqlen_k = 150, .heads = 4, .heads_kv = 2, .head_dim = 24}, FA3_DTYPE_BF16,
            FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_DTYPE_FP32, true);
  call.run(1);
  const auto expected = call.gradients();
  for (const int threads : {2, 5, 0}) {
    for (Buffer* b : {&call.memory[call.memory.size() - 1], &call.memory[call.memory.size() - 2]})
      std::memset(b->as(), poison, b->bytes());
    call.run(threads);
    CHECK((call.gradients() == expected));
  }
}

TEST_CASE("gradients go where the strides say, and nowhere else", "[backward]") {
  const Shape shape{.batch = 2, .seqlen_q = 5, .seqlen_k = 6, .heads = 4, .heads_kv = 2, .head_dim = 8};
  Call call(shape, FA3_DTYPE_FP16, FA3_MASK_CAUSAL_TOP_LEFT, FA3_DTYPE_BF16, true);
  Buffer large(1 << 16);
  auto& p = call.p;
  // q and its like backwards in rows; k with keys innermost; v shared by the batch; gradients padded, in other orders.
  for (fa3_tensor* t : {&p.q, &p.dout})
    t->data = static_cast<uint16_t*>(t->data) + 4 * t->stride[1], t->stride[1] = -t->stride[1];
  set_strides(p.k, {96, 1, 48, 6}), set_strides(p.v, {0, 16, 8, 1});
  call.run_forward();
  const auto place = [&](fa3_tensor& t, int64_t first, std::initializer_list<int64_t> stride) {
    t.data = large.as<uint16_t>() + first;
    set_strides(t, stride);
  };
  place(p.dq, 100, {2000, 50, 300, 3});
  place(p.dk, 8000, {-1000, 11, 100, 1});
  place(p.dv, 9001, {900, 2, 400, 13});
  check_against_formulas(call, 2, 1.01L * 0x1p-8L);
  std::vector<bool> may(1 << 16, false);
  for (const fa3_tensor* t : {&p.dq, &p.dk, &p.dv})
    for (int64_t b = 0; b < t->dim[0]; ++b)
      for (int64_t i = 0; i < t->dim[1]; ++i)
        for (int64_t h = 0; h < t->dim[2]; ++h)
          for (int64_t x = 0; x < t->dim[3]; ++x) {
            const int64_t at = b * t->stride[0] + i * t->stride[1] + h * t->stride[2] + x * t->stride[3];
            const ptrdiff_t byte = static_cast<char*>(t->data) - large.as<char>() + 2 * at;
            may[size_t(byte)] = may[size_t(byte) + 1] = true;
          }
  size_t strays = 0;
  for (size_t i = 0; i < may.size(); ++i) strays += !may[i] && large.as<unsigned char>()[i] != poison;
  CHECK(strays == 0);
}

TEST_CASE("gradients in float32 are added to what is there, each rounded once", "[backward]") {
  const Shape shapes[] = {{.batch = 2, .seqlen_q = 30, .seqlen_k = 70, .heads = 4, .heads_kv = 2, .head_dim = 24},
                          {.seqlen_q = 80, .seqlen_k = 20, .heads = 2, .heads_kv = 1, .head_dim = 8, .head_dim_v = 40},
                          {.seqlen_q = 0, .seqlen_k = 20, .heads = 2, .heads_kv = 1, .head_dim = 8}};
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
      Call call(shape, FA3_DTYPE_BF16, mask, FA3_DTYPE_FP32, true);
      const Gradients alone(call);
      std::mt19937_64 random(7);
      std::normal_distribution<float> normal;
      std::vector<Matrix> sums;
      const std::pair<fa3_tensor*, const Matrix*> gradients[] = {
          {&call.p.dq, &alone.dq}, {&call.p.dk, &alone.dk}, {&call.p.dv, &alone.dv}};
      for (const auto& [tensor, gradient] : gradients) {
        Matrix sum = *gradient;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float*>(tensor->data)[i] = 8 * normal(random);
        sums.push_back(sum);
      }
      call.p.flags = FA3_FLAG_ACCUMULATE;
      call.run(3);
      for (size_t n = 0; n < 3; ++n) CHECK(error(*gradients[n].first, sums[n]) <= 0x1p-24L);
    }
}

TEST_CASE("on the CPU each gradient has a dtype of its own", "[backward]") {
  constexpr int32_t dtypes[] = {FA3_DTYPE_FP32, FA3_DTYPE_BF16, FA3_DTYPE_FP16};
  const auto most = [](const fa3_tensor& t) {
    return t.dtype == FA3_DTYPE_FP32 ? 0x1p-24L : t.dtype == FA3_DTYPE_FP16 ? 0x1p-11L : 0x1p-8L;
  };
  for (int n = 0; n < 27; ++n) {
    Call call({.seqlen_q = 9, .seqlen_k = 17, .head_dim = 24}, FA3_DTYPE_BF16, FA3_MASK_NONE, FA3_DTYPE_FP32, true);
    call.p.dq.dtype = dtypes[n % 3], call.p.dk.dtype = dtypes[n / 3 % 3], call.p.dv.dtype = dtypes[n / 9];
    call.run();
    const Gradients expected(call);
    INFO(n);
    CHECK(error(call.p.dq, expected.dq) <= most(call.p.dq));
    CHECK(error(call.p.dk, expected.dk) <= most(call.p.dk));
    CHECK(error(call.p.dv, expected.dv) <= most(call.p.dv));
  }
}

namespace {

using B = fa3_backward_params;

using Change = ChangeOf<B>;

const Change bad_changes[] = {
    {"flags is 0x2, has bits", invalid, [](B& p) { p.flags = FA3_FLAG_TWO_LEVEL; }},
    {"flags is 0x4, has bits", invalid, [](B& p) { p.flags = FA3_FLAG_BATCH_INVARIANT; }},
    {"dq.dtype is bf16, must be fp32 with FA3_FLAG_ACCUMULATE", invalid, [](B& p) { p.flags = FA3_FLAG_ACCUMULATE; }},
    {"mask is 99, must be a fa3_mask", invalid, [](B& p) { p.mask = 99; }},
    {"softmax_scale is -1, must be > 0", invalid, [](B& p) { p.softmax_scale = -1; }},
    {"softmax_scale is nan", invalid, [](B& p) { p.softmax_scale = NAN; }},
    {"q.dtype is 0, must be", invalid, [](B& p) { p.q.dtype = FA3_DTYPE_NONE; }},
    {"dk.dtype is 99, must be", invalid, [](B& p) { p.dk.dtype = 99; }},
    {"k.dtype is fp16, must be bf16 as q's", invalid, [](B& p) { p.k.dtype = FA3_DTYPE_FP16; }},
    {"v.dtype is fp32, must be bf16 as q's", invalid, [](B& p) { p.v.dtype = FA3_DTYPE_FP32; }},
    {"k.dtype is bf16, must be e4m3 as q's", invalid, [](B& p) { p.q.dtype = FA3_DTYPE_E4M3; }},
    {"q_scale is absent", invalid, [](B& p) { p.q.dtype = p.k.dtype = p.v.dtype = FA3_DTYPE_E4M3; }},
    {"dv.dtype is e4m3, which only q, k and v have", unsupported, [](B& p) { p.dv.dtype = FA3_DTYPE_E4M3; }},
    {"dout.dtype is e5m2", unsupported, [](B& p) { p.dout.dtype = FA3_DTYPE_E5M2; }},
    {"lse.dtype is bf16, must be fp32", invalid, [](B& p) { p.lse.dtype = FA3_DTYPE_BF16; }},
    {"dlse.dtype is fp16, must be fp32", invalid, [](B& p) { p.dlse.dtype = FA3_DTYPE_FP16; }},
    {"lse.dtype is 99, must be a fa3_dtype", invalid, [](B& p) { p.lse.dtype = 99; }},
    {"q.rank is 3, must be 4", invalid, [](B& p) { p.q.rank = 3; }},
    {"dq.rank is 0, must be 4", invalid, [](B& p) { p.dq.rank = 0; }},
    {"lse.rank is 0, must be 3", invalid, [](B& p) { p.lse.rank = 0; }},
    {"dlse.rank is 4, must be 3", invalid, [](B& p) { p.dlse.rank = 4; }},
    {"o.dim[1] is -1", invalid, [](B& p) { p.o.dim[1] = -1; }},
    {"k.dim[0] is 3, must equal q.dim[0], which is 2", invalid, [](B& p) { p.k.dim[0] = 3; }},
    {"k.dim[3] is 8, must equal q.dim[3]", invalid, [](B& p) { p.k.dim[3] = 8; }},
    {"k.dim[2] is 3, must divide the query heads", invalid,
     [](B& p) { p.k.dim[2] = p.v.dim[2] = p.dk.dim[2] = p.dv.dim[2] = 3; }},
    {"v.dim[1] is 6, must equal k.dim[1], which is 5", invalid, [](B& p) { p.v.dim[1] = 6; }},
    {"o.dim[2] is 2, must equal q.dim[2], which is 4", invalid, [](B& p) { p.o.dim[2] = 2; }},
    {"o.dim[3] is 16, must equal v.dim[3], which is 32", invalid, [](B& p) { p.v.dim[3] = 32; }},
    {"dout.dim[3] is 8, must equal o.dim[3]", invalid, [](B& p) { p.dout.dim[3] = 8; }},
    {"dq.dim[0] is 1, must equal q.dim[0]", invalid, [](B& p) { p.dq.dim[0] = 1; }},
    {"dq.dim[3] is 8, must equal q.dim[3]", invalid, [](B& p) { p.dq.dim[3] = 8; }},
    {"dk.dim[1] is 3, must equal k.dim[1]", invalid, [](B& p) { p.dk.dim[1] = 3; }},
    {"dk.dim[3] is 8, must equal k.dim[3]", invalid, [](B& p) { p.dk.dim[3] = 8; }},
    {"dv.dim[2] is 4, must equal v.dim[2]", invalid, [](B& p) { p.dv.dim[2] = 4; }},
    {"dv.dim[3] is 24, must equal v.dim[3]", invalid, [](B& p) { p.dv.dim[3] = 24; }},
    {"lse.dim[1] is 3, must equal q.dim[2], which is 4", invalid, [](B& p) { p.lse.dim[1] = 3; }},
    {"dlse.dim[2] is 4, must equal q.dim[1], which is 3", invalid, [](B& p) { p.dlse.dim[2] = 4; }},
    {"q.dim[3] (head_dim) is 12, must be a multiple of 8", invalid,
     [](B& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv}) t->dim[3] = 12;
     }},
    {"q.dim[3] (head_dim) is 264; the largest", unsupported,
     [](B& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv}) t->dim[3] = 264;
     }},
    {"q.dim[3] (head_dim) is 264; the largest", unsupported, [](B& p) { p.q.dim[3] = 264; }},  // not k's to be as large
    {"v.dim[3] (head_dim_v) is 264; the largest", unsupported, [](B& p) { p.v.dim[3] = 264; }},
    {"v.dim[3] (head_dim_v) is 20, must be a multiple of 8", invalid,
     [](B& p) {
       for (fa3_tensor* t : {&p.v, &p.o, &p.dout, &p.dv}) t->dim[3] = 20;
     }},
    {"v.dim[3] (head_dim_v) is 264; the largest", unsupported,
     [](B& p) {
       for (fa3_tensor* t : {&p.v, &p.o, &p.dout, &p.dv}) t->dim[3] = 264;
     }},
    {"dq.stride[1] is 0, must be > 0", invalid, [](B& p) { p.dq.stride[1] = 0; }},
    {"dv.stride[2] is 8: elements of an output may overlap", invalid, [](B& p) { p.dv.stride[2] = 8; }},
    {"k.dim[1] * k.stride[1] is 5 * 1099511627776", invalid, [](B& p) { p.k.stride[1] = int64_t{1} << 40; }},
    {"q.data is NULL", invalid, [](B& p) { p.q.data = nullptr; }},
    {"dk.data is NULL", invalid, [](B& p) { p.dk.data = nullptr; }},
    {"dlse.data is NULL", invalid, [](B& p) { p.dlse.data = nullptr; }},
    {"must be aligned to 4 bytes", invalid, [](B& p) { p.lse.data = static_cast<char*>(p.lse.data) + 2; }},
    {"must be aligned to 2 bytes", invalid, [](B& p) { p.dout.data = static_cast<char*>(p.dout.data) + 1; }},
    {"dq may overlap dk", invalid, [](B& p) { p.dk.data = p.dq.data; }},
    {"dk may overlap dv", invalid, [](B& p) { p.dv.data = p.dk.data; }},
    {"dv may overlap q", invalid, [](B& p) { p.dv.data = p.q.data; }},
    {"dq may overlap o", invalid, [](B& p) { p.dq.data = p.o.data; }},
    {"dq may overlap dout", invalid, [](B& p) { p.dq.data = p.dout.data; }},
    {"dk may overlap lse", invalid, [](B& p) { p.dk.data = p.lse.data; }},
    {"dq may overlap dlse", invalid, [](B& p) { p.dq.data = p.dlse.data; }},
};

}  // namespace

TEST_CASE("bad arguments of the backward pass are refused by name, and nothing is written", "[backward]") {
  Call call({.batch = 2, .seqlen_q = 3, .seqlen_k = 5, .heads = 4, .heads_kv = 2, .head_dim = 16}, FA3_DTYPE_BF16,
            FA3_MASK_NONE, FA3_DTYPE_BF16, true);
  const B good = call.p;
  const auto before = call.gradients();
  for (const Change& change : bad_changes) {
    INFO(change.name);
    B p = good;
    change.apply(p);
    expect(fa3_reference_backward(&p, 1), change);
    CHECK((call.gradients() == before));
  }
  expect(fa3_reference_backward(nullptr, 1), invalid, "params is NULL");
  expect(fa3_reference_backward(&good, -1), invalid, "threads is -1, must be >= 0");
  CHECK(fa3_reference_backward(&good, 1) == FA3_OK);
  CHECK(std::string(fa3_last_error_message()) == "");
}

}  // namespace fa3::test
