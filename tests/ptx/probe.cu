// Calls every wrapper of ptx/isa, one a kernel; wrappers.py compares the PTX of each with the comment above the
// wrapper. A kernel's parameters are those of its wrapper, with the same names (arrays as Array), then the place where
// the results are stored, in order. The kernels are never run.
#include "isa/barrier.cuh"
#include "isa/cluster.cuh"
#include "isa/fence.cuh"
#include "isa/grid.cuh"
#include "isa/math.cuh"
#include "isa/matrix.cuh"
#include "isa/mbarrier.cuh"
#include "isa/prefetch.cuh"
#include "isa/setmaxnreg.cuh"
#include "isa/shared.cuh"
#include "isa/tma.cuh"
#include "isa/wgmma.cuh"

using namespace fa3::ptx;

template <typename T, int Count>
struct Array {
  T v[Count];
};

template <typename T, int Count>
__device__ void put(T* out, const T (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i++) out[i] = values[i];
}

#define PROBE(name) extern "C" __global__ void __launch_bounds__(128, 1) probe_##name

PROBE(bar_sync)(int id, int threads) { bar_sync(id, threads); }
PROBE(bar_arrive)(int id, int threads) { bar_arrive(id, threads); }

PROBE(fence_proxy_async_shared)() { fence_proxy_async_shared(); }
PROBE(fence_proxy_async_global)() { fence_proxy_async_global(); }
PROBE(cluster_ctarank)(uint32_t* out) { *out = cluster_ctarank(); }
PROBE(barrier_cluster)() { barrier_cluster(); }
PROBE(barrier_cluster_unaligned)() { barrier_cluster_unaligned(); }
PROBE(mbarrier_arrive_cluster_if)(uint32_t addr, uint32_t rank, bool p) { mbarrier_arrive_cluster_if(addr, rank, p); }
PROBE(st_async_u32)(uint32_t addr, uint32_t value, uint32_t mbar, uint32_t rank) {
  st_async_u32(addr, value, mbar, rank);
}
PROBE(cp_async_bulk_tensor_4d_load_multicast)(uint32_t dst, const void* map, uint32_t mbar, int c0, int c1, int c2,
                                              int c3, uint16_t ranks) {
  cp_async_bulk_tensor_4d_load_multicast(dst, map, mbar, c0, c1, c2, c3, ranks);
}
PROBE(fence_mbarrier_init)() { fence_mbarrier_init(); }
PROBE(ld_acquire_gpu_u32)(const uint32_t* addr, uint32_t* out) { *out = ld_acquire_gpu_u32(addr); }
PROBE(atom_add_gpu_u32)(uint32_t* addr, uint32_t value, uint32_t* out) { *out = atom_add_gpu_u32(addr, value); }
PROBE(atom_add_acquire_gpu_u32)(uint32_t* addr, uint32_t value, uint32_t* out) {
  *out = atom_add_acquire_gpu_u32(addr, value);
}
PROBE(atom_add_acq_rel_gpu_u32)(uint32_t* addr, uint32_t value, uint32_t* out) {
  *out = atom_add_acq_rel_gpu_u32(addr, value);
}
PROBE(red_add_release_gpu_u32)(uint32_t* addr, uint32_t value) { red_add_release_gpu_u32(addr, value); }
PROBE(ld_acquire_gpu_u64)(const unsigned long long* addr, unsigned long long* out) { *out = ld_acquire_gpu_u64(addr); }
PROBE(st_release_gpu_u64)(unsigned long long* addr, unsigned long long value) { st_release_gpu_u64(addr, value); }

PROBE(griddepcontrol_launch_dependents)() { griddepcontrol_launch_dependents(); }
PROBE(griddepcontrol_wait)() { griddepcontrol_wait(); }
PROBE(ctaid_x)(int* out) { *out = ctaid_x(); }
PROBE(nctaid_x)(int* out) { *out = nctaid_x(); }
PROBE(kept)(int number, int* out) { *out = kept(number); }

PROBE(min_nan_f32)(float x, float y, float* out) { *out = min_nan_f32(x, y); }
PROBE(mov_f32)(float x, float* out) { *out = mov_f32(x); }
PROBE(ex2_approx_ftz)(float x, float* out) { *out = ex2_approx_ftz(x); }
PROBE(rcp_approx_ftz)(float x, float* out) { *out = rcp_approx_ftz(x); }
PROBE(add_rn_bf16x2)(uint32_t a, uint32_t b, uint32_t* out) { *out = add_rn_bf16x2(a, b); }
PROBE(mul_rn_bf16x2)(uint32_t a, uint32_t b, uint32_t* out) { *out = mul_rn_bf16x2(a, b); }
PROBE(cvt_rn_bf16x2_f32)(float high, float low, uint32_t* out) { *out = cvt_rn_bf16x2_f32(high, low); }
PROBE(cvt_rn_f16x2_f32)(float high, float low, uint32_t* out) { *out = cvt_rn_f16x2_f32(high, low); }
PROBE(fma_rn_sat_f16x2)(uint32_t x, uint32_t y, uint32_t z, uint32_t* out) { *out = fma_rn_sat_f16x2(x, y, z); }
PROBE(cvt_rn_satfinite_e4m3x2_f32)(float high, float low, uint16_t* out) {
  *out = cvt_rn_satfinite_e4m3x2_f32(high, low);
}
PROBE(mov_b32_high)(uint32_t x, uint16_t* out) { *out = mov_b32_high(x); }
PROBE(cvt_rn_f16x2_e4m3x2)(uint16_t x, uint32_t* out) { *out = cvt_rn_f16x2_e4m3x2(x); }
PROBE(cvt_f32_f16)(uint16_t x, float* out) { *out = cvt_f32_f16(x); }

