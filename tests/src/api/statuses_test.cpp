// The same fault has the same status, and where it is of the same kind of argument the same words, in every function.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "../imaginary.h"
#include "../refused.h"

namespace fa3::test {
namespace {

fa3_status check(const fa3_forward_params& p) { return fa3_forward_check(&p); }
fa3_status check(const fa3_backward_params& p) { return fa3_backward_check(&p); }
fa3_status check(const fa3_quantize_params& p) { return fa3_quantize_check(&p); }
fa3_status check(const fa3_append_params& p) { return fa3_append_check(&p); }
fa3_status check(const fa3_combine_params& p) { return fa3_combine_check(&p); }

template <class P>
struct Tensor {
  const char* name;
  fa3_tensor P::*member;
};
// Tensors of a function: those whose elements it works on, and numbers beside them, which are fp32.
template <class P>
struct Function {
  P right;
  std::vector<Tensor<P>> elements, numbers;
  std::vector<int32_t> never;  // dtypes that the first of its elements cannot have
  int largest;                 // head_dim
  int unit;                    // of which head_dim is a multiple
};

fa3_forward_params with_all_scales() {
  fa3_forward_params p = imaginary_e4m3();
  const auto numbers = [](uintptr_t n, std::initializer_list<int64_t> dims) {
    return tensor(reinterpret_cast<void*>(n << 42), FA3_DTYPE_FP32, dims);
  };
  p.o.dtype = FA3_DTYPE_E4M3, p.o_scale = numbers(9, {1});
  p.v_mean = numbers(10, {2, 2, 32}), p.lse_offset = numbers(11, {2, 4, 130});
  return p;
}

// The gradients of such a call, but with o in 16 bits.
fa3_backward_params gradients_with_all_scales() {
  const fa3_forward_params f = with_all_scales();
  const auto like = [](const fa3_tensor& t, uintptr_t n) {
    fa3_tensor made = t;
    made.data = reinterpret_cast<void*>(n << 42);
    if (made.dtype == FA3_DTYPE_E4M3) made.dtype = FA3_DTYPE_BF16;
    return made;
  };
  fa3_backward_params p = FA3_BACKWARD_PARAMS_INIT;
  p.q = f.q, p.k = f.k, p.v = f.v, p.o = like(f.o, 4), p.lse = f.lse;
  p.dout = like(f.o, 12), p.dlse = like(f.lse, 13);
  p.dq = like(f.q, 14), p.dk = like(f.k, 15), p.dv = like(f.v, 16);
  p.q_scale = f.q_scale, p.k_scale = f.k_scale, p.v_scale = f.v_scale;
  p.v_mean = f.v_mean, p.lse_offset = f.lse_offset;
  return p;
}

using F = fa3_forward_params;
using B = fa3_backward_params;
using Q = fa3_quantize_params;
using A = fa3_append_params;
using C = fa3_combine_params;
const Function<F> forward{with_all_scales(),
                          {{"q", &F::q}, {"k", &F::k}, {"v", &F::v}, {"o", &F::o}},
                          {{"lse", &F::lse},
                           {"q_scale", &F::q_scale},
                           {"k_scale", &F::k_scale},
                           {"v_scale", &F::v_scale},
                           {"o_scale", &F::o_scale},
                           {"v_mean", &F::v_mean},
                           {"lse_offset", &F::lse_offset}},
                          {FA3_DTYPE_FP32},
                          256,
                          16};
const Function<B> backward{gradients_with_all_scales(),
                           {{"q", &B::q}, {"k", &B::k}, {"v", &B::v}, {"o", &B::o}, {"dout", &B::dout},
                            {"dq", &B::dq}, {"dk", &B::dk}, {"dv", &B::dv}},
                           {{"lse", &B::lse},
                            {"dlse", &B::dlse},
                            {"q_scale", &B::q_scale},
                            {"k_scale", &B::k_scale},
                            {"v_scale", &B::v_scale},
                            {"v_mean", &B::v_mean},
                            {"lse_offset", &B::lse_offset}},
                           {FA3_DTYPE_FP32},
                           256,
                           16};
const Function<Q> quantize{imaginary_params<Q>(),
                           {{"x", &Q::x}, {"y", &Q::y}},
                           {{"scale", &Q::scale},
                            {"mean", &Q::mean},
                            {"rotary_cos", &Q::rotary_cos},
                            {"rotary_sin", &Q::rotary_sin},
                            {"k_mean", &Q::k_mean},
                            {"lse_offset", &Q::lse_offset}},
                           {FA3_DTYPE_FP32, FA3_DTYPE_E4M3},
                           256,
                           16};
const Function<A> append{imaginary_params<A>(),
                         {{"k", &A::k}, {"v", &A::v}, {"k_cache", &A::k_cache}, {"v_cache", &A::v_cache},
                          {"q", &A::q}, {"q_out", &A::q_out}},
                         {{"rotary_cos", &A::rotary_cos}, {"rotary_sin", &A::rotary_sin}},
                         {FA3_DTYPE_FP32, FA3_DTYPE_E4M3},
                         1024,
                         8};
const Function<C> combine{imaginary_params<C>(),
                          {{"o_parts", &C::o_parts}, {"o", &C::o}},
                          {{"lse_parts", &C::lse_parts}, {"lse", &C::lse}},
                          {FA3_DTYPE_E4M3},
                          512,
                          8};

template <class Body>
void for_each_function(const Body& body) {
  body(forward), body(backward), body(quantize), body(append), body(combine);
}

template <class P>
void check_refused(const P& p, fa3_status status, const std::string& text) {
  expect(check(p), status, text);
}

const char* const names[] = {"none", "bf16", "fp16", "fp32", "e4m3", "e5m2"};

}  // namespace

TEST_CASE("a dtype has the same status in every function", "[arguments]") {
  for_each_function([](const auto& function) {
    REQUIRE(check(function.right) == FA3_OK);
    const auto with = [&](const auto& t, int32_t dtype) {
      auto p = function.right;
      (p.*t.member).dtype = dtype;
      return p;
    };
    for (const auto* tensors : {&function.elements, &function.numbers})
      for (const auto& t : *tensors) {
        const std::string is = std::string(t.name) + ".dtype is ";
        check_refused(with(t, FA3_DTYPE_E5M2), unsupported, is + "e5m2, which no function takes; FP8 is e4m3 here");
        const std::string for_numbers = ", which only lengths, page numbers, slots and positions have";
        check_refused(with(t, FA3_DTYPE_INT32), invalid, is + "int32" + for_numbers);
        check_refused(with(t, FA3_DTYPE_INT64), invalid, is + "int64" + for_numbers);
        for (const int32_t dtype : {0, 99, -1})
          check_refused(with(t, dtype), invalid, is + std::to_string(dtype) + ", must be a fa3_dtype other than");
      }
    for (const auto& t : function.numbers)
      for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3})
        check_refused(with(t, dtype), invalid, std::string(t.name) + ".dtype is " + names[dtype] + ", must be fp32");
    // Not "must be": with no other tensor would it be accepted.
    for (const int32_t dtype : function.never)
      check_refused(with(function.elements[0], dtype), unsupported,
             std::string(function.elements[0].name) + ".dtype is " + names[dtype]);
  });
}

