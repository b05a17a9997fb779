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
// The operands' order, with lane l = 4 g + t of a warp:
//   K      ldmatrix gives a lane four neighbouring columns, 4 t and on, of key g: the first two stand for the product's
//          columns 2 t and 2 t + 1, the others for 2 t + 8 and 2 t + 9. Q's columns are put into the same order.
//   V^T    ldmatrix transposes pairs of bytes: a lane gets columns 2 g and 2 g + 1 of keys 2 t and 2 t + 1. The pairs
//          of one column are row g of the product, those of the other row g + 8. So O^T has V's columns 2 g and
//          2 g + 1 there.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n).
#include "../isa/shared.cuh"
#include "../tile/block.cuh"
#include "../tile/few_latent.cuh"
#include "../tile/gemm.cuh"
#include "../tile/narrow_q.cuh"
#include "../tile/planned_producer.cuh"

namespace fa3 {
using namespace ptx;

static_assert(keeps_latent && consumers == 2 && config.stages % consumers == 0 && slab_row_bytes == 128 &&
              early_q_release);
// P times a scale has fp16's bits, which O of fp16 would miss where a row sees one key.
static_assert(is_bf16);

// One that neither warpgroup has.
inline constexpr int barrier_all_consumers = barrier_warpgroup + consumers;

inline constexpr int scales = config.latent_scales();
inline constexpr int all_tiles = dv / 64;               // of O^T: of 64 columns, 16 for each warp
inline constexpr int slab_bytes = Bc * slab_row_bytes;  // of V: 128 columns, which share a scale
inline constexpr uint32_t q_slab_units = descriptor_units(config.q_rows() * slab_row_bytes);

// Q as the products take it, in place, by all consumers: fp16, with a power of two for each row (tile/narrow_q.cuh),
// the columns of V's part in the order of K's fragments, and zeros in rows from `rows` on. Those of K's own part stay.
FA3_DEVICE void prepare_q(Smem& smem, Element* q, int rows, int warp) {
  const int lane = threadIdx.x % 32;
  for (int row = warp; row < most_rows; row += 4 * consumers) {
    // A lane has 16 of the row's columns.
    const uint32_t at = shared_address(q) + (1 + lane / 4) * config.q_rows() * slab_row_bytes + row * slab_row_bytes +
                        ((2 * (lane % 4) ^ row % 8) << 4);
    uint32_t x[2][4];
    ld_shared_v4_u32(x[0], at);
    ld_shared_v4_u32(x[1], at ^ 16);
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = Narrowing::larger(largest, x[i / 4][i % 4]);
    const Narrowing narrowed = Narrowing::of(__reduce_max_sync(0xffffffffu, largest));
#pragma unroll
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = narrowed(x[i / 4][i % 4]);
    if (row >= rows)
#pragma unroll
      for (int i = 0; i < 8; i++) x[i / 4][i % 4] = 0;
    st_shared_v4_u32(at, x[0][0], x[0][2], x[1][0], x[1][2]);
    st_shared_v4_u32(at ^ 16, x[0][1], x[0][3], x[1][1], x[1][3]);
    if (lane == 0) smem.q_inverse[row] = narrowed.inverse;
  }
  fence_proxy_async_shared();
  bar_sync(barrier_all_consumers, 128 * consumers);
}

// Products are issued in pairs of k steps. While they run, the next pair's fragments are made, in the place of those of
// three pairs before. Four k steps at a time, and two such groups in turn, are slower (notes.md).
inline constexpr int pairs = dv / 32, pairs_in_turn = 3;
static_assert(Bc == 64);  // so both products have as many

// Operand A of a pair, and the bytes that it is made of.
using Fragments = uint32_t[2][4];
using Bytes = uint32_t[4];

// Where a lane's ldmatrix reads a stage's V, and what it makes of it.
class Reader {
 public:
  FA3_DEVICE explicit Reader(int warp) {
    const int lane = threadIdx.x % 32, key = 16 * warp + lane % 16;
    k_ = key * slab_row_bytes + ((lane / 16 ^ key % 8) << 4);
    v_ = lane * slab_row_bytes + ((warp ^ lane % 8) << 4);
  }
  // The n-th 32 of the columns that lie in V, of the warp's 16 keys.
  FA3_DEVICE void load_keys(Bytes& bytes, uint32_t v, int n) const {
    ldmatrix_x4(bytes, (v + k_ ^ n % 4 * 32) + n / 4 * slab_bytes);
  }
  FA3_DEVICE static void widen_keys(Fragments& a, const Bytes& bytes) {
#pragma unroll
    for (int step = 0; step < 2; step++) {
      const uint32_t low = bytes[2 * step], high = bytes[2 * step + 1];  // keys g, and g + 8
      a[step][0] = widened(low, 0), a[step][1] = widened(high, 0);
      a[step][2] = widened(low, 1), a[step][3] = widened(high, 1);
    }
  }
  // Of the warp's 16 of the n / 2-th 64 columns of V, 32 keys.
  FA3_DEVICE void load_columns(Bytes& bytes, uint32_t v, int n) const {
    ldmatrix_x4_trans(bytes, (v + v_ ^ n / 2 % 2 * 64) + n / 4 * slab_bytes + n % 2 * 32 * slab_row_bytes);
  }
  FA3_DEVICE static void widen_columns(Fragments& a, const Bytes& bytes) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t by_columns = __byte_perm(bytes[i], 0, 0x3120);
      a[i / 2][i % 2 * 2] = widened(by_columns, 0), a[i / 2][i % 2 * 2 + 1] = widened(by_columns, 1);
    }
  }

 private:
  uint32_t k_, v_;  // in a slab
};

