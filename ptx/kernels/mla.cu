// FlashAttention-3, forward pass, for head dimensions above 256: O is too wide for one warpgroup's registers, so two
// consumer warpgroups have the same 64 rows (heads packed into rows, packing.h), and each half of O's columns.
//
// With Trait::qv the scores are q k + qv v (multi-head latent attention): V's columns, loaded once, serve as K's, too,
// by another descriptor.
//
// Each warpgroup computes the scores of half of a block's keys, and multiplies P of both halves by its columns of V. P
// of the other one comes through shared memory, register by register, as both hold it in the same places. With it come
// the references m that it is relative to (tile/speculative.cuh); where they differ, the larger one becomes m of both,
// and O, or that P, is multiplied by what that makes of it. So each block ends with the same m in both, and whatever
// shares the tile, a row's bits follow from its own scores.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n). Where this differs:
//  - A stage of the ring holds K and V of the same keys, as K's columns may be V's; it is the half of a block that one
//    warpgroup scores. There are two, as 64 keys are as large as Q. So PV goes first, and what of a stage one warpgroup
//    alone still needs, half of V's columns, is given back by itself as soon as it is multiplied, and refilled while
//    the rest is used; the next scores begin with what comes first.
//  - A warpgroup waits for each of its products: the other one's run meanwhile.
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
static_assert(transforms_scores == caps_late);

// How the two warpgroups exchange P, turn by turn.
class Exchange {
 public:
  FA3_DEVICE Exchange(Smem& smem, int number, int warp)
      : smem_(smem), number_(number), row_(16 * warp + threadIdx.x % 32 / 4) {}

  // P of the own half, whose K lies in `own` and is needed no more. All four warps call this. last: of the piece.
  FA3_DEVICE void hand_over(const uint32_t (&P)[p_registers], Stage& own, const RowState& state, const Excess& excess,
                            bool last) {
    float l[2], exceeding[2];
    if (last) own_sums(state, excess, l, exceeding);
    bar_sync(barrier_warpgroup + number_, 128);  // all warps have multiplied by K, which P replaces
    uint4* const to = reinterpret_cast<uint4*>(own.k) + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < p_registers / 4; i++)
      to[128 * i] = make_uint4(P[4 * i], P[4 * i + 1], P[4 * i + 2], P[4 * i + 3]);
    if (threadIdx.x % 4 == 0) {
      Scored& scored = smem_.scored[number_];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        scored.m[row_ + 8 * i] = state.m[i];
        if (last) scored.l[row_ + 8 * i] = l[i], scored.excess[row_ + 8 * i] = exceeding[i];
      }
    }
    fence_proxy_async_shared();  // TMA writes there next
    __syncwarp();
    mbarrier_arrive_if(shared_address(&smem_.full_scored[number_]), threadIdx.x % 32 == 0);
  }

  // Waits for P of the other half, and returns whether its m are not those of the own rows.
  FA3_DEVICE bool receive(uint32_t (&P)[p_registers], const Stage& other, const RowState& state, bool last) {
    wait(smem_.full_scored[number_ ^ 1], turn_++ & 1);
    load(P, other);
    const Scored& scored = smem_.scored[number_ ^ 1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      m_[i] = scored.m[row_ + 8 * i];
      if (last) l_[i] = scored.l[row_ + 8 * i], excess_[i] = scored.excess[row_ + 8 * i];
    }
    return __any_sync(0xffffffffu, (m_[0] != state.m[0]) | (m_[1] != state.m[1]));
  }

  // Then: the larger m is that of both. O is to be multiplied by alpha; P of the other is, by what makes it fit. It is
  // read anew, for want of registers.
  FA3_DEVICE void fit(uint32_t (&P)[p_registers], const Stage& other, RowState& state, float (&alpha)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float m = fmaxf(state.m[i], m_[i]);
      alpha[i] = part_weight(state.m[i], m);
      state.m[i] = m;
    }
    const float beta[2] = {part_weight(m_[0], state.m[0]), part_weight(m_[1], state.m[1])};
    load(P, other);
