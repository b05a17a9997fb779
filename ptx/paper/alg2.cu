// The paper's Algorithm 2: warp specialization, and inside a consumer warpgroup the softmax of one block runs under the
// PV of the block before. The rows alg2pp (with pingpong) and alg2asis (as ptxas orders it) are of this file, too. For
// comparison; the kernel for use is fwd.cu. Comments cite the paper's lines as A2.n; how this differs from them:
// alg1.cu.
#include <type_traits>

#include "../forward/consumer.cuh"
#include "../forward/producer.cuh"
#include "../tile/block.cuh"
#include "../tile/scores/softmax.cuh"

namespace fa3 {
using namespace ptx;

// A consumer warpgroup: 64 rows of each tile. `warp` of its four.
FA3_DEVICE void consumer(const Params& p, Smem& smem, int warpgroup, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A2.1
  Progress at(smem, warpgroup, warp);
  const KvRing& ring = at.ring;
  const Turns& turns = at.turns;
  const Score score(p);
  float S[Bc / 2], O[dv / 2], alpha[2];
  uint32_t P[Bc / 4];
  RowState state;

  while (at.next_tile(O, state, p)) {          // A2.2, A2.3
    uint32_t i = at.own();                     // use of the K/V ring that holds K(j)
    int j = at.blocks() - 1;                   // K/V block
    ring.wait_k(i);
    turns.begin();
    wgmma_fence();
    issue_qk(S, at.q(), at.k(i));              // A2.4
    wgmma_commit_group();
    turns.end();
    wgmma_wait_group<0>();
    wgmma_owned(S);
    ring.release_k(i, false);                  // A2.5
    if (needs_mask(visible(p), j, at.block.row)) mask(S, visible(p), j, at.warp_row());
    softmax_online(S, state, alpha, score);    // A2.6
    convert(S, P);
    wgmma_owned(P);
    j--;
    auto step = [&](auto masked) {
      i++;
      ring.wait_k(i);                          // A2.8
      ring.wait_v(i);                          // A2.10, before the fence, so that one is enough
      turns.begin();
      wgmma_fence();
      issue_qk(S, at.q(), at.k(i));            // A2.9
      wgmma_commit_group();
      issue_pv(O, P, at.v(i), true);           // A2.11
      wgmma_commit_group();
      turns.end();
      wgmma_wait_group<1>();                   // A2.12
      wgmma_owned(S);
      if constexpr (masked) mask(S, visible(p), j, at.warp_row());
      softmax_online(S, state, alpha, score);  // A2.13
      end_basic_block(state);
      wgmma_wait_group<0>();                   // A2.14
      wgmma_owned(O);
      wgmma_owned(S);
      ring.release_k(i, false);                // A2.15
      ring.release_v(i, false);
      scale_rows(O, alpha);
      wgmma_owned(O);
      convert(S, P);                           // A2.16
      wgmma_owned(P);
    };
    for (; j >= 0 && needs_mask(visible(p), j, at.block.row); j--) step(std::true_type());
    for (; j >= 0; j--) step(std::false_type());  // A2.7
    ring.wait_v(i + 1);                        // A2.18
    wgmma_fence();
    issue_pv(O, P, at.v(i + 1), true);         // A2.19; released by next_tile
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(O);
    at.finish(O, state, p);                    // A2.20
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
