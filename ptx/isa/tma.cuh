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

// ptx: cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
//      [dst], [map, {c0, c1, c2, c3, c4}], [mbar];  (cp.async.bulk.tensor)
FA3_DEVICE void cp_async_bulk_tensor_5d_load(uint32_t dst, const void* map, uint32_t mbar, int c0, int c1, int c2,
                                             int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst),
      "l"(map), "r"(mbar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// ptx: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [dst], [src], size, [mbar];  (cp.async.bulk)
FA3_DEVICE void cp_async_bulk_load(uint32_t dst, const void* src, uint32_t size, uint32_t mbar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(src), "r"(size), "r"(mbar)
               : "memory");
}

// ptx: cp.async.ca.shared.global [dst], [src], 4;  (cp.async)
FA3_DEVICE void cp_async_ca_4(uint32_t dst, const void* src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

// ptx: cp.async.ca.shared.global [dst], [src], 4, size;  (cp.async)
// size: 4, or 0 for zeros.
FA3_DEVICE void cp_async_ca_4_zfill(uint32_t dst, const void* src, uint32_t size) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(src), "r"(size) : "memory");
}

// ptx: cp.async.cg.shared.global [dst], [src], 16, size;  (cp.async)
// size: 16, or 0 for zeros. Of other sizes memcheck reports all 16 bytes as read, though they are not.
FA3_DEVICE void cp_async_cg_16_zfill(uint32_t dst, const void* src, uint32_t size) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(size) : "memory");
}

// ptx: cp.async.mbarrier.arrive.noinc.shared.b64 [addr];  (cp.async.mbarrier.arrive)
// Arrives when all cp.async that the thread has issued before are done.
FA3_DEVICE void cp_async_mbarrier_arrive_noinc(uint32_t addr) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(addr) : "memory");
}

// ptx: cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group
//      [map, {c0, c1, c2, c3}], [src];  (cp.async.bulk.tensor)
FA3_DEVICE void cp_async_bulk_tensor_4d_store(const void* map, uint32_t src, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

// ptx: cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group
//      [map, {c0, c1, c2, c3, c4}], [src];  (cp.async.bulk.tensor)
FA3_DEVICE void cp_async_bulk_tensor_5d_store(const void* map, uint32_t src, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
                   map),
               "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

// ptx: prefetch.tensormap [map];  (prefetch, prefetchu)
FA3_DEVICE void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ptx: cp.async.bulk.commit_group;  (cp.async.bulk.commit_group)
FA3_DEVICE void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// ptx: cp.async.bulk.global.shared::cta.bulk_group [dst], [src], size;  (cp.async.bulk)
FA3_DEVICE void cp_async_bulk_store(void* dst, uint32_t src, uint32_t size) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(size)
               : "memory");
}

// ptx: cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [dst], [src], size;  (cp.reduce.async.bulk)
FA3_DEVICE void cp_reduce_async_bulk_add_f32(void* dst, uint32_t src, uint32_t size) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst), "r"(src),
               "r"(size)
               : "memory");
}

// ptx: cp.async.bulk.wait_group Pending;  (cp.async.bulk.wait_group)
template <int Pending>
FA3_DEVICE void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

// ptx: cp.async.bulk.wait_group.read Pending;  (cp.async.bulk.wait_group)
// The sources in shared memory may be overwritten; the writes to global memory may still be under way.
template <int Pending>
FA3_DEVICE void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

}  // namespace fa3::ptx
