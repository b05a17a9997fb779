// The paper's Algorithm 4 (appendix B.3), three stages: the QK of one block, the softmax of the block before and the PV
// of the block before that are to run at once. The row alg4asis (as ptxas orders it) is of this file, too. For
// comparison; the kernel for use is fwd.cu. Comments cite the paper's lines as A4.n; how this differs from them:
// alg1.cu. Besides, A4.15, the copy of S_next to S, is done by taking two blocks at a time with the two exchanged, and
// A4.16, the copy of P_next to P, is the conversion after the wait, so that there is no second P.
#include <type_traits>

#include "../forward/consumer.cuh"
#include "../forward/producer.cuh"
#include "../tile/block.cuh"
#include "../tile/scores/softmax.cuh"

namespace fa3 {
using namespace ptx;

// A consumer warpgroup: 64 rows of each tile. `warp` of its four.
FA3_DEVICE void consumer(const Params& p, Smem& smem, int warpgroup, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();
  Progress at(smem, warpgroup, warp);
  const KvRing& ring = at.ring;
  const Score score(p);
  float S[Bc / 2], S_next[Bc / 2], O[dv / 2], alpha[2];
  uint32_t P[Bc / 4];
  RowState state;

  while (at.next_tile(O, state, p)) {          // A4.1
    uint32_t i = at.own();                     // use of the K/V ring that holds K(j)
    int j = at.blocks() - 1;                   // K/V block of the QK
    auto issue_scores = [&](float (&to)[Bc / 2]) {
      ring.wait_k(i);                          // A4.2, A4.5
      wgmma_fence();
      issue_qk(to, at.q(), at.k(i));           // A4.3, A4.6
      wgmma_commit_group();
      wgmma_wait_group<0>();
      wgmma_owned(to);
      ring.release_k(i, false);
    };
    auto softmax = [&](float (&S)[Bc / 2], int j) {
      if (needs_mask(visible(p), j, at.block.row)) mask(S, visible(p), j, at.warp_row());
      softmax_online(S, state, alpha, score);
    };
    auto finish_pv = [&](uint32_t i) {         // O = O alpha + P V, waited for
      scale_rows(O, alpha);                    // A4.19, A4.23
      wgmma_owned(O);
      ring.wait_v(i);                          // A4.18, A4.22
      wgmma_fence();
      issue_pv(O, P, at.v(i), true);           // A4.20, A4.24
      wgmma_commit_group();
      wgmma_wait_group<0>();
      wgmma_owned(O);
    };

    issue_scores(S);
    softmax(S, j);                             // A4.4
    convert(S, P);
    wgmma_owned(P);
    if (j > 0) {
      i++, j--;
      issue_scores(S);
      auto step = [&](float (&S)[Bc / 2], float (&S_next)[Bc / 2]) {
        i++, j--;
        ring.wait_k(i);                        // A4.8
        ring.wait_v(i - 1);                    // A4.10, before the fence, so that one is enough
        scale_rows(O, alpha);                  // A4.11
        wgmma_owned(O);
        wgmma_fence();
        issue_qk(S_next, at.q(), at.k(i));     // A4.9
        wgmma_commit_group();
        issue_pv(O, P, at.v(i - 1), true);     // A4.12
        wgmma_commit_group();
        softmax(S, j + 1);                     // A4.13
        end_basic_block(state);
        wgmma_wait_group<0>();                 // A4.14
        wgmma_owned(O);
        wgmma_owned(S_next);
        wgmma_owned(S);
        ring.release_k(i, false);
        ring.release_v(i - 1, false);
        convert(S, P);                         // A4.16
        wgmma_owned(P);
      };
      auto drain = [&](float (&S)[Bc / 2]) {   // the softmax and the PV that are left before the last PV
        finish_pv(i);
        ring.release_v(i, false);
        softmax(S, 0);                         // A4.21
        convert(S, P);
        wgmma_owned(P);
      };
      while (j >= 2) {                         // A4.7
        step(S, S_next);
        step(S_next, S);                       // A4.15
      }
      if (j == 1) {
        step(S, S_next);
        drain(S_next);
      } else {
        drain(S);
      }
    }
    finish_pv(i + 1);                          // released by next_tile
    at.finish(O, state, p);                    // A4.25
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
