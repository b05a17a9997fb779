// Multi-head latent attention over a latent cache of e4m3 (VLayout::latent), for the few rows that a step of decoding
// has where a GPU holds few heads. As in mla_few.cu keys stand in the rows of the scores, S^T = K Q^T, and O's columns
// in those of the other product, O^T = V^T P^T. Both are WGMMAs of 64 x most_rows whose operand A, keys or columns,
// comes from registers: a stage has the cache's bytes as they are in memory, and they are made fp16, which holds every
// e4m3 number, on their way to the product. If they were written to shared memory again (tile/widen_latent.cuh), that
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
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n).
#include "../isa/shared.cuh"
#include "../tile/block.cuh"
#include "../tile/few_latent.cuh"
#include "../tile/gemm.cuh"
#include "../tile/latent_fragments.cuh"
#include "../tile/narrow_q.cuh"
#include "../tile/planned_producer.cuh"
#include "../tile/unpack.cuh"

namespace fa3 {
using namespace ptx;

static_assert(keeps_latent && consumers == 2 && config.stages % consumers == 0 && slab_row_bytes == 128 &&
              early_q_release);

// One that neither warpgroup has.
inline constexpr int barrier_all_consumers = barrier_warpgroup + consumers;

inline constexpr int scales = config.latent_scales();
inline constexpr int all_tiles = dv / 64;  // of O^T: of 64 columns, 16 for each warp
inline constexpr uint32_t q_slab_units = descriptor_units(config.q_rows() * slab_row_bytes);

// Q as the products take it, in place, by all consumers: fp16, of bf16 with a power of two for each row
// (tile/narrow_q.cuh), the columns of V's part in the order of K's fragments, and zeros in rows from `rows` on. The
// columns of K's own part stay.
FA3_DEVICE void prepare_q(Smem& smem, Element* q, int rows, int warp) {
  const int lane = threadIdx.x % 32;
  for (int row = warp; row < most_rows; row += 4 * consumers) {
    // A lane has 16 of the row's columns.
    const uint32_t at = shared_address(q) + (1 + lane / 4) * config.q_rows() * slab_row_bytes + row * slab_row_bytes +
                        ((2 * (lane % 4) ^ row % 8) << 4);
    uint32_t x[2][4];
    ld_shared_v4_u32(x[0], at);
    ld_shared_v4_u32(x[1], at ^ 16);
    float inverse = 1.f;
    if constexpr (is_bf16) {
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) largest = Narrowing::larger(largest, x[i / 4][i % 4]);
      const Narrowing narrowed = Narrowing::of(__reduce_max_sync(0xffffffffu, largest));
#pragma unroll
      for (int i = 0; i < 8; i++) x[i / 4][i % 4] = narrowed(x[i / 4][i % 4]);
      inverse = narrowed.inverse;
    }
    if (row >= rows)
#pragma unroll
      for (int i = 0; i < 8; i++) x[i / 4][i % 4] = 0;
    st_shared_v4_u32(at, x[0][0], x[0][2], x[1][0], x[1][2]);
    st_shared_v4_u32(at ^ 16, x[0][1], x[0][3], x[1][1], x[1][3]);
    if (lane == 0) smem.q_inverse[row] = inverse;
  }
  fence_proxy_async_shared();
  bar_sync(barrier_all_consumers, 128 * consumers);
}

// S^T or O^T += A B.
FA3_DEVICE void multiply(Accumulators& to, const Fragment& a, uint64_t b, bool accumulate) {
  wgmma_m64k16_f32_f16_rs<0>(to, a[0], a[1], a[2], a[3], b, accumulate);
}

// Scores of a block: of K's own columns, and of those that share a scale.
struct Scores {
  Accumulators own, latent[scales];
};

// By descriptors of K's own columns and of Q, which begins with them (A2.4, A2.9).
FA3_DEVICE void multiply_keys(Scores& s, const LatentReader& reader, uint64_t k, uint32_t v, uint64_t q) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; step++)
    wgmma_ss(s.own, moved(k, descriptor_units(step * 32)), moved(q, descriptor_units(step * 32)), step > 0);
  wgmma_commit_group();
  multiply_pairs([&](Bytes& bytes, int n) { reader.load_keys(bytes, v, n); }, LatentReader::widen_keys,
                 [&](const Fragment& a, int n, int step) {
                   const uint32_t columns = (1 + n / 2) * q_slab_units + descriptor_units((n % 2 * 2 + step) * 32);
                   multiply(s.latent[n / 4], a, moved(q, columns), n % 4 || step);
                 });
  wgmma_owned(s.own);
