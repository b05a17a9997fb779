// Backward calls whose gradients are float32 on the simulated driver, from the caller's parameters to gradients: the
// launches that the host makes compute what the reference does, and add it to what is there if that is asked for.
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "../device/simulated_device.h"
#include "e4m3_gradients.h"
#include "half.h"

namespace fa3::test {
namespace {

struct Shape {
  int64_t batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim, head_dim_v;
};

// A tensor with memory of its own; a gradient has rows with gaps, and poison in them.
struct Numbers {
  static constexpr float poison = 12345;
  std::vector<float> fp32;
  std::vector<uint16_t> rounded;
  fa3_tensor tensor{};

  Numbers(int32_t dtype, const std::vector<int64_t>& dims, int64_t gap, std::mt19937_64* random) {
    tensor.dtype = dtype, tensor.rank = int32_t(dims.size());
    int64_t next = 1;
    for (int i = tensor.rank - 1; i >= 0; --i) {
      tensor.dim[i] = dims[size_t(i)], tensor.stride[i] = next;
      next *= std::max<int64_t>(1, dims[size_t(i)]);
      if (i == tensor.rank - 1) next += gap;
    }
    std::normal_distribution<float> normal;
    fp32.assign(size_t(next) + 16, poison), rounded.assign(size_t(next) + 16, 0);
    each([&](int64_t at) {
      const float x = random ? normal(*random) : 0;
      fp32[size_t(at)] = x, rounded[size_t(at)] = tools::to_bf16(x);
    });
    if (dtype == FA3_DTYPE_FP32) tensor.data = fp32.data();
    else tensor.data = rounded.data();
  }
  template <class Function>
  void each(Function function) const {
    const fa3_tensor& t = tensor;
    for (int64_t a = 0; a < t.dim[0]; ++a)
      for (int64_t b = 0; b < t.dim[1]; ++b)
        for (int64_t c = 0; c < t.dim[2]; ++c)
          for (int64_t x = 0; x < (t.rank == 4 ? t.dim[3] : 1); ++x)
            function(a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + x);
  }
  bool is_clean_around() const {
    std::vector<bool> inside(fp32.size(), false);
    each([&](int64_t at) { inside[size_t(at)] = true; });
    for (size_t i = 0; i < fp32.size(); ++i)
      if (!inside[i] && fp32[i] != poison) return false;
    return true;
  }
};

double distance(const Numbers& a, const Numbers& b) {
  double off = 0, size = 0;
  a.each([&](int64_t at) {
    off += std::pow(double{a.fp32[size_t(at)]} - b.fp32[size_t(at)], 2), size += std::pow(b.fp32[size_t(at)], 2);
  });
  return std::sqrt(off / std::max(size, 1e-30));
}

void run(const Shape& s, int32_t mask, uint64_t flags, uint64_t seed) {
  INFO("batch " << s.batch << " q " << s.seqlen_q << " k " << s.seqlen_k << " heads " << s.heads << "/" << s.heads_kv
                << " d " << s.head_dim << "/" << s.head_dim_v << " mask " << mask << " flags " << flags);
  std::mt19937_64 random(seed);
  const auto made = [&](int32_t dtype, std::vector<int64_t> dims) { return Numbers(dtype, dims, 0, &random); };
  const Numbers q = made(FA3_DTYPE_BF16, {s.batch, s.seqlen_q, s.heads, s.head_dim});
  const Numbers k = made(FA3_DTYPE_BF16, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
  const Numbers v = made(FA3_DTYPE_BF16, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v});
  const Numbers dout = made(FA3_DTYPE_BF16, {s.batch, s.seqlen_q, s.heads, s.head_dim_v});
  const Numbers dlse = made(FA3_DTYPE_FP32, {s.batch, s.heads, s.seqlen_q});
  const Numbers o = made(FA3_DTYPE_BF16, {s.batch, s.seqlen_q, s.heads, s.head_dim_v});
  const Numbers lse = made(FA3_DTYPE_FP32, {s.batch, s.heads, s.seqlen_q});
  fa3_backward_params p{};
  p.struct_size = sizeof p, p.flags = flags, p.mask = mask;
  p.q = q.tensor, p.k = k.tensor, p.v = v.tensor, p.dout = dout.tensor;
  p.o = o.tensor, p.lse = lse.tensor, p.dlse = dlse.tensor;
  fa3_forward_params f{};
  f.struct_size = sizeof f, f.mask = mask;
  f.q = p.q, f.k = p.k, f.v = p.v, f.o = p.o, f.lse = p.lse;
  REQUIRE(fa3_reference_forward(&f, 1) == FA3_OK);

  const auto gradient = [&](const Numbers& of) {
    const fa3_tensor& t = of.tensor;
    return Numbers(FA3_DTYPE_FP32, {t.dim[0], t.dim[1], t.dim[2], t.dim[3]}, 4, &random);
  };
  std::vector<Numbers> launched;
  for (const Numbers* of : {&q, &k, &v}) launched.push_back(gradient(*of));
  std::vector<Numbers> right = launched;
  const auto with = [&](std::vector<Numbers>& gradients) {
    fa3_backward_params call = p;
    fa3_tensor* const places[] = {&call.dq, &call.dk, &call.dv};
    for (size_t n = 0; n < 3; ++n) *places[n] = gradients[n].tensor, places[n]->data = gradients[n].fp32.data();
    return call;
  };
  const fa3_backward_params reference = with(right), device = with(launched);
  REQUIRE(fa3_reference_backward(&reference, 1) == FA3_OK);
  size_t bytes = 0;
  REQUIRE(fa3_backward_workspace_size(&device, &bytes) == FA3_OK);
  constexpr size_t guard = 256;
  constexpr char poison = char(0xff);  // NaN
  std::vector<char> memory(bytes + 2 * guard, poison);
  const fa3_status status = fa3_backward(&device, memory.data() + guard, bytes, nullptr);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
  CHECK(std::all_of(memory.begin(), memory.begin() + guard, [](char byte) { return byte == poison; }));
  CHECK(std::all_of(memory.end() - guard, memory.end(), [](char byte) { return byte == poison; }));
  for (size_t n = 0; n < 3; ++n) {
    INFO("gradient " << n);
    CHECK(distance(launched[n], right[n]) < 2e-6);
    CHECK(launched[n].is_clean_around());
  }
}

}  // namespace

TEST_CASE("gradients in float32, launched", "[backward]") {
  make_current();
  const Shape shapes[] = {{2, 70, 150, 4, 2, 64, 64},   {1, 130, 100, 2, 2, 128, 128}, {1, 200, 60, 6, 1, 40, 72},
                          {2, 300, 170, 2, 2, 64, 48},  {1, 0, 70, 2, 1, 64, 64},      {2, 70, 0, 2, 1, 128, 128},
                          {1, 150, 130, 20, 20, 8, 16}, {1, 70, 70, 0, 2, 64, 64},    {1, 130, 150, 4, 2, 136, 256},
                          {2, 150, 70, 2, 1, 40, 200}};
  uint64_t seed = 1;
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_ACCUMULATE},
                                   uint64_t{FA3_FLAG_ACCUMULATE | FA3_FLAG_DETERMINISTIC}})
        run(shape, mask, flags, seed++);
}