#pragma unroll
    for (int i = 0; i < p_registers; i++) {
      const float2 x = unpack(P[i]);
      P[i] = pack(x.x * beta[i & 1], x.y * beta[i & 1]);
    }
  }

  // With the last P of a piece: the sums of both, which were relative to own_m here, and what makes O fit them.
  FA3_DEVICE void add_up(const RowState& state, const Excess& excess, const float (&own_m)[2], float (&l)[2],
                         float (&weight)[2]) const {
    float exceeding[2];
    own_sums(state, excess, l, exceeding);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float alpha = part_weight(own_m[i], state.m[i]), beta = part_weight(m_[i], state.m[i]);
      l[i] = add_in_any_order(__fmul_rn(alpha, l[i]), beta, l_[i]);
      exceeding[i] = add_in_any_order(__fmul_rn(alpha, exceeding[i]), beta, excess_[i]);
    }
    Excess::fit(exceeding, l, weight);
  }

 private:
  FA3_DEVICE static void load(uint32_t (&P)[p_registers], const Stage& other) {
    const uint4* const from = reinterpret_cast<const uint4*>(other.k) + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < p_registers / 4; i++) {
      const uint4 x = from[128 * i];
      P[4 * i] = x.x, P[4 * i + 1] = x.y, P[4 * i + 2] = x.z, P[4 * i + 3] = x.w;
    }
  }
  FA3_DEVICE static void own_sums(const RowState& state, const Excess& excess, float (&l)[2], float (&exceeding)[2]) {
    l[0] = quad_sum(state.l[0]), l[1] = quad_sum(state.l[1]);
    excess.of_rows(exceeding);
  }

  Smem& smem_;
  int number_, row_;
  uint32_t turn_ = 0;
  float m_[2], l_[2], excess_[2];  // that came with the other's P
};

// The K/V ring, by halves of V's columns. The first one to be loaded of a stage is that of the warpgroup that computes
// the scores of its keys: nobody else reads it. The other warpgroup has the rest, with K, where it finds P.
struct HalvesRing {
  Smem& smem;
  int mirrored_lane = __shfl_xor_sync(0xffffffffu, threadIdx.x % 32, 31);  // as in KvRing

  // Both by the warpgroup that computes scores with the stage of use i. The other one hears of its P behind that.
  FA3_DEVICE void wait_own(uint32_t i) const { wait(smem.full_v[KvRing::index(i)], KvRing::parity(i)); }
  FA3_DEVICE void wait_rest(uint32_t i) const { wait(smem.full_k[KvRing::index(i)], KvRing::parity(i)); }
  // The calling warp, of the warpgroup whose half it is, is done with it.
  FA3_DEVICE void release_own(uint32_t i) const { arrive(smem.empty_v[KvRing::index(i)]); }
  FA3_DEVICE void release_rest(uint32_t i) const { arrive(smem.empty_k[KvRing::index(i)]); }
  // Warpgroup `number` leaves out the uses from `first` on. Neither gives anything back before both have seen all of a
  // pair: it would come anew, and the other could not tell the end of that phase from the one before.
  FA3_DEVICE void skip(uint32_t first, uint32_t end, int number) const {
#pragma unroll 1
    for (uint32_t i = first; i < end; i += 2) {
#pragma unroll 1
      for (uint32_t n = i; n < i + 2; n++) wait_own(n), wait_rest(n);
      ptx::bar_sync(barrier_turn, consumers * 128);
      release_own(i + number);
      release_rest(i + (number ^ 1));
    }
  }

 private:
  FA3_DEVICE void arrive(uint64_t& barrier) const {
    ptx::mbarrier_arrive_if(ptx::shared_address(&barrier), mirrored_lane == 31);
  }
};

