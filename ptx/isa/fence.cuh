// Fences (PTX ISA, Parallel Synchronization and Communication Instructions), and the ordered accesses that the tile
// counter's hand-over and the parts of split tiles need (Data Movement and Conversion Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: fence.proxy.async.shared::cta;  (membar / fence)
// Ordinary writes to shared memory become visible to TMA and wgmma.
FA3_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ptx: fence.proxy.async.global;  (membar / fence)
// The same for global memory and TMA.
FA3_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ptx: fence.mbarrier_init.release.cluster;  (membar / fence)
FA3_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// ptx: ld.acquire.gpu.global.u32 d, [addr];  (ld)
FA3_DEVICE uint32_t ld_acquire_gpu_u32(const uint32_t* addr) {
  uint32_t d;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(d) : "l"(addr) : "memory");
  return d;
}

// ptx: ld.acquire.gpu.global.u64 d, [addr];  (ld)
FA3_DEVICE unsigned long long ld_acquire_gpu_u64(const unsigned long long* addr) {
  unsigned long long d;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(d) : "l"(addr) : "memory");
  return d;
}

// ptx: st.release.gpu.global.u64 [addr], value;  (st)
FA3_DEVICE void st_release_gpu_u64(unsigned long long* addr, unsigned long long value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(addr), "l"(value) : "memory");
}

// ptx: atom.relaxed.gpu.global.add.u32 d, [addr], value;  (atom)
FA3_DEVICE uint32_t atom_add_gpu_u32(uint32_t* addr, uint32_t value) {
  uint32_t d;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(d) : "l"(addr), "r"(value) : "memory");
  return d;
}

// ptx: atom.acquire.gpu.global.add.u32 d, [addr], value;  (atom)
FA3_DEVICE uint32_t atom_add_acquire_gpu_u32(uint32_t* addr, uint32_t value) {
  uint32_t d;
  asm volatile("atom.acquire.gpu.global.add.u32 %0, [%1], %2;" : "=r"(d) : "l"(addr), "r"(value) : "memory");
  return d;
}

// ptx: atom.acq_rel.gpu.global.add.u32 d, [addr], value;  (atom)
FA3_DEVICE uint32_t atom_add_acq_rel_gpu_u32(uint32_t* addr, uint32_t value) {
  uint32_t d;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(d) : "l"(addr), "r"(value) : "memory");
  return d;
}

// ptx: red.release.gpu.global.add.u32 [addr], value;  (red)
FA3_DEVICE void red_add_release_gpu_u32(uint32_t* addr, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(addr), "r"(value) : "memory");
}

}  // namespace fa3::ptx
