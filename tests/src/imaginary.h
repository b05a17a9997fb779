// A right call of each function that has a struct of its own.
#pragma once
#include "call.h"

namespace fa3::test {

// Parameters that are right, with every field that an older client may lack, where that is possible. Pointers are far
// apart and lead nowhere: only for functions that never follow them.
template <class Params>
Params imaginary_params();
template <>
inline fa3_forward_params imaginary_params() {
  fa3_forward_params p = imaginary();
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT, p.softmax_scale = 0.5f;
  return p;
}
template <>
inline fa3_backward_params imaginary_params() {
  const fa3_forward_params f = imaginary();
  const auto at = [](fa3_tensor t, uintptr_t place) {
    t.data = reinterpret_cast<void*>(place << 42);
    return t;
  };
  fa3_backward_params p = FA3_BACKWARD_PARAMS_INIT;
  p.q = f.q, p.k = f.k, p.v = f.v, p.o = f.o, p.lse = f.lse;
  p.dout = at(f.o, 6), p.dq = at(f.q, 7), p.dk = at(f.k, 8), p.dv = at(f.v, 9), p.dlse = at(f.lse, 10);
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT, p.softmax_scale = 0.5f;
  return p;
}
template <>
inline fa3_quantize_params imaginary_params() {
  const auto at = [](uintptr_t place) { return reinterpret_cast<void*>(place << 42); };
  fa3_quantize_params p = FA3_QUANTIZE_PARAMS_INIT;
  p.x = tensor(at(1), FA3_DTYPE_BF16, {2, 100, 4, 64}), p.y = tensor(at(2), FA3_DTYPE_E4M3, {2, 100, 4, 64});
  p.scale = tensor(at(3), FA3_DTYPE_FP32, {2, 4, 2}), p.mean = tensor(at(4), FA3_DTYPE_FP32, {2, 4, 64});
  p.rotary_cos = tensor(at(5), FA3_DTYPE_FP32, {100, 16}), p.rotary_sin = tensor(at(6), FA3_DTYPE_FP32, {100, 16});
  p.k_mean = tensor(at(7), FA3_DTYPE_FP32, {2, 2, 64}), p.lse_offset = tensor(at(8), FA3_DTYPE_FP32, {2, 4, 100});
  p.softmax_scale = 0.5f;
  return p;
}
template <>
inline fa3_append_params imaginary_params() {
  const auto at = [](uintptr_t place) { return reinterpret_cast<void*>(place << 42); };
  fa3_append_params p = FA3_APPEND_PARAMS_INIT;
  p.k = tensor(at(1), FA3_DTYPE_BF16, {2, 10, 4, 64}), p.v = tensor(at(2), FA3_DTYPE_BF16, {2, 10, 4, 40});
  p.k_cache = tensor(at(3), FA3_DTYPE_BF16, {2, 100, 4, 64});
  p.v_cache = tensor(at(4), FA3_DTYPE_BF16, {2, 100, 4, 40});
  p.cache_seqlens = tensor(at(5), FA3_DTYPE_INT32, {2}), p.seqused_new = tensor(at(6), FA3_DTYPE_INT32, {2});
  p.page_table = tensor(at(7), FA3_DTYPE_INT32, {2, 3});
  p.q = tensor(at(8), FA3_DTYPE_BF16, {2, 10, 8, 64}), p.q_out = tensor(at(9), FA3_DTYPE_BF16, {2, 10, 8, 64});
  p.rotary_cos = tensor(at(10), FA3_DTYPE_FP32, {300, 16}), p.rotary_sin = tensor(at(11), FA3_DTYPE_FP32, {300, 16});
  p.rotary_positions = tensor(at(12), FA3_DTYPE_INT64, {2});
  return p;
}
template <>
inline fa3_combine_params imaginary_params() {
  const auto at = [](uintptr_t place) { return reinterpret_cast<void*>(place << 42); };
  fa3_combine_params p = FA3_COMBINE_PARAMS_INIT;
  p.o_parts = tensor(at(1), FA3_DTYPE_BF16, {3, 2, 100, 4, 64});
  p.lse_parts = tensor(at(2), FA3_DTYPE_FP32, {3, 2, 4, 100});
  p.o = tensor(at(3), FA3_DTYPE_FP16, {2, 100, 4, 64}), p.lse = tensor(at(4), FA3_DTYPE_FP32, {2, 4, 100});
  return p;
}

}  // namespace fa3::test