#pragma unroll
  for (int i = 0; i < scales; i++) wgmma_owned(s.latent[i]);
}

// What a warpgroup has of O^T of a piece, each 128 columns times the factor of their scale (below).
struct AllColumns : TransposedO<all_tiles> {
  // O^T += V^T P^T (A2.11, A2.19), by P of the first scale, which the others follow.
  FA3_DEVICE void multiply(const LatentReader& reader, uint32_t v, uint64_t p) {
    constexpr uint32_t p_units = descriptor_units(most_rows * Bc * sizeof(Element));
    multiply_pairs([&](Bytes& bytes, int n) { reader.load_columns(bytes, v, n); }, LatentReader::widen_columns,
                   [&](const Fragment& a, int n, int step) {
                     const uint32_t keys = descriptor_units((n % 2 * 2 + step) * 32);
                     fa3::multiply(o[n / 2], a, moved(p, n / 4 * p_units + keys), true);
                   });
    own();
  }
};

// What P is multiplied by for a scale, beside the scale itself: a power of two, by whose inverse O is multiplied in the
// end. fp16 goes from 2^-14, or with fewer bits from 2^-24, to 2^16, and P up to 2^m_slack. The largest scale of a
// warpgroup's keys times the factor is to be 2^3 or more, and no more than 2^7; so what is 2^17 times smaller has all
// of fp16's bits.
namespace factor {
inline constexpr float most = 0x1p7f, first = 0x1p100f;
// largest: a scale's bits, for which the factor so far is too large.
FA3_DEVICE float of(uint32_t largest) { return __int_as_float((127 + 127 + 3 - int(largest >> 23)) << 23); }
FA3_DEVICE float inverse(float factor) { return __int_as_float((254 << 23) - __float_as_int(factor)); }
}  // namespace factor

// What a lane has of a block's P: as they are, and times their scale and its factor, rounded, two keys' each.
struct Exponentials {
  Accumulators p;
  uint32_t multiplied[scales][lane_rows];
};

// A lane's shares of sums of its rows' P: l, and where O fits what is multiplied, for each scale the magnitudes of P
// times the scale, exact and rounded.
struct Sums {
  static constexpr int fits = LatentShare::scales;
  float l[lane_rows], weighted[fits][lane_rows], rounded[fits][lane_rows];

  FA3_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      l[r] = 0.f;
#pragma unroll
      for (int i = 0; i < fits; i++) weighted[i][r] = rounded[i][r] = 0.f;
    }
  }
  // weight: of the lane's keys, with each scale.
  FA3_DEVICE void add(const Exponentials& of_block, const float (&weight)[2][scales]) {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      l[r] += of_block.p[x] + of_block.p[x + 2];
    }
#pragma unroll
    for (int i = 0; i < fits; i++) {
      Accumulators multiplied;
      unpack(false, of_block.multiplied[i], multiplied);
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) {
        weighted[i][row_of(x)] = fmaf(of_block.p[x], fabsf(weight[x / 2 % 2][i]), weighted[i][row_of(x)]);
        rounded[i][row_of(x)] += fabsf(multiplied[x]);
      }
    }
  }
  FA3_DEVICE void scale(const float (&alpha)[lane_rows], const float (&of_scale)[scales]) {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      l[r] *= alpha[r];
#pragma unroll
      for (int i = 0; i < fits; i++) weighted[i][r] *= alpha[r] * of_scale[i], rounded[i][r] *= alpha[r] * of_scale[i];
    }
  }
};