TEST_CASE("a head dimension has the same status in every function", "[arguments]") {
  for_each_function([](const auto& function) {
    const auto with = [&](int64_t head_dim) {
      auto p = function.right;
      fa3_tensor& t = p.*function.elements[0].member;
      t.dim[t.rank - 1] = head_dim;
      return p;
    };
    const std::string unit = std::to_string(function.unit), largest = std::to_string(function.largest);
    for (const int64_t wrong : {0, function.unit / 2, 3 * function.unit / 2, function.largest + 1})
      check_refused(with(wrong), invalid,
             "(head_dim) is " + std::to_string(wrong) + ", must be a multiple of " + unit + " from " + unit + " to " +
                 largest);
    for (const int64_t large : {function.largest + function.unit, 4 * function.largest})
      check_refused(with(large), unsupported,
             "(head_dim) is " + std::to_string(large) + "; the largest supported is " + largest);
  });
}

TEST_CASE("a scale of the softmax has the same status in every function", "[arguments]") {
  const auto ask = [](auto p) {
    for (const float wrong : {-1.f, -0x1p-149f, NAN, INFINITY, -INFINITY, 2.5e38f}) {
      p.softmax_scale = wrong;
      check_refused(p, invalid, "softmax_scale is ");
    }
    for (const float right : {0.f, -0.f, 0x1p-149f, 1e-40f, 0x1p-126f, 1.f, 2.3e38f}) {
      p.softmax_scale = right;
      CHECK(check(p) == FA3_OK);
    }
  };
  ask(forward.right), ask(backward.right), ask(quantize.right);
}

TEST_CASE("flags that there are not have the same status in every function", "[arguments]") {
  for_each_function([](const auto& function) {
    auto p = function.right;
    p.flags = uint64_t{1} << 30;
    check_refused(p, invalid, "flags is 0x40000000, has bits that this version does not know");
  });
}

TEST_CASE("the backward pass takes sequences as long as the forward pass does", "[arguments]") {
  constexpr int64_t most = INT32_MAX - 1024;
  for (const int64_t head_dim : {64, 128, 256})
    for (const int64_t batch : {0, 1})
      for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        const auto status_of = [&](int64_t seqlen_q, int64_t seqlen_k) {
          const Shape shape{.batch = batch, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .heads = 1, .heads_kv = 1,
                            .head_dim = head_dim};
          F f = imaginary(shape);
          B b = imaginary_params<B>();
          const auto at = [](fa3_tensor like, const void* data) {
            like.data = const_cast<void*>(data);
            return like;
          };
          b.dlse = {};
          b.q = f.q, b.k = f.k, b.v = f.v, b.o = f.o, b.lse = f.lse, b.dout = at(f.o, b.dout.data);
          b.dq = at(f.q, b.dq.data), b.dk = at(f.k, b.dk.data), b.dv = at(f.v, b.dv.data);
          f.mask = b.mask = mask;
          const fa3_status status = check(f);
          const std::string message = fa3_last_error_message();
          size_t bytes;
          fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
          CHECK(check(b) == status);
          CHECK(message == fa3_last_error_message());
          CHECK(fa3_backward_workspace_size(&b, &bytes) == status);
          CHECK(fa3_backward_kernel_info(&b, 132, 0, &info) == status);
          return status;
        };
        CHECK((status_of(most, 3) == FA3_OK && status_of(3, most) == FA3_OK));
        CHECK((status_of(most + 1, 3) == unsupported && status_of(3, most + 1) == unsupported));
        expect(status_of(INT32_MAX, INT32_MAX), unsupported, "the kernels take up to 2147482623");
      }
}

}  // namespace fa3::test
