// Calls of fa3_backward on the fake driver.
#pragma once
#include <catch2/catch_test_macros.hpp>

#include "../call.h"
#include "../launches.h"

namespace fa3::test {

using B = fa3_backward_params;

// Pointers lead nowhere.
inline B imaginary_backward(const Shape& s = {}, int32_t dtype = FA3_DTYPE_BF16) {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  const auto q_at = [&](uintptr_t n) { return tensor(at(n), dtype, {s.batch, s.seqlen_q, s.heads, s.head_dim}); };
  const auto k_at = [&](uintptr_t n) { return tensor(at(n), dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim}); };
  B p{};
  p.struct_size = sizeof p;
  const auto o_at = [&](uintptr_t n) { return tensor(at(n), dtype, {s.batch, s.seqlen_q, s.heads, s.v_dim()}); };
  const auto v_at = [&](uintptr_t n) { return tensor(at(n), dtype, {s.batch, s.seqlen_k, s.heads_kv, s.v_dim()}); };
  p.q = q_at(1), p.k = k_at(2), p.v = v_at(3), p.o = o_at(4), p.dout = o_at(6);
  p.lse = tensor(at(5), FA3_DTYPE_FP32, {s.batch, s.heads, s.seqlen_q});
  p.dq = q_at(7), p.dk = k_at(8), p.dv = v_at(9);
  return p;
}

// Gradients in float32, packed; their addresses stay.
inline void to_fp32(B& p) {
  for (fa3_tensor* t : {&p.dq, &p.dk, &p.dv}) t->dtype = FA3_DTYPE_FP32;
}

inline fa3_status backward(const B& p, size_t bytes = plenty) {
  return fa3_backward(&p, workspace_memory, bytes, reinterpret_cast<fa3_stream>(stream));
}

inline size_t workspace_of(const B& p) {
  size_t bytes = 0;
  REQUIRE(fa3_backward_workspace_size(&p, &bytes) == FA3_OK);
  return bytes;
}

}  // namespace fa3::test
