// The key blocks that a thread block works on, one after another. The producer takes them, and everyone else follows.
#pragma once
#include "../../backward_params.h"
#include "../../isa/fence.cuh"
#include "../../isa/grid.cuh"
#include "ring.cuh"

namespace fa3 {

// Numbers of key blocks on their way to those who follow. A number that is none says that there are no more.
inline constexpr int claim_buffers = 4;
struct KeyClaims {
  int32_t number[claim_buffers];
  uint64_t full[claim_buffers], empty[claim_buffers];

  FA3_DEVICE void init(int readers) {
    for (int i = 0; i < claim_buffers; i++) {
      fa3::init(full[i], 1);
      fa3::init(empty[i], readers);
    }
  }
  // The n-th of this thread block.
  FA3_DEVICE void publish(int n, int key_block) {
    wait(empty[n % claim_buffers], n / claim_buffers & 1 ^ 1);
    number[n % claim_buffers] = key_block;
    arrive(full[n % claim_buffers]);
  }
  FA3_DEVICE int read(int n) const {
    wait(full[n % claim_buffers], n / claim_buffers & 1);
    return number[n % claim_buffers];
  }
  // By a whole warp: the compiler is to know that it is the same in all lanes.
  FA3_DEVICE int read_by_warp(int n) const { return __shfl_sync(0xffffffffu, read(n), 0); }
  // By one thread of each reader, when none of its threads will read it again.
  FA3_DEVICE void release(int n) { arrive(empty[n % claim_buffers]); }
};

FA3_DEVICE bool is_block(const BackwardParams& p, int number) {
  return number < p.order.batch_heads * p.order.blocks;
}

// The n-th one to take: the first are given by the launch, the others go to who asks first.
FA3_DEVICE int claim(const BackwardParams& p, int n) {
  if (n == 0) return ptx::ctaid_x();
  if (p.order.head_tiles == 0) return ptx::ctaid_x() + n * ptx::nctaid_x();  // no pass has set the counter to 0
  return ptx::nctaid_x() + ptx::atom_add_gpu_u32(p.order.claimed, 1);
}

}  // namespace fa3
