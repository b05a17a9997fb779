// The key blocks that a thread block works on, one after another. The producer takes them, and everyone else follows.
#pragma once
#include "../isa/fence.cuh"
#include "../isa/grid.cuh"
#include "../params/backward_params.h"
#include "tile/ring.cuh"

namespace fa3 {

// A ring of numbers of key blocks. The producer publishes each as it takes it, and all other roles read it. Behind the
// last one comes a number that is not of a block (is_block): then everybody ends.
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
  // The n-th key block of this thread block.
  FA3_DEVICE void publish(int n, int key_block) {
    wait(empty[n % claim_buffers], n / claim_buffers & 1 ^ 1);
    number[n % claim_buffers] = key_block;
    arrive(full[n % claim_buffers]);
  }
  FA3_DEVICE int read(int n) const {
    wait(full[n % claim_buffers], n / claim_buffers & 1);
    return number[n % claim_buffers];
  }
  // By a whole warp. Shuffled, so that the compiler takes it to be the same in all lanes.
  FA3_DEVICE int read_by_warp(int n) const { return __shfl_sync(0xffffffffu, read(n), 0); }
  // By one thread of each reader (a warp, or a thread that has a role of its own), which then reads it no more.
  FA3_DEVICE void release(int n) { arrive(empty[n % claim_buffers]); }
};

FA3_DEVICE bool is_block(const BackwardParams& p, int number) {
  return number < p.order.batch_heads * p.order.blocks;
}

FA3_DEVICE bool is_block(const PlannedBackwardParams&, int number) { return number >= 0; }

// The thread block's n-th key block: the first is its own number, all others it draws from a counter.
FA3_DEVICE int claim(const BackwardParams& p, int n) {
  if (n == 0) return ptx::ctaid_x();
  if (p.order.head_tiles == 0) return ptx::ctaid_x() + n * ptx::nctaid_x();  // no pass has set the counter to 0
  return ptx::nctaid_x() + ptx::atom_add_gpu_u32(p.order.claimed, 1);
}
// The same from a list (listed_block), of which only the device knows the length; -1: there is no such block.
FA3_DEVICE int claim(const PlannedBackwardParams& p, int n) {
  const int number = n == 0 ? ptx::ctaid_x() : ptx::nctaid_x() + ptx::atom_add_gpu_u32(p.order.claimed, 1);
  return number < p.counts->blocks * p.order.heads ? number : -1;
}

}  // namespace fa3
