// FlashAttention-3, forward pass: Algorithm 1 (warp specialization around a ring of K/V stages) with the
// consumer of Algorithm 2 (intra-warpgroup overlap of softmax and GEMMs). Comments cite their lines as A1.n and A2.n.
//
// A thread block is persistent: two warps of the producer warpgroup load, the consumer warpgroups own 64 query rows of
// a tile each. Where this differs from the paper, and why:
//  - The ring runs on across pieces (work.h), and a piece's last PV is followed at once by the first QK of the next
//    piece, which runs under the epilogue. Draining the pipeline after each piece is the largest loss at short lengths.
//  - A stage of the ring holds K of one block and V of the block before, because an iteration uses just these two: one
//    barrier, not two. So V(j) is in use i + 1 if K(j) is in use i.
//  - Blocks are visited from the last to the first, so that masked ones come first and the main loop needs no mask.
//  - The reference m need not be the row maximum, so O is hardly ever rescaled, and the result is the same
//    (tile/scores/speculative.cuh).
//  - A2.16, the copy of S_next to S_cur, is the conversion of S to P, after the wait for PV, which reads the old P.
//  - Where whole tiles would leave multiprocessors idle, tiles are split along the keys (work.h). A part is computed as
//    a whole tile is; for each 16 rows, the warp that is the last to finish its part puts the parts together and stores
//    the result (tile/epilogue/combine.cuh).
//  - With Heads::packed a row is a query of one of the heads that share a K/V head (packing.h), and a warpgroup
//    puts the parts of its rows together and stores them at once (tile/epilogue/packed.cuh).
//  - With Trait::shares_keys two warpgroups have the same rows, and each computes every second block
//    (tile/epilogue/shared_keys.cuh). So `i` goes on by two, and the V of an iteration lies in the stage before that of
//    its K.
//  - Elements of 8 bits (the paper's section 3.3) go the same way. What differs is in the parts: P's place in registers
//    (convert), V's in shared memory (tile/loads/transpose.cuh), scales (tile/scores/score.cuh, store_scaled_o).
//  - What differs from row to row of the table is in three structs: Walk, which blocks a warpgroup computes
//    (forward/walk.cuh); Sums, how products add up to O (forward/sums.cuh); Exit, how O leaves
//    (tile/epilogue/exit.cuh).
//  - No pingpong barriers: with three or four consumer warpgroups the hardware finds that order without them.
#include <type_traits>

#include "../planned/planned_producer.cuh"
#include "../tile/block.cuh"
#include "../tile/epilogue/exit.cuh"
#include "../tile/gemm.cuh"
#include "../tile/loads/narrow_q.cuh"
#include "../tile/scores/excess.cuh"
#include "../tile/scores/mask.cuh"
#include "../tile/scores/score_transform.cuh"
#include "../tile/scores/speculative.cuh"
#include "producer.cuh"
#include "sums.cuh"
#include "walk.cuh"

namespace fa3 {
using namespace ptx;

static_assert(has(Trait::splits) && has(Trait::speculative) && !(shares_keys && bounded_left));
static_assert(config.q_buffers > warpgroups, "the next piece's Q is awaited before O has left its buffer");

// What masks alone ask for is read from the RowBlock each time, for want of registers.
inline constexpr bool rereads_rows = planned && (is_8bit || config.transforms_scores());

// A consumer warpgroup: 64 rows of each piece. `number` of them, `warp` of its four. The names are those of struct
// Progress (forward/consumer.cuh).
FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  const int warpgroup = shares_keys ? 0 : number;  // which 64 rows of the tile
  if constexpr (config.moves_registers()) setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const KvRing ring{smem};
  Score score(p);
  ScoreTransform transform(p);

  float S[Bc / 2], O[dv / 2];
  uint32_t P[p_registers];
  QRegisters Q;
  RowState state;
  Bound bound;
  Excess excess;

  const Descriptors descriptors(smem);
  auto q = [&](uint32_t buffer) { return descriptors.q(buffer); };
  auto k = [&](uint32_t i) { return descriptors.k(KvRing::index(i)); };
  auto v = [&](uint32_t i) { return descriptors.v(KvRing::index(i)); };