// A consumer warpgroup: half of the keys and of the columns of each piece. `number` of the two, `warp` of its four.
FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const HalvesRing ring{smem};
  const Score score(p);
  ScoreTransform transform(p);

  float S[Bc / 2], O[o_columns / 2];
  uint32_t P[p_registers], other_P[p_registers];
  RowState state;
  Bound bound;
  Excess excess;

  // i >> 31 is 0, which the compiler cannot know: or it keeps the descriptors, which are the same in every turn, in
  // registers, for which there is no room.
  const Descriptors descriptors(smem);
  // In units of descriptors: from one slab to the next of K and V, and from V's first column to those of either half.
  constexpr int half_slabs = o_columns / slab_columns;
  constexpr uint32_t slab = descriptor_units(Bc * slab_row_bytes);
  const uint32_t columns = number * half_slabs * slab, other_columns = (number ^ 1) * half_slabs * slab;
  static_assert(!has_qv || Bc == 64);  // Q's slabs are as far apart
  auto q = [&](uint32_t buffer, uint32_t i) { return moved(descriptors.q(buffer), i >> 31); };
  auto k = [&](uint32_t i) { return moved(descriptors.k(KvRing::index(i)), i >> 31); };
  auto v = [&](uint32_t i) { return moved(descriptors.v(KvRing::index(i)), columns + (i >> 31)); };
  auto stage = [&](uint32_t i) -> Stage& { return smem.stage[KvRing::index(i)]; };

  Exit exit(p, smem, number, warp);  // for O
  Exchange exchange(smem, number, warp);
  uint32_t first = 0;                // use of the K/V ring that holds the half of the block that comes next
  for (uint32_t q_use = 0;; q_use++) {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));  // A2.3
    const uint32_t q_buffer = QRing::index(q_use);
    const RowBlock& rows = smem.row_block[RowBlockRing::index(q_use)];
    // Shuffled, as the compiler must know that they are the same in all lanes.
    const int blocks = __shfl_sync(0xffffffffu, rows.blocks, 0), skipped = __shfl_sync(0xffffffffu, rows.skipped, 0);
    if (blocks == RowBlock::end_of_work) break;
    ring.skip(first, first + skipped, number);
    first += skipped;

    const int row = rows.row, warp_row = row + 16 * warp, begin = rows.begin;
    const auto seen = [&] { return visible(p, rows); };
    uint32_t i = first + number;                               // use that holds the own half
    const uint32_t end = first + blocks, last = end - 2 + number;
    auto other = [&] { return i ^ 1; };
    auto j = [&] { return begin + int(end - 1 - i); };         // the keys of this half

    // A2.8, A2.9: with qv in two, of the columns that come first and of the others.
    auto issue_scores = [&] {
      ring.wait_own(i);
      if constexpr (has_qv) {
        wgmma_fence();
        issue_qk_slabs<half_slabs>(S, moved(q(q_buffer, i), slab + columns), moved(k(i), slab + columns), false);
        wgmma_commit_group();
      }
      ring.wait_rest(i);
      wgmma_fence();
      if constexpr (has_qv) {
        issue_qk_slabs<1>(S, q(q_buffer, i), k(i), true);
        issue_qk_slabs<half_slabs>(S, moved(q(q_buffer, i), slab + other_columns),
                                   moved(k(i), slab + other_columns), true);
      } else {
        issue_qk(S, q(q_buffer, i), k(i));
      }
      wgmma_commit_group();
    };
    auto issue_product = [&](const uint32_t (&p_half)[p_registers], uint32_t use, bool accumulate) {
      wgmma_fence();
      issue_pv(O, p_half, v(use), accumulate);
      wgmma_commit_group();
    };
    bool accumulate = false;  // O = P V for the piece's first PV
    // A2.11, for both halves.
    auto add_products = [&](bool is_last) {
      exchange.hand_over(P, stage(i), state, excess, is_last);
      issue_product(P, i, accumulate);
      accumulate = true;
      const bool differs = exchange.receive(other_P, stage(other()), state, is_last);
      // Here, not in the branch, which warps take each for itself: a wait is the whole warpgroup's.
      wgmma_wait_group<0>();
      wgmma_owned(O);
      ring.release_own(i);                             // A2.15
      if (differs) {
        float alpha[2];
        exchange.fit(other_P, stage(other()), state, alpha);
        scale_rows(O, alpha);
        wgmma_owned(O);
        if (!is_last) {  // what the last P came with is added up as it was then
          excess.scale(alpha);
#pragma unroll
          for (int r = 0; r < 2; r++) state.l[r] *= alpha[r], bound.sum[r] *= alpha[r];
          if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
        }
      }
      wgmma_owned(other_P);
      issue_product(other_P, other(), true);
      wgmma_wait_group<0>();                           // A2.14
      wgmma_owned(O);
      ring.release_rest(other());
    };
    auto step = [&](auto masked) {
      add_products(false);
      i += 2;
      issue_scores();
      wgmma_wait_group<0>();                           // A2.12
      wgmma_owned(S);
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
      if (rescale) scale_rows(O, alpha);
      wgmma_owned(O);
    };

    clear(O);
    wgmma_owned(O);
    state = nothing_seen();
    excess.clear();
    float l[2] = {0.f, 0.f}, fit[2] = {1.f, 1.f};
    if (blocks > 0) {
      issue_scores();                                  // A2.4
      wgmma_wait_group<0>();
      wgmma_owned(S);
      if constexpr (caps_late) transform.apply(S, j());
      if (needs_mask(seen(), j(), row)) mask(S, seen(), j(), warp_row);
      softmax_first(S, state, score);                  // A2.6
      first_bound(bound, state, score, seen().seqlen_k - j() * Bc);
      if constexpr (caps_late) transform.choose_way(state.m, bound.sum);
      convert(S, P);
      wgmma_owned(P);

      // The use that holds this warpgroup's half of the pair that block n is in, or of the nearest one of the piece.
      auto use_of = [&](int n) {
        return __shfl_sync(0xffffffffu, last - 2 * min(max((n - begin) >> 1, 0), int(last - i) >> 1), 0);
      };
      const Blocks plain = plain_blocks(p, seen(), row);
      const uint32_t last_masked = use_of(plain.end);
      while (i != last_masked) step(std::true_type());
      const uint32_t last_plain = use_of(plain.begin + 1);
      while (i != last_plain) step(std::false_type());  // A2.7
      while (i != last) step(std::true_type());

      exit.q_is_read(q_buffer);
      const float own_m[2] = {state.m[0], state.m[1]};
      add_products(true);                              // A2.19
      exchange.add_up(state, excess, own_m, l, fit);
      first = end;
    } else {
      exit.q_is_read(q_buffer);
    }

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
  if (warp / 4 == consumers) planned_producer(p, smem, warp % 4);
  else consumer(p, smem, warp / 4, warp % 4);
}
