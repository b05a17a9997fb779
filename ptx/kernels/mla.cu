// FlashAttention-3, forward pass, for head dimensions above 256: O is too wide for one warpgroup's registers, so two
// consumer warpgroups have the same 64 rows (heads packed into rows, packing.h), and each half of O's columns. Both
// compute all scores, and so the same m and l, bit by bit.
//
// With Trait::qv the scores are q k + qv v (multi-head latent attention): V's columns, loaded once, serve as K's, too,
// by another descriptor.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n). Where this differs:
//  - A stage of the ring holds K and V of the same block, as K's columns may be V's. There are two, as a block of 64
//    keys is as large as Q. So PV goes first, and its stage is given back at once, and refilled, while the next QK and
//    softmax run.
//  - A warpgroup waits for each of its products: the other one's run meanwhile, and take the tensor cores longer than
//    its softmax takes.
//  - One piece ends before the next one begins, whose Q, in the one buffer that there is room for, and K are loaded
//    meanwhile.
#include "../tile/block.cuh"
#include "../tile/excess.cuh"
#include "../tile/exit.cuh"
#include "../tile/gemm.cuh"
#include "../tile/mask.cuh"
#include "../tile/planned_producer.cuh"
#include "../tile/score_transform.cuh"
#include "../tile/speculative.cuh"

namespace fa3 {
using namespace ptx;

static_assert(halves_columns && has(Trait::splits) && has(Trait::speculative) && early_q_release && !split_stage);

// A consumer warpgroup: half of the columns of each piece. `number` of the two, `warp` of its four.
FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const KvRing ring{smem};
  const Score score(p);
  ScoreTransform transform(p);

  float S[Bc / 2], O[o_columns / 2];
  uint32_t P[p_registers];
  RowState state;
  Bound bound;
  Excess excess;

  const Descriptors descriptors(smem);
  const uint32_t columns = number * descriptor_units(o_columns / slab_columns * Bc * slab_row_bytes);
  // i >> 31 is 0, which the compiler cannot know: or it keeps the descriptors of Q, the same in every turn, in registers,
  // for which there is no room.
  auto q = [&](uint32_t buffer, uint32_t i) { return moved(descriptors.q(buffer), i >> 31); };
  auto k = [&](uint32_t i) { return descriptors.k(KvRing::index(i)); };
  auto v = [&](uint32_t i) { return moved(descriptors.v(KvRing::index(i)), columns); };

  Exit exit(p, smem, number, warp);  // for O
  uint32_t i = 0;                    // use of the K/V ring that holds block j
  for (uint32_t q_use = 0;; q_use++) {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));  // A2.3
    const uint32_t q_buffer = QRing::index(q_use);
    const RowBlock& rows = smem.row_block[RowBlockRing::index(q_use)];
    // Shuffled, as the compiler must know that they are the same in all lanes.
    const int blocks = __shfl_sync(0xffffffffu, rows.blocks, 0), skipped = __shfl_sync(0xffffffffu, rows.skipped, 0);
    if (blocks == RowBlock::end_of_work) break;
    ring.skip(i, i + skipped, false);
    i += skipped;

    const int row = rows.row, warp_row = row + 16 * warp, begin = rows.begin;
    const auto seen = [&] { return visible(p, rows); };
    const uint32_t last = i + max(blocks, 1) - 1;      // use that holds the block visited last
    auto j = [&] { return begin + int(last - i); };    // K/V block

    auto issue_scores = [&] {
      wgmma_fence();
      issue_qk(S, q(q_buffer, i), k(i));
      wgmma_commit_group();
    };
    bool accumulate = false;  // O = P V for the piece's first PV
    auto issue_product = [&] {
      wgmma_fence();
      issue_pv(O, P, v(i), accumulate);
      wgmma_commit_group();
      accumulate = true;
    };
    auto step = [&](auto masked) {
      issue_product();                                 // A2.11
      wgmma_wait_group<0>();                           // A2.14
      wgmma_owned(O);
      ring.release_v(i, true);                         // A2.15
      i++;
      ring.wait_k(i);                                  // A2.8
      issue_scores();                                  // A2.9
      wgmma_wait_group<0>();                           // A2.12
      wgmma_owned(S);
      bool rescale = true;
      float alpha[2];  // if rescale
      if constexpr (masked) {                          // A2.13
        mask(S, seen(), j(), warp_row);
        softmax_online(S, state, alpha, score);
        excess.scale(alpha);
        set_bound(bound, state, score);
      } else {
        rescale = softmax_speculative(S, state, bound, excess, alpha, score, smem.q[q_buffer],
                                      smem.stage[KvRing::index(i)].k, warp, transform, [](float (&)[Bc / 2]) {});
      }
      convert(S, P);                                   // A2.16
      wgmma_owned(P);
      if (rescale) scale_rows(O, alpha);
      wgmma_owned(O);
    };

    clear(O);
    wgmma_owned(O);
    state = nothing_seen();
    excess.clear();
    if (blocks > 0) {
      ring.wait_k(i);
      issue_scores();                                  // A2.4
      wgmma_wait_group<0>();
      wgmma_owned(S);
      if (needs_mask(seen(), j(), row)) mask(S, seen(), j(), warp_row);
      softmax_first(S, state, score);                  // A2.6
      first_bound(bound, state, score, seen().seqlen_k - j() * Bc);
      convert(S, P);
      wgmma_owned(P);

      // The use that holds the K of block n, or the nearest one of the piece.
      auto use_of = [&](int n) { return last - min(max(n - begin, 0), int(last - i)); };
      const uint32_t last_masked = use_of(plain_blocks(p, seen(), row).end);
      while (i != last_masked) step(std::true_type());
      const uint32_t last_plain = use_of(plain_blocks(p, seen(), row).begin);
      while (i != last_plain) step(std::false_type());  // A2.7
      while (i != last) step(std::true_type());

      exit.q_is_read(q_buffer);
      issue_product();                                 // A2.19
      wgmma_wait_group<0>();
      wgmma_owned(O);
      ring.release_v(i, true);
      i++;
    } else {
      exit.q_is_read(q_buffer);
    }

    const Finished done(p, smem, q_use, q_buffer, warp);
    float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])}, fit[2];
    excess.fit(l, fit);
    if (l[0] == 0.f || l[1] == 0.f) clear_empty_rows(O, l);
    uint32_t o[o_columns / 4];
    exit.store(O, o, state, l, fit, done);             // A2.20
    exit.is_stored(O, q_buffer);
  }
  exit.close();
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  Smem& smem = set_up(p, warp);
  if (warp / 4 == consumers) planned_producer(p, smem, warp % 4);
  else consumer(p, smem, warp / 4, warp % 4);
}