// S^T or O^T += A B.
FA3_DEVICE void multiply(Accumulators& to, const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  wgmma_m64k16_f32_f16_rs<0>(to, a[0], a[1], a[2], a[3], b, accumulate);
}

// Scores of a block: of K's own columns, and of those that share a scale.
struct Scores {
  Accumulators own, latent[scales];
};

// By descriptors of K's own columns and of Q, which begins with them (A2.4, A2.9).
FA3_DEVICE void multiply_keys(Scores& s, const Reader& reader, uint64_t k, uint32_t v, uint64_t q) {
  Fragments a[pairs_in_turn];
  Bytes bytes;
  reader.load_keys(bytes, v, 0);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; step++)
    wgmma_ss(s.own, moved(k, descriptor_units(step * 32)), moved(q, descriptor_units(step * 32)), step > 0);
  wgmma_commit_group();
#pragma unroll
  for (int n = 0; n < pairs; n++) {
    Reader::widen_keys(a[n % pairs_in_turn], bytes);
    if (n < pairs - 1) reader.load_keys(bytes, v, n + 1);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; step++)
      multiply(s.latent[n / 4], a[n % pairs_in_turn][step],
               moved(q, (1 + n / 2) * q_slab_units + descriptor_units((n % 2 * 2 + step) * 32)), n % 4 || step);
    wgmma_commit_group();
    if (n < pairs - 1) wgmma_wait_group<pairs_in_turn - 1>();
  }
  wgmma_wait_group<0>();
  wgmma_owned(s.own);
#pragma unroll
  for (int i = 0; i < scales; i++) wgmma_owned(s.latent[i]);
}

// What a warpgroup has of O^T of a piece, each 128 columns times the factor of their scale (below).
struct AllColumns {
  float o[all_tiles][most_rows / 2];