PROBE(ld_shared_v4_u32)(Array<uint32_t, 4> r, uint32_t addr, uint32_t* out) {
  ld_shared_v4_u32(r.v, addr);
  put(out, r.v);
}
PROBE(st_shared_v4_u32)(uint32_t addr, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  st_shared_v4_u32(addr, x0, x1, x2, x3);
}
PROBE(ldmatrix_x4)(Array<uint32_t, 4> r, uint32_t addr, uint32_t* out) {
  ldmatrix_x4(r.v, addr);
  put(out, r.v);
}
PROBE(ldmatrix_x4_trans)(Array<uint32_t, 4> r, uint32_t addr, uint32_t* out) {
  ldmatrix_x4_trans(r.v, addr);
  put(out, r.v);
}
PROBE(movmatrix_trans)(uint32_t a, uint32_t* out) { *out = movmatrix_trans(a); }
PROBE(stmatrix_x4_trans)(uint32_t addr, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  stmatrix_x4_trans(addr, r0, r1, r2, r3);
}
PROBE(stmatrix_x4)(uint32_t addr, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  stmatrix_x4(addr, r0, r1, r2, r3);
}
PROBE(mma_m16n8k16_f32_bf16)(float d0, float d1, float d2, float d3, Array<uint32_t, 4> a, uint32_t b0, uint32_t b1,
                             float* out) {
  mma_m16n8k16_f32_bf16(d0, d1, d2, d3, a.v, b0, b1);
  put(out, {d0, d1, d2, d3});
}
PROBE(mma_m16n8k16_f32_f16)(float d0, float d1, float d2, float d3, Array<uint32_t, 4> a, uint32_t b0, uint32_t b1,
                            float* out) {
  mma_m16n8k16_f32_f16(d0, d1, d2, d3, a.v, b0, b1);
  put(out, {d0, d1, d2, d3});
}
PROBE(mma_m16n8k32_f32_e4m3)(float d0, float d1, float d2, float d3, Array<uint32_t, 4> a, uint32_t b0, uint32_t b1,
                             float* out) {
  mma_m16n8k32_f32_e4m3(d0, d1, d2, d3, a.v, b0, b1);
  put(out, {d0, d1, d2, d3});
}

PROBE(mbarrier_init)(uint32_t addr, uint32_t count) { mbarrier_init(addr, count); }
PROBE(mbarrier_arrive)(uint32_t addr) { mbarrier_arrive(addr); }
PROBE(mbarrier_arrive_if)(uint32_t addr, bool p) { mbarrier_arrive_if(addr, p); }
PROBE(mbarrier_arrive_expect_tx)(uint32_t addr, uint32_t bytes) { mbarrier_arrive_expect_tx(addr, bytes); }
PROBE(mbarrier_try_wait_parity)(uint32_t addr, uint32_t parity, uint32_t* out) {
  *out = mbarrier_try_wait_parity(addr, parity);
}
PROBE(mbarrier_test_wait_parity)(uint32_t addr, uint32_t parity, uint32_t* out) {
  *out = mbarrier_test_wait_parity(addr, parity);
}

PROBE(setmaxnreg_inc)() { setmaxnreg_inc<232>(); }
PROBE(setmaxnreg_dec)() { setmaxnreg_dec<40>(); }

