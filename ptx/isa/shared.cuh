// Sixteen bytes of shared memory, from and to addresses that are computed by bits (PTX ISA, Data Movement and
// Conversion Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: ld.shared.v4.u32 {r}, [addr];  (ld)
FA3_DEVICE void ld_shared_v4_u32(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

// ptx: st.shared.v4.u32 [addr], {x0, x1, x2, x3};  (st)
FA3_DEVICE void st_shared_v4_u32(uint32_t addr, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(x0), "r"(x1), "r"(x2), "r"(x3) : "memory");
}

}  // namespace fa3::ptx