// The softmax of a warpgroup: a lane's rows of a piece.
class Softmax {
 public:
  FA3_DEVICE Softmax(const Params& p, const RowBlock& block, Smem& smem, int number, int warp)
      : smem_(smem), share_(smem.latent_share[number]), among_warps_(share_.of_warps, number, warp), number_(number),
        warp_(warp), seen_(p, block) {
    sums_.clear();
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      // What other rows hold moves no m.
      c_[r] = block.row + lane_row(r) < visible(p, block).rows() ? p.softmax_scale_log2 : 0.f;
      latent_c_[r] = c_[r] * smem.q_inverse[lane_row(r)];
      m_[r] = lowest_m;
    }
#pragma unroll
    for (int i = 0; i < scales; i++) factor_[i] = factor::first;
  }

  FA3_DEVICE Element* p(uint32_t t) const { return smem_.few_p[(2 * number_ + (t & 1)) * scales]; }

  // P of the warpgroup's t-th block (A2.6, A2.13, A2.16), whose first key this is, and multiplies O by what it is to be
  // multiplied by before. Returns behind a barrier of the warpgroup.
  FA3_DEVICE void run(uint32_t t, const Scores& s, const LandedLatent& landed, int key, AllColumns& columns) {
    float scale[2][scales];  // of the lane's keys
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int own = 16 * warp_ + threadIdx.x % 32 / 4 + 8 * half;
      const float4 x = *reinterpret_cast<const float4*>(landed.scales[own]);
      const bool exists = own < landed.keys;
      scale[half][0] = exists ? x.x : 0.f, scale[half][1] = exists ? x.y : 0.f;
      scale[half][2] = exists ? x.z : 0.f, scale[half][3] = exists ? x.w : 0.f;
    }
    Accumulators S;  // times c
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) {
      float latent = 0.f;
#pragma unroll
      for (int i = 0; i < scales; i++) latent = fmaf(s.latent[i][x], scale[x / 2 % 2][i], latent);
      S[x] = fmaf(s.own[x], c_[row_of(x)], latent * latent_c_[row_of(x)]);
    }
    seen_.mask(S, key, warp_);
    float largest[lane_rows];
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      largest[r] = fmaxf(S[x], S[x + 2]);
      exceeds |= largest[r] > m_[r] + m_slack;
    }
#pragma unroll
    for (int i = 0; i < scales; i++)
      exceeds |= fmaxf(fabsf(scale[0][i]), fabsf(scale[1][i])) * factor_[i] > factor::most;
    exceeds = __any_sync(0xffffffffu, exceeds);
    if (threadIdx.x % 32 == 0) share_.moves[t & 1][warp_] = exceeds;
    Exponentials of_block;
    float weight[2][scales];
    exponentiate(t, S, scale, weight, of_block);
    if (AmongWarps::any(share_.moves[t & 1])) {
      raise(largest, scale, columns);
      exponentiate(t, S, scale, weight, of_block);
    }
    sums_.add(of_block, weight);
  }

  // At the end of a piece: O without the factors, fitted to l; m and l of all rows, for both warpgroups, behind a
  // barrier of theirs.
  FA3_DEVICE void finish(AllColumns& columns) const {
    float l[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) l[r] = column_sum(sums_.l[r]);
    share_scale_sums();
    among_warps_.share(l);
    if (warp_ == 0 && threadIdx.x % 32 < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++)
        share_.m[lane_row(r)] = m_[r], share_.l[lane_row(r)] = among_warps_.sum(r);
    fit_scales();
    float by[scales][lane_rows];
#pragma unroll
    for (int i = 0; i < scales; i++)
#pragma unroll
      for (int r = 0; r < lane_rows; r++)
        by[i][r] = factor::inverse(factor_[i]) * (Sums::fits ? share_.fit[i][lane_row(r)] : 1.f);
    columns.scale([&](int tile, int r) { return by[tile / 2][r]; });
  }

 private:
  // The sums that each warp has for the scales.
  FA3_DEVICE void share_scale_sums() const {
#pragma unroll
    for (int i = 0; i < Sums::fits; i++)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) {
        const float weighted = column_sum(sums_.weighted[i][r]), rounded = column_sum(sums_.rounded[i][r]);
        if (threadIdx.x % 32 < 4)
          share_.weighted[warp_][i][lane_row(r)] = weighted, share_.rounded[warp_][i][lane_row(r)] = rounded;
      }
  }
  // What they come to, a thread for each scale and row; behind a barrier.
  FA3_DEVICE void fit_scales() const {
    if constexpr (Sums::fits > 0) {
      const int i = threadIdx.x % 128 / most_rows, row = threadIdx.x % most_rows;
      if (i < Sums::fits) {
        float weighted = 0.f, rounded = 0.f;
#pragma unroll
        for (int w = 0; w < 4; w++) weighted += share_.weighted[w][i][row], rounded += share_.rounded[w][i][row];
        // Scales need not have been finite.
        const bool fits = rounded > 0.f && rounded < INFINITY;
        share_.fit[i][row] = fits ? __fdividef(weighted, rounded) : 1.f;
      }
      among_warps_.sync();
    }
  }

  FA3_DEVICE void exponentiate(uint32_t t, const Accumulators& S, const float (&scale)[2][scales],
                               float (&weight)[2][scales], Exponentials& of_block) const {
    float(&P)[most_rows / 2] = of_block.p;
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) P[x] = ex2_approx_ftz(S[x] - m_[row_of(x)]);
#pragma unroll
    for (int i = 0; i < scales; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) weight[half][i] = scale[half][i] * factor_[i];
