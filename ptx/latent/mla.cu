// FlashAttention-3, forward pass, for head dimensions above 256: O is too wide for one warpgroup's registers, so two
// consumer warpgroups have the same 64 rows (heads packed into rows, packing.h), and each half of O's columns.
//
// With Trait::qv the scores are q k + qv v (multi-head latent attention): V's columns, loaded once, serve as K's, too,
// by another descriptor.
//
// The first warpgroup computes all scores, and multiplies P by the left half of V's columns; the other one has P from
// shared memory, and multiplies it by the right half, late: only when the scores of the next block are there. So its
// product runs while the first one has the softmax to do, and the tensor cores are not idle then; and the first one's
// product and its next scores are issued one behind the other. What O is to be multiplied by, which is rare, and in the
// end the row sums, go with P.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n). Where this differs:
//  - A stage of the ring holds K and V of the same keys, as K's columns may be V's. There are two, as 64 keys are as
//    large as Q. So PV goes first, and each half of V's columns is given back by itself as soon as it is multiplied,
//    and refilled while the rest is used; the next scores begin with what comes first.
//    What is widened in its stage (VLayout::latent) comes with the right half first.
//  - P lies where K's first columns were, so it takes no room.
//  - One piece ends before the next one begins, whose Q, in the one buffer that there is room for, and K are loaded
//    meanwhile.
//  - With Trait::multicast two thread blocks have 64 rows each of a tile of 128. Each loads half of V's columns, and
//    one K's own, into the stages of both, which are free when the consumers of both have given them back (measured,
//    128 heads: 3%).
#include "../tile/block.cuh"
#include "../tile/epilogue/exit.cuh"
#include "../tile/gemm.cuh"
#include "../tile/scores/excess.cuh"
#include "../tile/scores/mask.cuh"
#include "../tile/scores/score_transform.cuh"
#include "../tile/scores/speculative.cuh"
#include "halves_ring.cuh"
#include "latent_producer.cuh"

namespace fa3 {
using namespace ptx;

static_assert(halves_columns && has(Trait::splits) && has(Trait::speculative) && early_q_release && !split_stage);
static_assert(transforms_scores == caps_late && dv % (2 * slab_columns) == 0);

// P and what goes with it, from the warpgroup that has the scores to the other one. t numbers the blocks that are
// computed, over all pieces.
class HandOver {
 public:
  FA3_DEVICE HandOver(Smem& smem, int warp) : smem_(smem), warp_(warp), row_(16 * warp + threadIdx.x % 32 / 4) {}

  // P of block t, whose K lies in the stage and is needed no more; and what O is to be multiplied by first, if m moves.
  // All four warps call this.
  FA3_DEVICE void write(uint32_t t, const uint32_t (&P)[p_registers], Stage& stage, bool moves,
                        const float (&alpha)[2]) {
    const int lane = threadIdx.x % 32;
    bar_sync(barrier_warpgroup, 128);  // all warps have multiplied by K
    const uint32_t to =
        shared_address(stage.k) + (16 * warp_ + lane % 16) * slab_row_bytes + ((lane / 16 ^ swizzled(lane)) << 4);
#pragma unroll
    for (int k = 0; k < p_registers / 4; k++)
      stmatrix_x4(to ^ 32 * k, P[4 * k], P[4 * k + 1], P[4 * k + 2], P[4 * k + 3]);
    Scored& scored = scored_of(t);
    if (moves && lane % 4 == 0) scored.alpha[row_] = alpha[0], scored.alpha[row_ + 8] = alpha[1];
    scored.moves[warp_] = moves;
    fence_proxy_async_shared();  // WGMMA reads P, and TMA writes there next
    __syncwarp();
  }
  // With the last block of a piece.
  FA3_DEVICE void write_sums(uint32_t t, const RowState& state, const float (&l)[2], const float (&fit)[2]) {
    if (threadIdx.x % 4 == 0) {
      Scored& scored = scored_of(t);
#pragma unroll
      for (int i = 0; i < 2; i++)
        scored.m[row_ + 8 * i] = state.m[i], scored.l[row_ + 8 * i] = l[i], scored.fit[row_ + 8 * i] = fit[i];
    }
    __syncwarp();
  }
  FA3_DEVICE void signal(uint32_t t) {
    mbarrier_arrive_if(shared_address(&smem_.full_scored[t & 1]), threadIdx.x % 32 == 0);
  }

