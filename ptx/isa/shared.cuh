// Sixteen bytes of shared memory, from and to addresses that are computed by bits (PTX ISA, Data Movement and
// Conversion Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: ld.shared.v4.u32 {d0, d1, d2, d3}, [addr];  (ld)
FA3_DEVICE uint4 ld_shared_v4_u32(uint32_t addr) {
  uint4 d;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "r"(addr)
               : "memory");
  return d;
}

// ptx: st.shared.v4.u32 [addr], {x0, x1, x2, x3};  (st)
FA3_DEVICE void st_shared_v4_u32(uint32_t addr, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(x0), "r"(x1), "r"(x2), "r"(x3) : "memory");
}

}  // namespace fa3::ptx