#pragma unroll
      for (int n = 0; n < lane_rows; n++)
        of_block.multiplied[i][n] = cvt_rn_f16x2_f32(P[2 * n + 1] * weight[n % 2][i], P[2 * n] * weight[n % 2][i]);
      write_p(p(t) + i * most_rows * Bc, of_block.multiplied[i], warp_);
    }
    fence_proxy_async_shared();  // WGMMA reads it
    among_warps_.sync();
  }
  // m becomes the largest score so far, and no scale's factor is too large, of all warps' keys.
  FA3_DEVICE void raise(const float (&largest)[lane_rows], const float (&scale)[2][scales], AllColumns& columns) {
    constexpr uint32_t infinity = 0x7f800000;
#pragma unroll
    for (int i = 0; i < scales; i++) {
      const uint32_t low = __float_as_uint(fabsf(scale[0][i])), high = __float_as_uint(fabsf(scale[1][i]));
      const uint32_t of_lane = max(low < infinity ? low : 0, high < infinity ? high : 0);
      const uint32_t of_warp = __reduce_max_sync(0xffffffffu, of_lane);
      if (threadIdx.x % 32 == 0) share_.largest_scale[warp_][i] = of_warp;
    }
    float alpha[lane_rows], of_scale[scales];
    among_warps_.raise(largest, m_, alpha);
#pragma unroll
    for (int i = 0; i < scales; i++) {
      uint32_t of_all = 0;
#pragma unroll
      for (int w = 0; w < 4; w++) of_all = max(of_all, share_.largest_scale[w][i]);
      const bool too_large = __uint_as_float(of_all) * factor_[i] > factor::most;
      const float factor = too_large ? factor::of(of_all) : factor_[i];
      of_scale[i] = factor * factor::inverse(factor_[i]);
      factor_[i] = factor;
    }
    sums_.scale(alpha, of_scale);
    columns.scale([&](int tile, int r) { return alpha[r] * of_scale[tile / 2]; });
  }

  Smem& smem_;
  LatentShare& share_;
  AmongWarps among_warps_;
  int number_, warp_;
  SeenKeys seen_;
  float c_[lane_rows], latent_c_[lane_rows];  // for scores of K's own columns, and of the others
  float m_[lane_rows], factor_[scales];
  Sums sums_;
};

// Zeros in rows of V that are not the sequence's, which may hold anything.
FA3_DEVICE void clear_rows(uint32_t v, int first) {
  for (int at = first * slab_row_bytes + threadIdx.x % 128 * 16; at < slab_bytes; at += 128 * 16)
#pragma unroll
    for (int i = 0; i < scales; i++) st_shared_v4_u32(v + i * slab_bytes + at, 0, 0, 0, 0);
  fence_proxy_async_shared();  // TMA writes there next
}

// Of a piece, a warpgroup's half of O^T's columns, of all keys.
struct Merged {
  float o[o_tiles][most_rows / 2];
  RowSums sums;

