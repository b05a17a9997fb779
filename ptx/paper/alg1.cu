// The paper's Algorithm 1: warp specialization, but no overlap inside a consumer warpgroup: each GEMM is waited for.
// For comparison; the kernel for use is fwd.cu. Comments cite the paper's lines as A1.n.
//
// Where this differs from the paper: blocks are visited from the last to the first, so that masked ones come first; a
// stage of the ring holds K of one block and V of the block before, so V(j) is in use i + 1 if K(j) is in use i; K and
// V of a stage are waited for and released each on its own; thread blocks are persistent, and the producer loads ahead
// into the next tile.
#include <type_traits>

#include "../forward/consumer.cuh"
#include "../forward/producer.cuh"
#include "../tile/block.cuh"
#include "../tile/scores/softmax.cuh"

namespace fa3 {
using namespace ptx;

// A consumer warpgroup: 64 rows of each tile. `warp` of its four.
FA3_DEVICE void consumer(const Params& p, Smem& smem, int warpgroup, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12
  Progress at(smem, warpgroup, warp);
  const KvRing& ring = at.ring;
  const Score score(p);
  float S[Bc / 2], O[dv / 2], alpha[2];
  uint32_t P[Bc / 4];
  RowState state;

  while (at.next_tile(O, state, p)) {          // A1.13, A1.14
    uint32_t i = at.own();                     // use of the K/V ring that holds K(j)
    int j = at.blocks() - 1;                   // K/V block
    auto step = [&](auto masked) {
      ring.wait_k(i);                          // A1.16
      wgmma_fence();
      issue_qk(S, at.q(), at.k(i));            // A1.17
      wgmma_commit_group();
      wgmma_wait_group<0>();
      wgmma_owned(S);
      ring.release_k(i, false);
      if constexpr (masked) mask(S, visible(p), j, at.warp_row());
      softmax_online(S, state, alpha, score);  // A1.18, A1.19
      scale_rows(O, alpha);
      wgmma_owned(O);
      convert(S, P);
      wgmma_owned(P);
      i++;                                     // V(j) comes with the next K
      ring.wait_v(i);                          // A1.20
      wgmma_fence();
      issue_pv(O, P, at.v(i), true);           // A1.21
      wgmma_commit_group();
      wgmma_wait_group<0>();
      wgmma_owned(O);
      if (j > 0) ring.release_v(i, false);     // A1.22; the last V is released by next_tile
    };
    for (; j >= 0 && needs_mask(visible(p), j, at.block.row); j--) step(std::true_type());
    for (; j >= 0; j--) step(std::false_type());
    at.finish(O, state, p);                    // A1.24, A1.25
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  Smem& smem = set_up(p, warp);
  if (warp / 4 == warpgroups) producer(p, smem, warp % 4);
  else consumer(p, smem, warp / 4, warp % 4);
}
