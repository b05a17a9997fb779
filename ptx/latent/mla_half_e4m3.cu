// Multi-head latent attention over a latent cache of e4m3 (VLayout::latent), for up to 32 rows. As in mla_few_e4m3.cu
// keys and V's columns come to the products by registers, where the cache's bytes become fp16, and scales go into the
// scores and into P.
//
// With 32 rows a warpgroup has no registers for O of all columns. So each has half of V's columns, which it alone
// reads: what they add to the scores, and O of them. K's own columns are halved, too. For each block the warpgroups
// tell each other their shares of the scores; then both have the same m, l and P, and each makes fp16 of P for the
// scales of its own columns. With 16 rows that is slower than every other block for each, as nothing runs beside a
// softmax.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n).
#include "../planned/planned_producer.cuh"
#include "../tile/block.cuh"
#include "../tile/gemm.cuh"
#include "latent_softmax.cuh"

namespace fa3 {
using namespace ptx;

static_assert(splits_latent && consumers == 2 && slab_row_bytes == 128 && early_q_release);

FA3_DEVICE void wait_for_pairs(bool all) {
  if (all) wgmma_wait_group<0>();
  else wgmma_wait_group<pairs_in_turn - 1>();
}

// By descriptors of the warpgroup's first ones of K's own columns, of Q of these, and of Q of V's columns (A2.4, A2.9).
FA3_DEVICE void multiply_keys(Scores& s, const LatentReader& reader, uint64_t k, uint64_t own_q, uint32_t v,
                              uint64_t q) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 2; step++)
    wgmma_ss(s.own, moved(k, descriptor_units(step * 32)), moved(own_q, descriptor_units(step * 32)), step > 0);
  wgmma_commit_group();
  multiply_pairs([&](Bytes& bytes, int n) { reader.load_keys(bytes, v, n); }, LatentReader::widen_keys,
                 [&](const Fragment& a, int n, int step) {
                   const uint32_t columns = n / 2 * q_slab_units + descriptor_units((n % 2 * 2 + step) * 32);
                   multiply(s.latent[n / 4], a, moved(q, columns), n % 4 || step);
                 },
                 wait_for_pairs);
  wgmma_owned(s.own);
#pragma unroll
  for (int i = 0; i < scales; i++) wgmma_owned(s.latent[i]);
}

// What a warpgroup has of O^T of a piece, each 128 columns times the factor of their scale.
struct Half : TransposedO<o_tiles> {
  // O^T += V^T P^T (A2.11, A2.19), by P of the first scale, which the others follow.
  FA3_DEVICE void multiply(const LatentReader& reader, uint32_t v, uint64_t p) {
    constexpr uint32_t p_units = descriptor_units(most_rows * Bc * sizeof(Element));
    multiply_pairs([&](Bytes& bytes, int n) { reader.load_columns(bytes, v, n); }, LatentReader::widen_columns,
                   [&](const Fragment& a, int n, int step) {
                     const uint32_t keys = descriptor_units((n % 2 * 2 + step) * 32);
                     fa3::multiply(o[n / 2], a, moved(p, n / 4 * p_units + keys), true);
                   },
                   wait_for_pairs);
    own();
  }
};

FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const KvRing ring{smem};
  const Descriptors descriptors(smem);
  const LatentReader reader(warp);
  const auto v_of = [&](uint32_t i) {
    return shared_address(smem.stage[KvRing::index(i)].v) + number * scales * slab_bytes;
  };
  const auto release = [&](uint32_t i) {
    __syncwarp();
    ring.release_k(i, true);
  };

  Half half;
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
#pragma unroll 1
    for (uint32_t i = first; i != first + skipped; i++) {
      ring.wait_k(i);
      release(i);
    }
    first += skipped;
    const uint32_t end = first + blocks;
    RowSums sums;
    sums.clear();
    half.clear();
    if (blocks > 0) {
      prepare_q(smem, smem.q[q_buffer], visible(p, block).rows() - block.row, 4 * number + warp);
      Softmax softmax(p, block, smem, number, warp);
      const uint64_t own_q = moved(descriptors.q(q_buffer), number * descriptor_units(64));
      const uint64_t q = moved(descriptors.q(q_buffer), (1 + 2 * number * scales) * q_slab_units);
      for (uint32_t i = first; i != end; i++, t++) {
        ring.wait_k(i);                                  // A2.8
        const LandedLatent& landed = smem.landed[KvRing::index(i)];
        const int keys = __shfl_sync(0xffffffffu, landed.keys, 0);
        if (keys < Bc) {
          clear_rows(v_of(i), keys);
          bar_sync(barrier_warpgroup + number, 128);
        }
        Scores s;
        const uint64_t k = moved(descriptors.k(KvRing::index(i)), number * descriptor_units(64));
        multiply_keys(s, reader, k, own_q, v_of(i), q);  // A2.12
        if (i == end - 1) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
        softmax.run(t, s, landed, (block.begin + int(end - 1 - i)) * Bc, half);
        half.multiply(reader, v_of(i), descriptor_start(softmax.p(t)) | qk_descriptor);
        release(i);                                      // A2.15
      }
      softmax.finish(half);
      sums.read(smem.latent_share[number].m, smem.latent_share[number].l);
    } else {
      mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
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
  if (warp / 4 >= consumers) planned_producer(p, smem, warp - 4 * consumers);
  else consumer(p, smem, warp / 4, warp % 4);
}