  FA3_DEVICE void receive(uint32_t t) const { wait(smem_.full_scored[t & 1], t >> 1 & 1); }
  FA3_DEVICE bool moves(uint32_t t) const { return __shfl_sync(0xffffffffu, scored_of(t).moves[warp_], 0); }
  FA3_DEVICE void read_alpha(uint32_t t, float (&alpha)[2]) const {
    const Scored& scored = scored_of(t);
    alpha[0] = scored.alpha[row_], alpha[1] = scored.alpha[row_ + 8];
  }
  FA3_DEVICE void read_sums(uint32_t t, RowState& state, float (&l)[2], float (&fit)[2]) const {
    const Scored& scored = scored_of(t);
#pragma unroll
    for (int i = 0; i < 2; i++)
      state.m[i] = scored.m[row_ + 8 * i], l[i] = scored.l[row_ + 8 * i], fit[i] = scored.fit[row_ + 8 * i];
  }

 private:
  // Written anew two blocks on, when the stage has been refilled, which the other warpgroup gave back behind its reads.
  FA3_DEVICE Scored& scored_of(uint32_t t) const { return smem_.scored[t & 1]; }

  Smem& smem_;
  int warp_, row_;
};

// A consumer warpgroup: `number` of the two, `warp` of its four.
FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const HalvesRing ring{smem};
  const Score score(p);
  ScoreTransform transform(p);

  float O[o_columns / 2];
  RowState state;

  // i >> 31 is 0, which the compiler cannot know: or it keeps the descriptors, which are the same in every turn, in
  // registers, for which there is no room.
  const Descriptors descriptors(smem);
  // In units of descriptors: from one slab to the next of K and V, and from V's first column to its right half.
  constexpr int half_slabs = o_columns / slab_columns;
  constexpr uint32_t slab = descriptor_units(Bc * slab_row_bytes), right_half = half_slabs * slab;
  static_assert(!has_qv || Bc == 64);  // Q's slabs are as far apart
  auto q = [&](uint32_t buffer, uint32_t i) { return moved(descriptors.q(buffer), i >> 31); };
  auto k = [&](uint32_t i) { return moved(descriptors.k(KvRing::index(i)), i >> 31); };
  auto v = [&](uint32_t i) { return moved(descriptors.v(KvRing::index(i)), i >> 31); };
  auto stage = [&](uint32_t i) -> Stage& { return smem.stage[KvRing::index(i)]; };

