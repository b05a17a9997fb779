// Named barriers of a thread block (PTX ISA, Parallel Synchronization and Communication Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: bar.sync id, threads;  (bar, barrier)
FA3_DEVICE void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ptx: bar.arrive id, threads;  (bar, barrier)
FA3_DEVICE void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace fa3::ptx