TEST_CASE("gradients of e4m3 in float32, launched", "[e4m3][backward]") {
  make_current();
  for (const E4m3Form& form : e4m3_forms()) {
    E4m3Call call(form, 3);
    fa3_backward_params& p = call.p;
    fa3_tensor* const gradients[] = {&p.dq, &p.dk, &p.dv};
    for (fa3_tensor* t : gradients) *t = call.make(FA3_DTYPE_FP32, std::vector<int64_t>(t->dim, t->dim + t->rank));
    INFO(form.name);
    REQUIRE(fa3_reference_backward(&p, 1) == FA3_OK);
    std::vector<std::vector<double>> right;
    for (const fa3_tensor* t : gradients) right.push_back(call.numbers(*t));
    call.clear_gradients();
    size_t bytes = 0;
    REQUIRE(fa3_backward_workspace_size(&p, &bytes) == FA3_OK);
    std::vector<char> memory(bytes + 256);
    REQUIRE(fa3_backward(&p, memory.data(), bytes, nullptr) == FA3_OK);
    // Elements times scales are rounded to dout's dtype.
    for (size_t n = 0; n < 3; ++n)
      CHECK(relative_error(call.numbers(*gradients[n]), right[n]) < (form.dtype == FA3_DTYPE_BF16 ? 1.2e-2 : 1.5e-3));
  }
}

}  // namespace fa3::test
