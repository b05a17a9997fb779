// Multi-head latent attention over a latent cache of e4m3 (VLayout::latent), for the few rows that a step of decoding
// has where a GPU holds few heads. As in mla_few.cu keys stand in the rows of the scores, S^T = K Q^T, and O's columns
// in those of the other product, O^T = V^T P^T. Both are WGMMAs of 64 x most_rows whose operand A, keys or columns,
// comes from registers: a stage has the cache's bytes as they are in memory, and they are made fp16, which holds every
// e4m3 number, on their way to the product. If they were written to shared memory again (latent/widen_latent.cuh), that
// would be the limit; so it has each byte written once and read twice.
//
// A key's numbers have a scale for each 128 columns. Scores are products of that many columns times their scale, added
// up, with those of K's own columns, which have 16 bits. And of P there is one for each scale, times that of its key,
// and times a factor that keeps it in fp16's range.
//
// To make fp16 of a block's bytes twice takes a multiprocessor 640 clocks, and its 68 WGMMAs of 64x16x16 take 16 each,
// as A comes from registers, or 13 if two warpgroups issue them. So each warpgroup has every other block, all of it,
// with an m, an l and an O of its own, and neither waits for the other. At a piece's end each has half of O's columns,
// to which it adds what the other one has of them, and stores them.
//
// With up to 32 rows (Trait::half_rows) a warpgroup has no registers for O of all columns. So there each has half of
// the columns of every block (splits_latent), which it alone reads: what they add to the scores, and O of V's. For each
// block the warpgroups tell each other their shares of the scores; then both have the same m, l and P, and each makes
// fp16 of P for the scales of its own columns. With 16 rows that is slower, as nothing runs beside a softmax.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n).
#include "../tile/block.cuh"
#include "../tile/gemm.cuh"
#include "latent_producer.cuh"
#include "latent_softmax.cuh"

namespace fa3 {
using namespace ptx;

// A warpgroup's blocks are so many apart. It has so many tiles of O^T (few_latent.cuh), and multiplies by so many steps
// of 16 of K's own columns.
inline constexpr int stride = splits_latent ? 1 : consumers;
inline constexpr int tiles = splits_latent ? o_tiles : consumers * o_tiles;
inline constexpr int own_steps = splits_latent ? 2 : 4;

static_assert(keeps_latent && consumers == 2 && config.stages % stride == 0 && slab_row_bytes == 128 &&
              early_q_release);

// A warpgroup's first use of the ring from use i on, and its last one before `end`.
FA3_DEVICE uint32_t own_from(uint32_t i, int warpgroup) { return i + ((i ^ warpgroup) & stride - 1); }
FA3_DEVICE uint32_t own_before(uint32_t end, int warpgroup) { return end - 1 - ((end - 1 ^ warpgroup) & stride - 1); }

// Its part of K's own columns, or of Q's, by a descriptor of all of them.
FA3_DEVICE uint64_t own_columns(uint64_t operand, int warpgroup) {
  return splits_latent ? moved(operand, warpgroup * descriptor_units(64)) : operand;
}

FA3_DEVICE void wait_for_pairs(bool all) {
  if (all) wgmma_wait_group<0>();
  else wgmma_wait_group<pairs_in_turn - 1>();
}

// By descriptors of the warpgroup's first ones of K's own columns, of Q of these, and of Q of V's columns (A2.4, A2.9).
FA3_DEVICE void multiply_keys(Scores& s, const LatentReader& reader, uint64_t k, uint64_t own_q, uint32_t v,
                              uint64_t q) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < own_steps; step++)
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
struct OwnColumns : TransposedO<tiles> {
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

// Of a piece, a warpgroup's half of O^T's columns, of all keys.
struct Merged {
  static constexpr int right_half = tiles - o_tiles;  // the first tile of the right one
  float o[o_tiles][most_rows / 2];
  RowSums sums;

  FA3_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] = 0.f;
    sums.clear();
  }
  // Of what the warpgroup has, if that is its half of all keys.
  FA3_DEVICE void take(const OwnColumns& columns, const LatentShare& own) {
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] = columns.o[i][x];
    sums.read(own.m, own.l);
  }
  // Of what the warpgroup has, and what the other one has left for it, if it had any keys. Both compute alike, so that
  // the bits do not depend on which of them has had which blocks.
  FA3_DEVICE void add_up(const OwnColumns& columns, const float4* left, const LatentShare& own,
                         const LatentShare& other, int number) {
    float weight[lane_rows], other_weight[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const float a = own.m[lane_row(r)], b = other.m[lane_row(r)], m = fmaxf(a, b);
      weight[r] = part_weight(a, m), other_weight[r] = part_weight(b, m);
    }
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x += 4) {
        const float4 theirs = left ? left[place(i, x)] : make_float4(0.f, 0.f, 0.f, 0.f);
        const float b[4] = {theirs.x, theirs.y, theirs.z, theirs.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const float a = number == 0 ? columns.o[i][x + k] : columns.o[right_half + i][x + k];
          const int r = row_of(x + k);
          o[i][x + k] = __fadd_rn(__fmul_rn(a, weight[r]), __fmul_rn(b[k], other_weight[r]));
        }
      }
