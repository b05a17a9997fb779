// Thread blocks of a cluster, which reach each other's shared memory (PTX ISA, Parallel Synchronization and
// Communication Instructions; Data Movement and Conversion Instructions). An address of shared memory is that of the
// thread block's own until mapa makes it another's.
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: mov.u32 d, %cluster_ctarank;  (mov; Special Registers)
FA3_DEVICE uint32_t cluster_ctarank() {
  uint32_t d;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(d));
  return d;
}

// ptx: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;  (barrier.cluster)
FA3_DEVICE void barrier_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ptx: barrier.cluster.arrive.release; barrier.cluster.wait.acquire;  (barrier.cluster)
// Of threads that have not come together.
FA3_DEVICE void barrier_cluster_unaligned() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ptx: @p mapa.shared::cluster.u32 to, addr, rank; @p mbarrier.arrive.shared::cluster.b64 _, [to];  (mapa;
//      mbarrier.arrive)
FA3_DEVICE void mbarrier_arrive_cluster_if(uint32_t addr, uint32_t rank, bool p) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .u32 to;\nsetp.ne.u32 p, %2, 0;\n"
      "@p mapa.shared::cluster.u32 to, %0, %1;\n@p mbarrier.arrive.shared::cluster.b64 _, [to];\n}\n" ::"r"(addr),
      "r"(rank), "r"(static_cast<uint32_t>(p))
      : "memory");
}

// ptx: mapa.shared::cluster.u32 to, addr, rank;
//      st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], value, [mbar];  (mapa; st.async)
// Both addresses are mapped. The barrier is told of 4 bytes.
FA3_DEVICE void st_async_u32(uint32_t addr, uint32_t value, uint32_t mbar, uint32_t rank) {
  asm volatile(
      "{\n.reg .u32 to, bar;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 bar, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %1, [bar];\n}\n" ::"r"(addr),
      "r"(value), "r"(mbar), "r"(rank)
      : "memory");
}

// ptx: cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
//      [dst], [map, {c0, c1, c2, c3}], [mbar], ranks;  (cp.async.bulk.tensor)
// To the same place in each thread block whose bit is set in ranks, each of which has its own barrier told.
FA3_DEVICE void cp_async_bulk_tensor_4d_load_multicast(uint32_t dst, const void* map, uint32_t mbar, int c0, int c1,
                                                       int c2, int c3, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(dst),
      "l"(map), "r"(mbar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(ranks)
      : "memory");
}

}  // namespace fa3::ptx
