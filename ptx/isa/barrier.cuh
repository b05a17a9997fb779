// Named barriers of a thread block and the barrier of a cluster (PTX ISA, Parallel Synchronization and
// Communication Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: bar.sync id, threads;  (bar, barrier)
FA3_DEVICE void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ptx: bar.arrive id, threads;  (bar, barrier)
FA3_DEVICE void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ptx: barrier.cluster.arrive.aligned;  (barrier.cluster)
FA3_DEVICE void barrier_cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }

// ptx: barrier.cluster.wait.aligned;  (barrier.cluster)
FA3_DEVICE void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

}  // namespace fa3::ptx