#pragma unroll
    for (int n = 0; n < strips; n++)
#pragma unroll
      for (int b = 0; b < 2; b++) {
        const int row = PartStrip::rows * n + threadIdx.x % 32 / 4 + 8 * b;
        const float m = fmaxf(own.m[row], other.m[row]);
        sums.m[n][b] = m;
        sums.l[n][b] = __fadd_rn(__fmul_rn(own.l[row], part_weight(own.m[row], m)),
                                 __fmul_rn(other.l[row], part_weight(other.m[row], m)));
      }
  }
  // Leaves the other one its half, thread by thread.
  FA3_DEVICE static void leave(float4* to, const OwnColumns& columns, int number) {
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x += 4) {
        const float *left = &columns.o[i][x], *right = &columns.o[right_half + i][x];
        to[place(i, x)] = number == 0 ? make_float4(right[0], right[1], right[2], right[3])
                                      : make_float4(left[0], left[1], left[2], left[3]);
      }
    fence_proxy_async_shared();  // TMA writes there next
  }

 private:
  FA3_DEVICE static int place(int i, int x) { return (i * most_rows / 8 + x / 4) * 128 + threadIdx.x % 128; }
};

FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const KvRing ring{smem};
  const Descriptors descriptors(smem);
  const LatentReader reader(warp);
  const auto v_of = [&](uint32_t i) {
    return shared_address(smem.stage[KvRing::index(i)].v) + first_scale(number) * slab_bytes;
  };
  const auto release = [&](uint32_t i) {
    __syncwarp();
    ring.release_k(i, true);
  };

  OwnColumns columns;
  uint32_t first = 0;  // use of the K/V ring that holds the block that comes next
  uint32_t t = 0;      // of the warpgroup's blocks that are computed
  for (uint32_t q_use = 0;; q_use++) {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));  // A2.3
    const uint32_t q_buffer = QRing::index(q_use);
    const RowBlock& block = smem.row_block[RowBlockRing::index(q_use)];
    // Shuffled, as the compiler must know that they are the same in all lanes.
    const int blocks = __shfl_sync(0xffffffffu, block.blocks, 0), skipped = __shfl_sync(0xffffffffu, block.skipped, 0);
    const int parts = __shfl_sync(0xffffffffu, block.parts, 0);
    if (blocks == RowBlock::end_of_work) break;
#pragma unroll 1
    for (uint32_t i = own_from(first, number); int(i - first) < skipped; i += stride) {
      ring.wait_k(i);
      release(i);
    }
    first += skipped;
    const uint32_t end = first + blocks;
    // Has a warpgroup any blocks?
    const auto has_any = [&](int warpgroup) { return blocks >= stride || ((first ^ warpgroup) & stride - 1) == 0; };
    Merged merged;
    merged.clear();
    if (blocks > 0) {
      prepare_q(smem, smem.q[q_buffer], visible(p, block).rows() - block.row, 4 * number + warp);
      columns.clear();
      Softmax softmax(p, block, smem, number, warp);
      const uint64_t own_q = own_columns(descriptors.q(q_buffer), number);
      const uint64_t q = moved(descriptors.q(q_buffer), (1 + 2 * first_scale(number)) * q_slab_units);
      if (!has_any(number)) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
      for (uint32_t i = own_from(first, number); int(end - i) > 0; i += stride, t++) {
        ring.wait_k(i);                                  // A2.8
        const LandedLatent& landed = smem.landed[KvRing::index(i)];
        const int keys = __shfl_sync(0xffffffffu, landed.keys, 0);
        if (keys < Bc) {
          clear_rows(v_of(i), keys);
          bar_sync(barrier_warpgroup + number, 128);
        }
        Scores s;
        const uint64_t k = own_columns(descriptors.k(KvRing::index(i)), number);
        multiply_keys(s, reader, k, own_q, v_of(i), q);  // A2.12
        if (int(end - i) <= stride) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
        softmax.run(t, s, landed, (block.begin + int(end - 1 - i)) * Bc, columns);
        columns.multiply(reader, v_of(i), descriptor_start(softmax.p(t)) | qk_descriptor);
        if (splits_latent || int(end - i) > stride) release(i);  // A2.15
      }
      softmax.finish(columns);
      if constexpr (splits_latent) {
        merged.take(columns, smem.latent_share[number]);
      } else {
        // A warpgroup's last bytes are done with, and leave their place to what it has for the other one.
        const auto left_by = [&](int warpgroup) {
          const auto v = [&] { return smem.stage[KvRing::index(own_before(end, warpgroup))].v; };
          return has_any(warpgroup) ? reinterpret_cast<float4*>(v()) : nullptr;
        };
        if (has_any(number)) Merged::leave(left_by(number), columns, number);
        bar_sync(barrier_all_consumers, 128 * consumers);
        merged.add_up(columns, left_by(number ^ 1), smem.latent_share[number], smem.latent_share[number ^ 1], number);
        bar_sync(barrier_all_consumers, 128 * consumers);
        if (has_any(number)) release(own_before(end, number));
      }
    }
    if (blocks == 0) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
    first = end;
    store_columns(merged.o, merged.sums, p, block, parts, number, warp);  // A2.20
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