PROBE(cp_async_ca_4)(uint32_t dst, const void* src) { cp_async_ca_4(dst, src); }
PROBE(cp_async_ca_4_zfill)(uint32_t dst, const void* src, uint32_t size) { cp_async_ca_4_zfill(dst, src, size); }
PROBE(cp_async_cg_16_zfill)(uint32_t dst, const void* src, uint32_t size) { cp_async_cg_16_zfill(dst, src, size); }
PROBE(cp_async_mbarrier_arrive_noinc)(uint32_t addr) { cp_async_mbarrier_arrive_noinc(addr); }
PROBE(cp_async_bulk_tensor_4d_load)(uint32_t dst, const void* map, uint32_t mbar, int c0, int c1, int c2, int c3) {
  cp_async_bulk_tensor_4d_load(dst, map, mbar, c0, c1, c2, c3);
}
PROBE(cp_async_bulk_tensor_5d_load)(uint32_t dst, const void* map, uint32_t mbar, int c0, int c1, int c2, int c3,
                                    int c4) {
  cp_async_bulk_tensor_5d_load(dst, map, mbar, c0, c1, c2, c3, c4);
}
PROBE(cp_async_bulk_load)(uint32_t dst, const void* src, uint32_t size, uint32_t mbar) {
  cp_async_bulk_load(dst, src, size, mbar);
}
PROBE(cp_async_bulk_tensor_4d_store)(const void* map, uint32_t src, int c0, int c1, int c2, int c3) {
  cp_async_bulk_tensor_4d_store(map, src, c0, c1, c2, c3);
}
PROBE(cp_async_bulk_tensor_5d_store)(const void* map, uint32_t src, int c0, int c1, int c2, int c3, int c4) {
  cp_async_bulk_tensor_5d_store(map, src, c0, c1, c2, c3, c4);
}
PROBE(cp_async_bulk_prefetch_tensor_4d)(const void* map, int c0, int c1, int c2, int c3) {
  cp_async_bulk_prefetch_tensor_4d(map, c0, c1, c2, c3);
}
PROBE(prefetch_tensormap)(const void* map) { prefetch_tensormap(map); }
PROBE(cp_async_bulk_commit_group)() { cp_async_bulk_commit_group(); }
PROBE(cp_async_bulk_store)(void* dst, uint32_t src, uint32_t size) { cp_async_bulk_store(dst, src, size); }
PROBE(cp_reduce_async_bulk_add_f32)(void* dst, uint32_t src, uint32_t size) {
  cp_reduce_async_bulk_add_f32(dst, src, size);
}
PROBE(cp_async_bulk_wait_group)() { cp_async_bulk_wait_group<2>(); }
PROBE(cp_async_bulk_wait_group_read)() { cp_async_bulk_wait_group_read<1>(); }

PROBE(wgmma_fence)() { wgmma_fence(); }
PROBE(wgmma_commit_group)() { wgmma_commit_group(); }
PROBE(wgmma_wait_group)() { wgmma_wait_group<1>(); }
PROBE(wgmma_owned_float)(Array<float, 8> d, float* out) {
  wgmma_owned(d.v);
  put(out, d.v);
}
PROBE(wgmma_owned_uint32)(Array<uint32_t, 4> a, uint32_t* out) {
  wgmma_owned(a.v);
  put(out, a.v);
}

#define PROBE_WGMMA_SS(type, r, TransA, TransB)                                                                        \
  PROBE(wgmma_##type##_ss_##r##_##TransA##TransB)(Array<float, r> d, uint64_t a, uint64_t b, int scale_d, float* out) { \
    wgmma_m64k16_f32_##type##_ss<TransA, TransB>(d.v, a, b, scale_d);                                                  \
    put(out, d.v);                                                                                                     \
  }
#define PROBE_WGMMA_TYPE(type, r, TransB)                                                                              \
  PROBE_WGMMA_SS(type, r, 0, TransB)                                                                                   \
  PROBE_WGMMA_SS(type, r, 1, TransB)                                                                                   \
  PROBE(wgmma_##type##_rs_##r##_##TransB)(Array<float, r> d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,       \
                                          uint64_t b, int scale_d, float* out) {                                       \
    wgmma_m64k16_f32_##type##_rs<TransB>(d.v, a0, a1, a2, a3, b, scale_d);                                             \
    put(out, d.v);                                                                                                     \
  }
#define PROBE_WGMMA_8BIT(type, r)                                                                                    \
  PROBE(wgmma_##type##_ss_##r)(Array<float, r> d, uint64_t a, uint64_t b, int scale_d, float* out) {                 \
    wgmma_m64k32_f32_##type##_ss(d.v, a, b, scale_d);                                                                \
    put(out, d.v);                                                                                                   \
  }                                                                                                                  \
  PROBE(wgmma_##type##_rs_##r)(Array<float, r> d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,    \
                               int scale_d, float* out) {                                                            \
    wgmma_m64k32_f32_##type##_rs(d.v, a0, a1, a2, a3, b, scale_d);                                                   \
    put(out, d.v);                                                                                                   \
  }
#define PROBE_WGMMA(r)         \
  PROBE_WGMMA_TYPE(bf16, r, 0) \
  PROBE_WGMMA_TYPE(bf16, r, 1) \
  PROBE_WGMMA_TYPE(f16, r, 0)  \
  PROBE_WGMMA_TYPE(f16, r, 1)  \
  PROBE_WGMMA_8BIT(e4m3, r)
PROBE_WGMMA(4)
PROBE_WGMMA(8)
PROBE_WGMMA(16)
PROBE_WGMMA(24)
PROBE_WGMMA(32)
PROBE_WGMMA(40)
PROBE_WGMMA(48)
PROBE_WGMMA(56)
PROBE_WGMMA(64)
PROBE_WGMMA(72)
PROBE_WGMMA(80)
PROBE_WGMMA(88)
PROBE_WGMMA(96)
PROBE_WGMMA(104)
PROBE_WGMMA(112)
PROBE_WGMMA(120)
PROBE_WGMMA(128)