  FA3_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < all_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] = 0.f;
    own();
  }
  FA3_DEVICE void scale(const float (&alpha)[lane_rows], const float (&of_scale)[scales]) {
#pragma unroll
    for (int i = 0; i < all_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] *= alpha[row_of(x)] * of_scale[i / 2];
    own();
  }
  // O^T += V^T P^T (A2.11, A2.19), by P of the first scale, which the others follow.
  FA3_DEVICE void multiply(const Reader& reader, uint32_t v, uint64_t p) {
    Fragments a[pairs_in_turn];
    Bytes bytes;
    reader.load_columns(bytes, v, 0);
#pragma unroll
    for (int n = 0; n < pairs; n++) {
      Reader::widen_columns(a[n % pairs_in_turn], bytes);
      if (n < pairs - 1) reader.load_columns(bytes, v, n + 1);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 2; step++)
        fa3::multiply(o[n / 2], a[n % pairs_in_turn][step],
                      moved(p, n / 4 * p_units + descriptor_units((n % 2 * 2 + step) * 32)), true);
      wgmma_commit_group();
      if (n < pairs - 1) wgmma_wait_group<pairs_in_turn - 1>();
    }
    wgmma_wait_group<0>();
    own();
  }

 private:
  static constexpr uint32_t p_units = descriptor_units(most_rows * Bc * sizeof(Element));
  FA3_DEVICE void own() {
#pragma unroll
    for (int i = 0; i < all_tiles; i++) wgmma_owned(o[i]);
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

// The softmax of a warpgroup: a lane's rows of a piece.
class Softmax {
 public:
  FA3_DEVICE Softmax(const Params& p, const RowBlock& block, Smem& smem, int number, int warp)
      : smem_(smem), share_(smem.latent_share[number]), number_(number), warp_(warp), seen_(p, block) {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      // What other rows hold moves no m.
      c_[r] = block.row + lane_row(r) < visible(p, block).rows() ? p.softmax_scale_log2 : 0.f;
      latent_c_[r] = c_[r] * smem.q_inverse[lane_row(r)];
      m_[r] = lowest_m, l_[r] = 0.f;
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
    float sum[lane_rows];
    exponentiate(t, S, scale, sum);
    if (moves(t)) {
      raise(largest, scale, columns);
      exponentiate(t, S, scale, sum);
    }
#pragma unroll
    for (int r = 0; r < lane_rows; r++) l_[r] += sum[r];
  }

  // At the end of a piece: m and l of all rows, for both warpgroups, behind a barrier of theirs.
  FA3_DEVICE void share_sums() const {
    float l[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) l[r] = column_sum(l_[r]);
    share(l);
    if (warp_ > 0 || threadIdx.x % 32 >= 4) return;
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      share_.m[lane_row(r)] = m_[r];
      share_.l[lane_row(r)] = shared_by(0, r) + shared_by(1, r) + shared_by(2, r) + shared_by(3, r);
    }
  }
  // O without the factors.
  FA3_DEVICE void unscale(AllColumns& columns) const {
    float ones[lane_rows], inverse[scales];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) ones[r] = 1.f;
#pragma unroll
    for (int i = 0; i < scales; i++) inverse[i] = factor::inverse(factor_[i]);
    columns.scale(ones, inverse);
  }

 private:
  FA3_DEVICE void sync() const { bar_sync(barrier_warpgroup + number_, 128); }

  // What each warp has of the warpgroup's rows, for all of its warps, behind a barrier.
  FA3_DEVICE void share(const float (&x)[lane_rows]) const {
    if (threadIdx.x % 32 < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) share_.of_warps[warp_][lane_row(r)] = x[r];
    sync();
  }
  // Of the lane's row number r, what warp w has shared.
  FA3_DEVICE float shared_by(int w, int r) const { return share_.of_warps[w][lane_row(r)]; }
  FA3_DEVICE bool moves(uint32_t t) const {
    bool any = false;
#pragma unroll
    for (int w = 0; w < 4; w++) any |= share_.moves[t & 1][w];
    return __any_sync(0xffffffffu, any);
  }

  FA3_DEVICE void exponentiate(uint32_t t, const Accumulators& S, const float (&scale)[2][scales],
                               float (&sum)[lane_rows]) const {
    float P[most_rows / 2];
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) P[x] = ex2_approx_ftz(S[x] - m_[row_of(x)]);
#pragma unroll
    for (int r = 0; r < lane_rows; r++) sum[r] = P[4 * (r / 2) + r % 2] + P[4 * (r / 2) + r % 2 + 2];
#pragma unroll
    for (int i = 0; i < scales; i++) {
      const float weight[2] = {scale[0][i] * factor_[i], scale[1][i] * factor_[i]};
      uint32_t two[lane_rows];
#pragma unroll
      for (int n = 0; n < lane_rows; n++)
        two[n] = cvt_rn_f16x2_f32(P[2 * n + 1] * weight[n % 2], P[2 * n] * weight[n % 2]);
      write_p(p(t) + i * most_rows * Bc, two, warp_);
    }
    fence_proxy_async_shared();  // WGMMA reads it
    sync();
  }
  // m becomes the largest score so far, and no scale's factor is too large, of all warps' keys.
  FA3_DEVICE void raise(float (&largest)[lane_rows], const float (&scale)[2][scales], AllColumns& columns) {
    constexpr uint32_t infinity = 0x7f800000;
#pragma unroll
    for (int i = 0; i < scales; i++) {
      const uint32_t low = __float_as_uint(fabsf(scale[0][i])), high = __float_as_uint(fabsf(scale[1][i]));
      const uint32_t of_lane = max(low < infinity ? low : 0, high < infinity ? high : 0);
      const uint32_t of_warp = __reduce_max_sync(0xffffffffu, of_lane);
      if (threadIdx.x % 32 == 0) share_.largest_scale[warp_][i] = of_warp;
    }
#pragma unroll
    for (int r = 0; r < lane_rows; r++) largest[r] = column_max(largest[r]);
    share(largest);
    float alpha[lane_rows], of_scale[scales];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      float m = m_[r];
#pragma unroll
      for (int w = 0; w < 4; w++) m = fmaxf(m, shared_by(w, r));
      alpha[r] = part_weight(m_[r], m);
      m_[r] = m, l_[r] *= alpha[r];
    }
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
    columns.scale(alpha, of_scale);
  }

  Smem& smem_;
  LatentShare& share_;
  int number_, warp_;
  SeenKeys seen_;
  float c_[lane_rows], latent_c_[lane_rows];  // for scores of K's own columns, and of the others
  float m_[lane_rows], l_[lane_rows];         // l: the lane's share of the row sum
  float factor_[scales];
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
  const Reader reader(warp);
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
      softmax.share_sums();
      softmax.unscale(columns);
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