  FA3_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] = 0.f;
    sums.clear();
  }
  // Of what the warpgroup has, and what the other one has left for it, if it had any keys. Both compute alike, so that
  // the bits do not depend on which of them has had which blocks.
  FA3_DEVICE void add_up(const AllColumns& columns, const float4* left, const LatentShare& own,
                         const LatentShare& other, int number) {
    float weight[lane_rows], of_other[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const float a = own.m[lane_row(r)], b = other.m[lane_row(r)], m = fmaxf(a, b);
      weight[r] = part_weight(a, m), of_other[r] = part_weight(b, m);
    }
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x += 4) {
        const float4 theirs = left ? left[place(i, x)] : make_float4(0.f, 0.f, 0.f, 0.f);
        const float b[4] = {theirs.x, theirs.y, theirs.z, theirs.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const float a = number == 0 ? columns.o[i][x + k] : columns.o[o_tiles + i][x + k];
          const int r = row_of(x + k);
          o[i][x + k] = __fadd_rn(__fmul_rn(a, weight[r]), __fmul_rn(b[k], of_other[r]));
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
  FA3_DEVICE static void leave(float4* to, const AllColumns& columns, int number) {
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x += 4) {
        const float *left = &columns.o[i][x], *right = &columns.o[o_tiles + i][x];
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
  const auto v_of = [&](uint32_t i) { return shared_address(smem.stage[KvRing::index(i)].v); };
  const auto release = [&](uint32_t i) {
    __syncwarp();
    ring.release_k(i, true);
  };

  AllColumns columns;
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
    const auto own_from = [&](uint32_t i) { return i + ((i ^ number) & 1); };
#pragma unroll 1
    for (uint32_t i = own_from(first); int(i - first) < skipped; i += consumers) {
      ring.wait_k(i);
      release(i);
    }
    first += skipped;
    const uint32_t end = first + blocks;
    // Whether a warpgroup has any blocks, and the use that holds its last one.
    const auto has_any = [&](int of) { return blocks > 1 || ((first ^ of) & 1) == 0; };
    const auto last_of = [&](int of) { return end - 1 - ((end - 1 ^ of) & 1); };
    Merged merged;
    merged.clear();
    if (blocks > 0) {
      prepare_q(smem, smem.q[q_buffer], visible(p, block).rows() - block.row, 4 * number + warp);
      columns.clear();
      Softmax softmax(p, block, smem, number, warp);
      const uint64_t q = descriptors.q(q_buffer);
      if (!has_any(number)) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
      for (uint32_t i = own_from(first); int(end - i) > 0; i += consumers, t++) {
        ring.wait_k(i);                                  // A2.8
        const LandedLatent& landed = smem.landed[KvRing::index(i)];
        const int keys = __shfl_sync(0xffffffffu, landed.keys, 0);
        if (keys < Bc) {
          clear_rows(v_of(i), keys);
          bar_sync(barrier_warpgroup + number, 128);
        }
        Scores s;
        multiply_keys(s, reader, descriptors.k(KvRing::index(i)), v_of(i), q);  // A2.12
        if (int(end - i) <= consumers) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
        softmax.run(t, s, landed, (block.begin + int(end - 1 - i)) * Bc, columns);
        columns.multiply(reader, v_of(i), descriptor_start(softmax.p(t)) | qk_descriptor);
        if (int(end - i) > consumers) release(i);        // A2.15
      }
      // A warpgroup's last bytes are done with, and leave their place to what it has for the other one.
      const auto left_by = [&](int of) {
        return has_any(of) ? reinterpret_cast<float4*>(smem.stage[KvRing::index(last_of(of))].v) : nullptr;
      };
      softmax.finish(columns);
      if (has_any(number)) Merged::leave(left_by(number), columns, number);
      bar_sync(barrier_all_consumers, 128 * consumers);
      merged.add_up(columns, left_by(number ^ 1), smem.latent_share[number], smem.latent_share[number ^ 1], number);
      bar_sync(barrier_all_consumers, 128 * consumers);
      if (has_any(number)) release(last_of(number));
    }
    if (blocks == 0) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
    first = end;
    // A2.20: the warp has 16 columns of each 64.
#pragma unroll
    for (int n = 0; n < strips; n++) {
      if (block.row < 0 || block.row + PartStrip::rows * n >= visible(p, block).rows()) break;
      const int first_column = number * o_columns + 16 * warp;
      if (parts > 1) store_part(merged.o, merged.sums, p, block, n, first_column);
      else store_rows(merged.o, merged.sums, p, block, n, first_column);
    }
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