  Exit exit(p, smem, number, warp);  // for O
  HandOver hand_over(smem, warp);
  uint32_t first = 0;                // use of the K/V ring that holds the block that comes next
  uint32_t t = 0;                    // of the blocks that are computed
  for (uint32_t q_use = 0;; q_use++) {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));  // A2.3
    const uint32_t q_buffer = QRing::index(q_use);
    const RowBlock& rows = smem.row_block[RowBlockRing::index(q_use)];
    // Shuffled, as the compiler must know that they are the same in all lanes.
    const int blocks = __shfl_sync(0xffffffffu, rows.blocks, 0), skipped = __shfl_sync(0xffffffffu, rows.skipped, 0);
    if (blocks == RowBlock::end_of_work) break;
    if (number == 0) ring.skip(first, first + skipped);
    first += skipped;
    const uint32_t end = first + blocks;
    float l[2] = {0.f, 0.f}, fit[2] = {1.f, 1.f};
    state = nothing_seen();
    clear(O);
    wgmma_owned(O);

    if (number == 0 && blocks > 0) {
      float S[Bc / 2];
      uint32_t P[p_registers];
      Bound bound;
      Excess excess;
      const int row = rows.row, warp_row = row + 16 * warp, begin = rows.begin;
      const auto seen = [&] { return visible(p, rows); };
      uint32_t i = first;                                      // use that holds the present block
      const uint32_t last = end - 1;
      auto j = [&] { return begin + int(end - 1 - i); };       // its number

      // A2.8, A2.9: with qv in two, of the columns that come first, and of the others; K's own are with the right half.
      auto issue_slabs = [&](int from, auto slabs, bool accumulate) {
        issue_qk_slabs<slabs()>(S, moved(q(q_buffer, i), from * slab), moved(k(i), from * slab), accumulate);
      };
      auto issue_left_half = [&](bool accumulate) {
        wgmma_fence();
        issue_slabs(1, std::integral_constant<int, half_slabs>(), accumulate);
        wgmma_commit_group();
      };
      auto issue_right_half = [&](bool accumulate) {
        issue_slabs(0, std::integral_constant<int, 1>(), accumulate);
        issue_slabs(1 + half_slabs, std::integral_constant<int, half_slabs>(), true);
      };
      auto issue_first_scores = [&] {
        if constexpr (widens_latent) {
          ring.wait_right(i);
          wgmma_fence();
          issue_right_half(false);
          wgmma_commit_group();
        } else {
          ring.wait_left(i);
          if constexpr (has_qv) issue_left_half(false);
        }
      };
      auto issue_other_scores = [&] {
        if constexpr (widens_latent) {
          ring.wait_left(i);
          return issue_left_half(true);
        }
        ring.wait_right(i);
        wgmma_fence();
        if constexpr (has_qv) {
          issue_right_half(true);
        } else {
          issue_qk(S, q(q_buffer, i), k(i));
        }
        wgmma_commit_group();
      };
      bool accumulate = false;  // O = P V for the piece's first PV
      auto issue_product = [&] {
        wgmma_fence();
        issue_pv_parts(O, P, v(i), accumulate);
        wgmma_commit_group();
        accumulate = true;
      };
      auto step = [&](auto masked) {
        issue_product();                                 // A2.11
        i++;
        issue_first_scores();
        wgmma_wait_group<has_qv ? 1 : 0>();              // A2.14
        wgmma_owned(O);
        wgmma_owned(P);
        ring.release_left(i - 1);                        // A2.15
        issue_other_scores();
        wgmma_wait_group<0>();                           // A2.12
        wgmma_owned(S);
        hand_over.signal(t);
        ring.wait_left(i);  // it is there, but this ends the basic block: ptxas would signal behind the exponentials
        t++;
        bool rescale = true;
        float alpha[2];  // if rescale
        const auto transform_scores = [&](float (&scores)[Bc / 2]) {
          if constexpr (caps_late) transform.apply(scores, j());
        };
        if constexpr (masked) {                          // A2.13
          transform_scores(S);
          mask(S, seen(), j(), warp_row);
          softmax_online(S, state, alpha, score);
          excess.scale(alpha);
          set_bound(bound, state, score);
          if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
        } else {
          rescale = softmax_speculative(S, state, bound, excess, alpha, score, smem.q[q_buffer], stage(i).k, warp,
                                        transform, transform_scores);
        }
        convert(S, P);                                   // A2.16
        wgmma_owned(P);
        hand_over.write(t, P, stage(i), rescale, alpha);
        if (rescale) scale_rows(O, alpha);
        wgmma_owned(O);
      };

      excess.clear();
      issue_first_scores();                              // A2.4
      issue_other_scores();
      wgmma_wait_group<0>();
      wgmma_owned(S);
      if constexpr (caps_late) transform.apply(S, j());
      if (needs_mask(seen(), j(), row)) mask(S, seen(), j(), warp_row);
      softmax_first(S, state, score);                    // A2.6
      first_bound(bound, state, score, seen().seqlen_k - j() * Bc);
      if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
      convert(S, P);
      wgmma_owned(P);
      hand_over.write(t, P, stage(i), false, fit);

      // The use that holds block n, or the nearest one of the piece.
      auto use_of = [&](int n) { return __shfl_sync(0xffffffffu, last - min(max(n - begin, 0), int(last - i)), 0); };
      const Blocks plain = plain_blocks(p, seen(), row);
      const uint32_t last_masked = use_of(plain.end);
      while (i != last_masked) step(std::true_type());
      const uint32_t last_plain = use_of(plain.begin);
      while (i != last_plain) step(std::false_type());   // A2.7
      while (i != last) step(std::true_type());

      exit.q_is_read(q_buffer);
      l[0] = quad_sum(state.l[0]), l[1] = quad_sum(state.l[1]);
      excess.fit(l, fit);
      hand_over.write_sums(t, state, l, fit);
      hand_over.signal(t);
      t++;
      issue_product();                                   // A2.19
      wgmma_wait_group<0>();
      wgmma_owned(O);
      ring.release_left(i);
    } else {
      exit.q_is_read(q_buffer);
      for (uint32_t i = first; i != end; i++, t++) {
        hand_over.receive(t);
        if (hand_over.moves(t)) {
          float alpha[2];
          hand_over.read_alpha(t, alpha);
          scale_rows(O, alpha);
          wgmma_owned(O);
        }
        if (i == end - 1) hand_over.read_sums(t, state, l, fit);
        wgmma_fence();
        issue_pv_parts(O, k(i), moved(v(i), right_half), i != first);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_owned(O);
        ring.release_right(i);
      }
    }
    first = end;

    const Finished done(p, smem, q_use, q_buffer, warp);
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
  if (warp / 4 >= consumers) latent_producer(p, smem, warp - 4 * consumers);
  else consumer(p, smem, warp / 4, warp % 4);
  // The other thread block may still arrive at barriers of this one.
  if constexpr (multicasts) ptx::barrier_cluster_unaligned();
}
