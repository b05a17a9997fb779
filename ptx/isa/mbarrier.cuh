// mbarrier: the transaction barriers that TMA completes on (PTX ISA, Parallel Synchronization and Communication
// Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: mbarrier.init.shared::cta.b64 [addr], count;  (mbarrier.init)
FA3_DEVICE void mbarrier_init(uint32_t addr, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(addr), "r"(count) : "memory");
}

// ptx: mbarrier.arrive.shared::cta.b64 _, [addr];  (mbarrier.arrive)
FA3_DEVICE void mbarrier_arrive(uint32_t addr) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(addr) : "memory");
}

// ptx: @p mbarrier.arrive.shared::cta.b64 _, [addr];  (mbarrier.arrive)
// Predicated, so that one lane can arrive without a branch in the main loop.
FA3_DEVICE void mbarrier_arrive_if(uint32_t addr, bool p) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(addr),
               "r"(static_cast<uint32_t>(p))
               : "memory");
}

// ptx: mbarrier.arrive.expect_tx.shared::cta.b64 _, [addr], bytes;  (mbarrier.arrive)
FA3_DEVICE void mbarrier_arrive_expect_tx(uint32_t addr, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(addr), "r"(bytes) : "memory");
}

// ptx: mbarrier.try_wait.parity.shared::cta.b64 p, [addr], parity;  (mbarrier.test_wait / mbarrier.try_wait)
// May suspend the thread for a while; false means: not yet.
FA3_DEVICE bool mbarrier_try_wait_parity(uint32_t addr, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(addr), "r"(parity)
      : "memory");
  return done != 0;
}

// ptx: mbarrier.test_wait.parity.shared::cta.b64 p, [addr], parity;  (mbarrier.test_wait / mbarrier.try_wait)
// The same at once, without suspending the thread.
FA3_DEVICE bool mbarrier_test_wait_parity(uint32_t addr, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(addr), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace fa3::ptx
