// Multi-head latent attention (mla.cu) for the few rows that a step of decoding has where a GPU holds few heads: a tile
// is 64 rows of heads packed into rows (packing.h), of which only the first ForwardRow::most_rows exist.
//
// Keys stand in the rows of the scores, S^T = K Q^T, and O's columns in those of the other product, O^T = V^T P^T: so
// the tensor cores compute nothing for rows that there are not, and a block takes less time than memory takes to bring
// the next one. Both products are WGMMAs of 64 x most_rows with A, the keys or columns, from shared memory.
//
// As in mla.cu the first warpgroup has the scores, both have half of O's columns each, and a stage of the ring is given
// back by halves. Both have P from shared memory, as operand B. Scores of a row lie in all four warps: they go by the m
// of before as long as that is not exceeded by much, and only then the warps tell each other their maxima.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n).
#include "../tile/block.cuh"
#include "../tile/gemm.cuh"
#include "../tile/scores/softmax.cuh"
#include "../tile/unpack.cuh"
#include "few_latent.cuh"
#include "halves_ring.cuh"
#include "latent_producer.cuh"

namespace fa3 {
using namespace ptx;

static_assert(has(Trait::few_rows) && has_qv && halves_columns && Bc == 64 && slab_row_bytes == 128);
static_assert(early_q_release);

// In units of descriptors, from one slab to the next of K and V, which follow each other.
inline constexpr uint32_t slab_units = descriptor_units(Bc * slab_row_bytes);
inline constexpr int half_slabs = o_columns / slab_columns;

// What the first warpgroup tells the other one with block t.
class FewHandOver {
 public:
  FA3_DEVICE explicit FewHandOver(Smem& smem) : smem_(smem) {}

  FA3_DEVICE Element* p(uint32_t t) const { return smem_.few_p[t & 1]; }
  FA3_DEVICE Scored& scored(uint32_t t) const { return smem_.scored[t & 1]; }
  // Does m of any row move with block t, so that O is multiplied by alpha?
  FA3_DEVICE bool moves(uint32_t t) const { return AmongWarps::any(scored(t).moves); }

  FA3_DEVICE void signal(uint32_t t) const {
    __syncwarp();
    mbarrier_arrive_if(shared_address(&smem_.full_scored[t & 1]), threadIdx.x % 32 == 0);
  }
  FA3_DEVICE void receive(uint32_t t) const { wait(smem_.full_scored[t & 1], t >> 1 & 1); }

 private:
  Smem& smem_;
};

// A consumer's half of O^T of a piece.
struct OHalf : TransposedO<o_tiles> {
  FA3_DEVICE void scale(const float (&alpha)[lane_rows]) {
    TransposedO::scale([&](int, int r) { return alpha[r]; });
  }
  // O^T += V^T P^T, by descriptors of the half's first column of V, and of P.
  FA3_DEVICE void multiply(uint64_t v, uint64_t p) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Bc / k_step; step++)
#pragma unroll
      for (int i = 0; i < o_tiles; i++)
        wgmma_ss<0, 1>(o[i], moved(v, i * slab_units + descriptor_units(step * k_step * slab_row_bytes)),
                       moved(p, descriptor_units(step * 32)), true);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    own();
  }
};

