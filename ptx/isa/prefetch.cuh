// Sending tensor tiles to the L2 cache (PTX ISA, Data Movement and Conversion Instructions). c0 is the innermost
// coordinate.
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: cp.async.bulk.prefetch.tensor.4d.L2.global.tile [map, {c0, c1, c2, c3}];  (cp.async.bulk.prefetch.tensor)
FA3_DEVICE void cp_async_bulk_prefetch_tensor_4d(const void* map, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c0), "r"(c1),
               "r"(c2), "r"(c3)
               : "memory");
}

}  // namespace fa3::ptx