  uint32_t q_use = warpgroup, q_buffer = QRing::index(q_use);  // use of the Q ring
  int blocks, skipped, kept_begin, kept_row;                   // of the RowBlock that came with it
  Walk walk(number);                                           // which uses of the K/V ring are computed
  Sums sums;                                                   // of P V, on their way to O
  const auto rows = [&]() -> const RowBlock& { return smem.row_block[RowBlockRing::index(q_use)]; };
  const auto seen = [&] { return visible(p, rows()); };
  // Q comes as it lies in memory; where it is not multiplied so, it is converted, in place.
  auto prepare_q = [&] {
    if constexpr (has_wide_q && is_bf16)
      if (blocks > 0) score.receive_factor(narrow_q(smem.q[q_buffer], rows().row, seen().rows(), warpgroup, warp));
  };
  auto receive_q = [&] {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));
    const RowBlock& block = rows();
    kept_row = block.row;
    kept_begin = block.begin;
    score.receive(block);
    if constexpr (transforms_scores) transform.receive(block, warp);
    // Shuffled, as the compiler must know that they are the same in all lanes, to keep `i` in a uniform register.
    blocks = __shfl_sync(0xffffffffu, block.blocks, 0);
    skipped = __shfl_sync(0xffffffffu, block.skipped, 0);
    walk.receive(blocks, skipped);
  };
  const auto begin = [&] { return rereads_rows ? rows().begin : kept_begin; };
  const auto row = [&] { return rereads_rows ? rows().row : kept_row; };

  // What is left to do when P V has been waited for; use: of the ring, left: so many blocks of the piece.
  auto finish_pv = [&](uint32_t use, uint32_t left) {
    sums.finish(O, left);
#pragma unroll
    for (int slice = 1; slice < Sums::slices; slice++) {
      wgmma_fence();
      sums.begin_slice(P, v(use), slice);
      wgmma_commit_group();
      wgmma_wait_group<0>();
      sums.finish_slice(O, slice);
    }
  };

  clear(O);                                    // A1.13; only to give all registers a value, the first PV overwrites
  wgmma_owned(O);
  receive_q();                                 // A2.3
  uint32_t i = skipped;                        // use of the K/V ring that holds K(j)
  if (blocks != RowBlock::end_of_work) ring.skip(0, i, blocks > 0);
  prepare_q();
  load_q_registers(Q, smem.q[q_buffer], warp);
  if (blocks > 0) ring.wait_k(i);
  wgmma_fence();
  issue_qk(S, Q, q(q_buffer), k(i));           // A2.4
  wgmma_commit_group();
  wgmma_wait_group<0>();
  wgmma_owned(S);

  Exit exit(p, smem, number, warp);            // for O
  while (blocks != RowBlock::end_of_work) {
    // S holds the scores of the first block that is computed (any values, if none is: then all of it is masked).
    const int kept_warp_row = row() + 16 * warp;
    const auto warp_row = [&] { return rereads_rows ? row() + 16 * warp : kept_warp_row; };
    // Use that holds the K of the block visited last, K(begin).
    const uint32_t last = walk.last(i, blocks);
    auto j = [&] { return begin() + int(last - i); };  // K/V block
    score.receive(smem, KvRing::index(i), blocks > 0);
    if constexpr (transforms_scores) transform.apply(S, j());
    if constexpr (has(Trait::skip_masked)) {
      softmax_first(S, state, score, mask_diagonal(S, seen(), j(), warp_row()));
    } else {
      if (bounded_right || blocks == 0 || needs_mask(seen(), j(), row())) mask(S, seen(), j(), warp_row());
      softmax_first(S, state, score);          // A2.6
    }
    if (Walk::may_leave && blocks == 0) state = nothing_seen();
    excess.clear();
    first_bound(bound, state, score, seen().seqlen_k - j() * Bc);
    if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
    if (blocks > 0) ring.release_k(i, true);   // A2.5
    convert(S, P);
    wgmma_owned(P);
    exit.first_softmax_done();

    bool accumulate = false;  // O = P V for the piece's first PV
    auto step = [&](auto masked) {
      const uint32_t v_use = i + 1;
      i += Walk::stride;
      if constexpr (Walk::v_apart) ring.wait_v(v_use);  // A2.10
      ring.wait_k(i);                          // A2.8
      score.receive(smem, KvRing::index(i), true);
      wgmma_fence();
      issue_qk(S, Q, q(q_buffer), k(i));       // A2.9
      wgmma_commit_group();
      if constexpr (split_stage) {
        ring.wait_v(v_use);                    // A2.10
        wgmma_fence();                         // again behind the branch of the wait (C7519)
      }
      sums.begin(O, P, v(v_use), accumulate);  // A2.11
      wgmma_commit_group();
      accumulate = true;
      wgmma_wait_group<1>();                   // A2.12
      wgmma_owned(S);
      bool rescale = true;
      float alpha[2];  // if rescale
      const auto transform_scores = [&](float (&scores)[Bc / 2]) {
        if constexpr (transforms_scores) transform.apply(scores, j());
      };
      if constexpr (masked || !caps_late) transform_scores(S);
      if constexpr (masked) {                  // A2.13
        mask(S, seen(), j(), warp_row());
        softmax_online(S, state, alpha, score);
        if constexpr (bounded_left) excess.scale(alpha);
        set_bound(bound, state, score);
        if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
        end_basic_block(state);
      } else {
        rescale = softmax_speculative(S, state, bound, excess, alpha, score, smem.q[q_buffer],
                                      smem.stage[KvRing::index(i)].k, warp, transform, transform_scores);
      }
      ring.release_k(i, Walk::v_apart);
      wgmma_wait_group<0>();                   // A2.14
      finish_pv(v_use, last - i + 1);
      wgmma_owned(S);
      ring.release_v(v_use, true);             // A2.15
      convert(S, P);                           // A2.16
      wgmma_owned(P);
      if (rescale) scale_rows(O, alpha);
      sums.scale(rescale, alpha);
      wgmma_owned(O);
    };
    // The use that holds the K of block n, or the nearest one of the piece.
    auto use_of = [&](int n) { return last - min(max(n - begin(), 0), int(last - i)); };
    if constexpr (bounded_right) {
      const uint32_t last_masked = use_of(plain_blocks(p, seen(), row()).end);
      while (Walk::has_more(i, last_masked)) step(std::true_type());
    }
    const uint32_t last_plain = bounded_left ? use_of(plain_blocks(p, seen(), row()).begin) : last;
    while (Walk::has_more(i, last_plain)) step(std::false_type());  // A2.7
    while (bounded_left && Walk::has_more(i, last)) step(std::true_type());

    exit.q_is_read(q_buffer);
    // `done` is the piece that ends here; q_use, blocks, i, ... go on to the next one.
    const Finished done(p, smem, q_use, q_buffer, warp);
    const bool has_v = blocks > 0;
    const uint32_t first = blocks > 0 ? i + 1 : i;  // use that holds this piece's last V and the next one's first K
    ring.wait_v(first);                        // A2.18
    wgmma_fence();
    sums.begin(O, P, v(first), accumulate);    // A2.19
    wgmma_commit_group();
    q_use += warpgroups;
    q_buffer = QRing::index(q_use);
    receive_q();
    i = walk.begin(first, skipped);
    prepare_q();
    load_q_registers(Q, smem.q[q_buffer], warp);
    if (blocks > 0) ring.wait_k(i);
    wgmma_fence();
    issue_qk(S, Q, q(q_buffer), k(i));         // A2.4 of the next piece; not used if there is none
    wgmma_commit_group();

    float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])}, fit[2];
    excess.fit(l, fit);
    if constexpr (has_wide_q) fit[0] *= done.block.v_scale, fit[1] *= done.block.v_scale;
    wgmma_wait_group<1>();
    finish_pv(first, 0);
    walk.release_last_v(ring, first, i, has_v, blocks);
    if (l[0] == 0.f || l[1] == 0.f) clear_empty_rows(O, l);
    uint32_t o[dv / 4];  // O on its way out
    exit.store(O, o, state, l, fit, done);     // A2.20
    wgmma_wait_group<0>();
    wgmma_owned(S);
    sums.reset(O);
    exit.is_stored(O, done.q_buffer);
    // If all of the next piece is skipped, that lasts as long as others compute it, and they may need the buffer.
    if (Walk::may_skip && blocks == 0) {
      exit.release();
      ring.skip(first, i, false);
    }
  }
  exit.close();
  if (threadIdx.x % 32 == 0) cp_async_bulk_wait_group<0>();
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  Smem& smem = set_up(p, warp);
  if (config.producers() == 2 ? warp / 4 >= consumers : warp / 4 == consumers) {
    if constexpr (planned) planned_producer(p, smem, config.producers() == 2 ? warp - 4 * consumers : warp % 4);
    else producer(p, smem, warp % 4);
  } else {
    consumer(p, smem, warp / 4, warp % 4);
  }
}