// The softmax of the first warpgroup: a lane's rows of a piece.
class FewSoftmax {
 public:
  FA3_DEVICE FewSoftmax(const Params& p, const RowBlock& block, const FewHandOver& hand_over, Smem& smem, int warp)
      : hand_over_(hand_over), among_warps_(smem.warp_rows, 0, warp), warp_(warp), seen_(p, block) {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      // What other rows hold moves no m.
      c_[r] = block.row + lane_row(r) < visible(p, block).rows() ? p.softmax_scale_log2 : 0.f;
      m_[r] = lowest_m, l_[r] = rounded_l_[r] = 0.f;
    }
  }

  // Hands over P of block t (A2.6, A2.13, A2.16), whose first key this is, and multiplies O by what it is to be
  // multiplied by before. Returns behind a barrier of the warpgroup.
  FA3_DEVICE void run(uint32_t t, Accumulators& S, int key, OHalf& half) {
    seen_.mask(S, key, warp_);
    float largest[lane_rows];
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      largest[r] = fmaxf(S[x], S[x + 2]) * c_[r];
      exceeds |= largest[r] > m_[r] + m_slack;
    }
    exceeds = __any_sync(0xffffffffu, exceeds);
    if (threadIdx.x % 32 == 0) hand_over_.scored(t).moves[warp_] = exceeds;
    float sum[lane_rows], rounded_sum[lane_rows];
    exponentiate(t, S, sum, rounded_sum);
    if (hand_over_.moves(t)) {
      raise(t, largest, half);
      exponentiate(t, S, sum, rounded_sum);
    }
#pragma unroll
    for (int r = 0; r < lane_rows; r++) l_[r] += sum[r], rounded_l_[r] += rounded_sum[r];
  }

  // With the piece's last block: m and l of all rows, and what makes O fit l. Returns behind a barrier.
  FA3_DEVICE void hand_sums_over(uint32_t t) {
    float l[lane_rows], rounded_l[lane_rows];
    add_warps_up(l_, l);
    add_warps_up(rounded_l_, rounded_l);
    Scored& scored = hand_over_.scored(t);
    if (warp_ == 0 && threadIdx.x % 32 < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) {
        const int row = lane_row(r);
        scored.m[row] = m_[r], scored.l[row] = l[r];
        scored.fit[row] = __fdividef(l[r], rounded_l[r] == 0.f ? 1.f : rounded_l[r]);
      }
    among_warps_.sync();
  }

 private:
  FA3_DEVICE void exponentiate(uint32_t t, const Accumulators& S, float (&sum)[lane_rows],
                               float (&rounded_sum)[lane_rows]) const {
    float P[most_rows / 2], rounded[most_rows / 2];
    uint32_t pairs[lane_rows];
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) P[x] = ex2_approx_ftz(fmaf(S[x], c_[row_of(x)], -m_[row_of(x)]));
#pragma unroll
    for (int i = 0; i < lane_rows; i++) pairs[i] = pack(P[2 * i], P[2 * i + 1], multiplies_bf16);
    unpack(multiplies_bf16, pairs, rounded);
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      sum[r] = P[x] + P[x + 2], rounded_sum[r] = rounded[x] + rounded[x + 2];
    }
    write_p(hand_over_.p(t), pairs, warp_);
    fence_proxy_async_shared();  // WGMMA reads it
    among_warps_.sync();
  }
  // m becomes the largest score so far, of all warps' keys.
  FA3_DEVICE void raise(uint32_t t, const float (&largest)[lane_rows], OHalf& half) {
    float alpha[lane_rows];
    among_warps_.raise(largest, m_, alpha);
#pragma unroll
    for (int r = 0; r < lane_rows; r++) l_[r] *= alpha[r], rounded_l_[r] *= alpha[r];
    half.scale(alpha);
    if (warp_ == 0 && threadIdx.x % 32 < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) hand_over_.scored(t).alpha[lane_row(r)] = alpha[r];
  }
  // Sums of all lanes and warps, for the first warp.
  FA3_DEVICE void add_warps_up(const float (&lane_sum)[lane_rows], float (&sum)[lane_rows]) const {
    float warp_sum[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) warp_sum[r] = column_sum(lane_sum[r]);
    among_warps_.share(warp_sum);
#pragma unroll
    for (int r = 0; r < lane_rows; r++) sum[r] = among_warps_.sum(r);
    among_warps_.sync();  // all have read
  }

  const FewHandOver& hand_over_;
  AmongWarps among_warps_;
  int warp_;
  SeenKeys seen_;
  float c_[lane_rows], m_[lane_rows];
  float l_[lane_rows], rounded_l_[lane_rows];  // the lane's shares of the row sums; the latter of P as multiplied
};

FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const HalvesRing ring{smem};
  const FewHandOver hand_over(smem);
  const Descriptors descriptors(smem);
  const auto k = [&](uint32_t i) { return descriptors.k(KvRing::index(i)); };
  const auto v = [&](uint32_t i) { return moved(descriptors.v(KvRing::index(i)), number * half_slabs * slab_units); };
  const auto p_of = [&](uint32_t t) { return descriptor_start(hand_over.p(t)) | qk_descriptor; };

  OHalf half;
  uint32_t first = 0;  // use of the K/V ring that holds the block that comes next
  uint32_t t = 0;      // of the blocks that are computed
  for (uint32_t q_use = 0;; q_use++) {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));  // A2.3
    const uint32_t q_buffer = QRing::index(q_use);
    const RowBlock& block = smem.row_block[RowBlockRing::index(q_use)];
    // Shuffled, as the compiler must know that they are the same in all lanes.
    const int blocks = __shfl_sync(0xffffffffu, block.blocks, 0), skipped = __shfl_sync(0xffffffffu, block.skipped, 0);
    const int parts = __shfl_sync(0xffffffffu, block.parts, 0);
    if (blocks == RowBlock::end_of_work) break;
    if (number == 0) ring.skip(first, first + skipped);
    first += skipped;
    const uint32_t end = first + blocks;
    RowSums sums;
    sums.clear();
    half.clear();

    if (number == 0 && blocks > 0) {
      FewSoftmax softmax(p, block, hand_over, smem, warp);
      const uint64_t q = descriptors.q(q_buffer);
      for (uint32_t i = first; i != end; i++, t++) {
        // A2.4, A2.9: by V's left columns, which come first, and then by K's own and the others.
        Accumulators S;
        const auto issue = [&](int from, auto count, bool accumulate) {
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4 * count(); step++) {
            const uint32_t slab = from + step / 4, within = descriptor_units(step % 4 * 32);
            wgmma_ss(S, moved(k(i), slab * slab_units + within), moved(q, slab * q_slab_units + within),
                     step > 0 || accumulate);
          }
          wgmma_commit_group();
        };
        using HalfOfSlabs = std::integral_constant<int, half_slabs>;
        ring.wait_left(i);
        issue(1, HalfOfSlabs(), false);
        ring.wait_right(i);                              // A2.8
        issue(0, std::integral_constant<int, 1>(), true);
        issue(1 + half_slabs, HalfOfSlabs(), true);
        wgmma_wait_group<0>();                           // A2.12
        wgmma_owned(S);
        if (i == end - 1) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));

        softmax.run(t, S, (block.begin + int(end - 1 - i)) * Bc, half);
        if (i == end - 1) {
          softmax.hand_sums_over(t);
          const Scored& scored = hand_over.scored(t);
          sums.read(scored.m, scored.l, scored.fit);
        }
        hand_over.signal(t);
        half.multiply(v(i), p_of(t));                    // A2.11, A2.19
        ring.release_left(i);                            // A2.15
      }
    } else {
      mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
      for (uint32_t i = first; i != end; i++, t++) {
        hand_over.receive(t);
        const Scored& scored = hand_over.scored(t);
        if (hand_over.moves(t)) {
          float alpha[lane_rows];
#pragma unroll
          for (int r = 0; r < lane_rows; r++) alpha[r] = scored.alpha[lane_row(r)];
          half.scale(alpha);
        }
        if (i == end - 1) sums.read(scored.m, scored.l, scored.fit);
        half.multiply(v(i), p_of(t));
        ring.release_right(i);
      }
    }
    first = end;
    store_columns(half.o, sums, p, block, parts, number, warp);  // A2.20
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  Smem& smem = set_up(p, warp);
  if (warp / 4 >= consumers) latent_producer(p, smem, warp - 4 * consumers);
  else consumer(p, smem, warp / 4, warp % 4);
}
