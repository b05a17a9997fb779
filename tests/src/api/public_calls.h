// Every function of the library that can be refused, as a call that is right. Threads have memory of their own.
#pragma once
#include "../imaginary.h"
#include "../launches.h"
#include "../planned_calls.h"

namespace fa3::test {

struct PublicCall {
  const char* name;
  fa3_status (*run)();
  bool asks_driver, launches = false;
};

namespace detail {
inline thread_local fa3_kernel_info info;
inline thread_local size_t bytes;
inline fa3_status with_info(fa3_status (*ask)(fa3_kernel_info*)) {
  info = FA3_KERNEL_INFO_INIT;
  return ask(&info);
}
inline fa3_stream any_stream() { return reinterpret_cast<fa3_stream>(stream); }

// One key: O is V, and dV is dO.
inline thread_local float q[8] = {1}, k[8] = {2}, v[8] = {3, 4}, o[8], lse[1], dout[8] = {5, 6}, dq[8], dk[8], dv[8];
alignas(16) inline thread_local uint16_t x[16] = {0x3f80};
alignas(16) inline thread_local uint8_t y[16];
inline thread_local float scale[1];
inline fa3_forward_params small_forward() {
  return describe({1, 1, 1, 1, 1, 8}, FA3_DTYPE_FP32, q, k, v, o, lse);
}
inline fa3_backward_params small_backward() {
  const fa3_forward_params f = small_forward();
  const auto packed = [](float* data) { return tensor(data, FA3_DTYPE_FP32, {1, 1, 1, 8}); };
  fa3_backward_params p = FA3_BACKWARD_PARAMS_INIT;
  p.q = f.q, p.k = f.k, p.v = f.v, p.o = f.o, p.lse = f.lse;
  p.dout = packed(dout), p.dq = packed(dq), p.dk = packed(dk), p.dv = packed(dv);
  return p;
}
inline fa3_quantize_params small_quantization() {
  fa3_quantize_params p = FA3_QUANTIZE_PARAMS_INIT;
  p.x = tensor(x, FA3_DTYPE_BF16, {1, 1, 1, 16}), p.y = tensor(y, FA3_DTYPE_E4M3, {1, 1, 1, 16});
  p.scale = tensor(scale, FA3_DTYPE_FP32, {1, 1, 1});
  return p;
}
alignas(16) inline thread_local uint16_t k_cache[16], v_cache[16];
inline thread_local int32_t cache_seqlens[1];
inline fa3_append_params small_append() {
  const auto rows = [](uint16_t* data) { return tensor(data, FA3_DTYPE_BF16, {1, 1, 1, 16}); };
  fa3_append_params p = FA3_APPEND_PARAMS_INIT;
  p.k = p.v = rows(x), p.k_cache = rows(k_cache), p.v_cache = rows(v_cache);
  p.cache_seqlens = tensor(cache_seqlens, FA3_DTYPE_INT32, {1});
  return p;
}
inline fa3_combine_params small_combination() {
  fa3_combine_params p = FA3_COMBINE_PARAMS_INIT;
  p.o_parts = tensor(v, FA3_DTYPE_FP32, {1, 1, 1, 1, 8}), p.lse_parts = tensor(dout, FA3_DTYPE_FP32, {1, 1, 1, 1});
  p.o = tensor(o, FA3_DTYPE_FP32, {1, 1, 1, 8}), p.lse = tensor(lse, FA3_DTYPE_FP32, {1, 1, 1});
  return p;
}
inline const fa3_forward_params& planned() {
  static const fa3_forward_params p = packed_call();
  return p;
}
template <class Params>
const Params& right() {
  static const Params p = imaginary_params<Params>();
  return p;
}
}  // namespace detail

inline const PublicCall public_calls[] = {
    {"fa3_preload", [] { return fa3_preload(); }, true},
    {"fa3_forward",
     [] {
       return fa3_forward(&detail::right<fa3_forward_params>(), workspace_memory, plenty, detail::any_stream());
     },
     true, true},
    {"fa3_forward with lengths",
     [] { return fa3_forward(&detail::planned(), workspace_memory, plenty, detail::any_stream()); }, true, true},
    {"fa3_forward_schedule",
     [] { return fa3_forward_schedule(&detail::planned(), far_away(30), plenty, detail::any_stream()); }, true, true},
    {"fa3_forward_schedule_size of this device",
     [] { return fa3_forward_schedule_size(&detail::planned(), 0, &detail::bytes); }, true},
    {"fa3_forward_schedule_size",
     [] { return fa3_forward_schedule_size(&detail::planned(), 132, &detail::bytes); }, false},
    {"fa3_backward",
     [] {
       return fa3_backward(&detail::right<fa3_backward_params>(), workspace_memory, plenty, detail::any_stream());
     },
     true, true},
    {"fa3_quantize",
     [] {
       return fa3_quantize(&detail::right<fa3_quantize_params>(), workspace_memory, plenty, detail::any_stream());
     },
     true, true},
    {"fa3_append", [] { return fa3_append(&detail::right<fa3_append_params>(), detail::any_stream()); }, true, true},
    {"fa3_combine", [] { return fa3_combine(&detail::right<fa3_combine_params>(), detail::any_stream()); }, true, true},
    {"fa3_forward_workspace_size of this device",
     [] { return fa3_forward_workspace_size(&detail::right<fa3_forward_params>(), 0, &detail::bytes); }, true},
    {"fa3_forward_kernel_info of this device",
     [] {
       return detail::with_info(
           [](auto* info) { return fa3_forward_kernel_info(&detail::right<fa3_forward_params>(), 0, 0, info); });
     },
     true},
    {"fa3_backward_kernel_info of this device",
     [] {
       return detail::with_info(
           [](auto* info) { return fa3_backward_kernel_info(&detail::right<fa3_backward_params>(), 0, 0, info); });
     },
     true},
    {"fa3_forward_check", [] { return fa3_forward_check(&detail::right<fa3_forward_params>()); }, false},
    {"fa3_backward_check", [] { return fa3_backward_check(&detail::right<fa3_backward_params>()); }, false},
    {"fa3_quantize_check", [] { return fa3_quantize_check(&detail::right<fa3_quantize_params>()); }, false},
    {"fa3_append_check", [] { return fa3_append_check(&detail::right<fa3_append_params>()); }, false},
    {"fa3_combine_check", [] { return fa3_combine_check(&detail::right<fa3_combine_params>()); }, false},
    {"fa3_forward_workspace_size",
     [] { return fa3_forward_workspace_size(&detail::right<fa3_forward_params>(), 132, &detail::bytes); }, false},
    {"fa3_backward_workspace_size",
     [] { return fa3_backward_workspace_size(&detail::right<fa3_backward_params>(), &detail::bytes); }, false},
    {"fa3_quantize_workspace_size",
     [] { return fa3_quantize_workspace_size(&detail::right<fa3_quantize_params>(), &detail::bytes); }, false},
    {"fa3_kernel_info_at",
     [] { return detail::with_info([](auto* info) { return fa3_kernel_info_at(0, info); }); }, false},
    {"fa3_tensor_pack",
     [] {
       fa3_tensor t = detail::right<fa3_forward_params>().q;
       return fa3_tensor_pack(&t);
     },
     false},
    {"fa3_reference_forward with lengths",
     [] {
       static int32_t keys[1] = {1};
       fa3_forward_params p = detail::small_forward();
       p.seqused_k = tensor(keys, FA3_DTYPE_INT32, {1});
       return fa3_reference_forward(&p, 0);
     },
     false},
    {"fa3_reference_forward",
     [] {
       const fa3_forward_params p = detail::small_forward();
       return fa3_reference_forward(&p, 0);
     },
     false},
    {"fa3_reference_backward",
     [] {
       const fa3_backward_params p = detail::small_backward();
       return fa3_reference_backward(&p, 0);
     },
     false},
    {"fa3_reference_quantize",
     [] {
       const fa3_quantize_params p = detail::small_quantization();
       return fa3_reference_quantize(&p);
     },
     false},
    {"fa3_reference_append",
     [] {
       const fa3_append_params p = detail::small_append();
       return fa3_reference_append(&p);
     },
     false},
    {"fa3_reference_combine",
     [] {
       const fa3_combine_params p = detail::small_combination();
       return fa3_reference_combine(&p);
     },
     false},
};

}  // namespace fa3::test
