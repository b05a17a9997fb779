// TMA: tensor tiles between global and shared memory (PTX ISA, Data Movement and Conversion Instructions).
// c0 is the innermost coordinate. `map` is the address of a 128-byte tensor map in param, const or global memory.
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
//      [dst], [map, {c0, c1, c2, c3}], [mbar];  (cp.async.bulk.tensor)
FA3_DEVICE void cp_async_bulk_tensor_4d_load(uint32_t dst, const void* map, uint32_t mbar, int c0, int c1, int c2,
                                             int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
      "l"(map), "r"(mbar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// ptx: cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group
//      [map, {c0, c1, c2, c3}], [src];  (cp.async.bulk.tensor)
FA3_DEVICE void cp_async_bulk_tensor_4d_store(const void* map, uint32_t src, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

// ptx: prefetch.tensormap [map];  (prefetch, prefetchu)
FA3_DEVICE void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ptx: cp.async.bulk.commit_group;  (cp.async.bulk.commit_group)
FA3_DEVICE void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// ptx: cp.async.bulk.wait_group 0;  (cp.async.bulk.wait_group)
FA3_DEVICE void cp_async_bulk_wait_group_0() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ptx: cp.async.bulk.wait_group.read 0;  (cp.async.bulk.wait_group)
// The sources in shared memory may be overwritten; the writes to global memory may still be under way.
FA3_DEVICE void cp_async_bulk_wait_group_read_0() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

}  // namespace fa3::ptx
