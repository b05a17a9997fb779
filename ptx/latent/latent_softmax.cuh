// The softmax of latent attention of few rows over a cache in bytes (latent/mla_few_e4m3.cu), where
// fp16 is made of P for each scale, and how Q is made ready for it.
#pragma once
#include "../isa/shared.cuh"
#include "../tile/loads/narrow_q.cuh"
#include "../tile/unpack.cuh"
#include "few_latent.cuh"
#include "latent_fragments.cuh"

namespace fa3 {

// One that neither warpgroup has.
inline constexpr int barrier_all_consumers = barrier_warpgroup + consumers;

inline constexpr int scales = LatentShare::scales;  // of a warpgroup's columns
FA3_DEVICE int first_scale(int warpgroup) { return splits_latent ? warpgroup * scales : 0; }

// Q as the products take it, in place, by all consumers: fp16, of bf16 with a power of two for each row (narrow_q.cuh),
// with the columns of V's part in the order of K's fragments, while those of K's own part stay; and zeros in rows from
// `rows` on, whose scores then move no m.
FA3_DEVICE void prepare_q(Smem& smem, Element* q, int rows, int warp) {
  const int lane = threadIdx.x % 32;
  for (int row = warp; row < most_rows; row += 4 * consumers) {
    // A lane has 16 of the row's columns.
    const uint32_t at = ptx::shared_address(q) + (1 + lane / 4) * config.q_rows() * slab_row_bytes +
                        row * slab_row_bytes + ((2 * (lane % 4) ^ row % 8) << 4);
    uint32_t x[2][4];
    ptx::ld_shared_v4_u32(x[0], at);
    ptx::ld_shared_v4_u32(x[1], at ^ 16);
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
    if (row >= rows) {
#pragma unroll
      for (int i = 0; i < 8; i++) x[i / 4][i % 4] = 0;
      if (lane < 8) ptx::st_shared_v4_u32(ptx::shared_address(q) + row * slab_row_bytes + lane * 16, 0, 0, 0, 0);
    }
    ptx::st_shared_v4_u32(at, x[0][0], x[0][2], x[1][0], x[1][2]);
    ptx::st_shared_v4_u32(at ^ 16, x[0][1], x[0][3], x[1][1], x[1][3]);
    if (is_bf16 && lane == 0) smem.q_inverse[row] = inverse;
  }
  ptx::fence_proxy_async_shared();
  ptx::bar_sync(barrier_all_consumers, 128 * consumers);
}

// S^T or O^T += A B.
FA3_DEVICE void multiply(Accumulators& to, const Fragment& a, uint64_t b, bool accumulate) {
  ptx::wgmma_m64k16_f32_f16_rs<0>(to, a[0], a[1], a[2], a[3], b, accumulate);
}

// A warpgroup's scores of a block, or its share of them: by K's own columns, and by those that share a scale.
struct Scores {
  Accumulators own, latent[scales];
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
  static constexpr int fits = LatentShare::fits;
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
  FA3_DEVICE void add(const Exponentials& exponentials, const float (&weight)[2][scales]) {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      l[r] += exponentials.p[x] + exponentials.p[x + 2];
    }
#pragma unroll
    for (int i = 0; i < fits; i++) {
      Accumulators multiplied;
      unpack(false, exponentials.multiplied[i], multiplied);
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) {
        weighted[i][row_of(x)] = fmaf(exponentials.p[x], fabsf(weight[x / 2 % 2][i]), weighted[i][row_of(x)]);
        rounded[i][row_of(x)] += fabsf(multiplied[x]);
      }
    }
  }
  FA3_DEVICE void scale(const float (&alpha)[lane_rows], const float (&factor_change)[scales]) {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      l[r] *= alpha[r];
#pragma unroll
      for (int i = 0; i < fits; i++) {
        weighted[i][r] *= alpha[r] * factor_change[i];
        rounded[i][r] *= alpha[r] * factor_change[i];
      }
    }
  }
};

// The softmax of a warpgroup: a lane's rows of a piece.
class Softmax {
 public:
  FA3_DEVICE Softmax(const Params& p, const RowBlock& block, Smem& smem, int number, int warp)
      : smem_(smem), share_(smem.latent_share[number]), among_warps_(share_.warp_rows, number, warp), number_(number),
        warp_(warp), seen_(p, block), c_(p.softmax_scale_log2) {
    sums_.clear();
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      if constexpr (is_bf16) latent_c_[r] = c_ * smem.q_inverse[lane_row(r)];
      m_[r] = lowest_m;
    }
#pragma unroll
    for (int i = 0; i < scales; i++) factor_[i] = factor::first;
  }

  FA3_DEVICE Element* p(uint32_t t) const {
    return smem_.few_p[(splits_latent ? number_ : 2 * number_ + (t & 1)) * scales];
  }

  // P of the warpgroup's t-th block (A2.6, A2.13, A2.16), whose first key this is, and multiplies O by what it is to be
  // multiplied by before. Returns behind a barrier of the warpgroup.
  template <class Columns>
  FA3_DEVICE void run(uint32_t t, const Scores& s, const LandedLatent& landed, int key, Columns& columns) {
    float scale[2][scales];  // of the lane's keys
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
      const int own = 16 * warp_ + threadIdx.x % 32 / 4 + 8 * upper;
      const bool exists = own < landed.keys;
#pragma unroll
      for (int i = 0; i < scales; i += 2) {
        const float2 x = *reinterpret_cast<const float2*>(&landed.scales[own][first_scale(number_) + i]);
        scale[upper][i] = exists ? x.x : 0.f, scale[upper][i + 1] = exists ? x.y : 0.f;
      }
    }
    Accumulators S;  // times c
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) {
      float latent = 0.f;
#pragma unroll
      for (int i = 0; i < scales; i++) latent = fmaf(s.latent[i][x], scale[x / 2 % 2][i], latent);
      if constexpr (is_bf16) S[x] = fmaf(s.own[x], c_, latent * latent_c_[row_of(x)]);
      else S[x] = (s.own[x] + latent) * c_;
    }
    if constexpr (splits_latent) add_other_share(t, S);
    seen_.mask(S, key, warp_);
    float largest[lane_rows];
    bool exceeds = false, too_large = false;
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      largest[r] = fmaxf(S[x], S[x + 2]);
      exceeds |= largest[r] > m_[r] + m_slack;
    }
#pragma unroll
    for (int i = 0; i < scales; i++)
      too_large |= fmaxf(fabsf(scale[0][i]), fabsf(scale[1][i])) * factor_[i] > factor::most;
    // Warpgroups with a share of the same scores have the same m, and so move it together; a factor is one's own.
    const uint32_t warp_moves = __reduce_or_sync(0xffffffffu, (exceeds ? m_moves : 0) | (too_large ? factor_moves : 0));
    if (threadIdx.x % 32 == 0) share_.moves[t & 1][warp_] = warp_moves;
    Exponentials exponentials;
    float weight[2][scales];
    exponentiate(t, S, scale, weight, exponentials);
    if (const uint32_t moves = AmongWarps::any(share_.moves[t & 1])) {
      raise(moves & m_moves, largest, scale, columns);
      exponentiate(t, S, scale, weight, exponentials);
    }
    sums_.add(exponentials, weight);
  }

  // At the end of a piece: O without the factors, fitted to l; m and l of all rows in LatentShare, behind a barrier.
  template <class Columns>
  FA3_DEVICE void finish(Columns& columns) const {
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
    among_warps_.sync();
    float by[scales][lane_rows];
#pragma unroll
    for (int i = 0; i < scales; i++)
#pragma unroll
      for (int r = 0; r < lane_rows; r++)
        by[i][r] = factor::inverse(factor_[i]) * (Sums::fits ? share_.fit[i][lane_row(r)] : 1.f);
    columns.scale([&](int tile, int r) { return by[tile / 2][r]; });
  }

 private:
  static constexpr uint32_t m_moves = 1, factor_moves = 2;

  // To scores of the t-th block the other warpgroup's share of them. Both get the same bits.
  FA3_DEVICE void add_other_share(uint32_t t, Accumulators& S) const {
    const int thread = threadIdx.x % 128;
    float4(&own)[most_rows / 8][128] = share_.scores[t & 1];
    const float4(&other_scores)[most_rows / 8][128] = smem_.latent_share[number_ ^ 1].scores[t & 1];
#pragma unroll
    for (int i = 0; i < most_rows / 8; i++)
      own[i][thread] = make_float4(S[4 * i], S[4 * i + 1], S[4 * i + 2], S[4 * i + 3]);
    ptx::bar_sync(barrier_all_consumers, 128 * consumers);
#pragma unroll
    for (int i = 0; i < most_rows / 8; i++) {
      const float4 x = other_scores[i][thread];
      const float other[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int n = 0; n < 4; n++) S[4 * i + n] = __fadd_rn(S[4 * i + n], other[n]);
    }
  }
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
    }
  }

  FA3_DEVICE void exponentiate(uint32_t t, const Accumulators& S, const float (&scale)[2][scales],
                               float (&weight)[2][scales], Exponentials& exponentials) const {
    float(&P)[most_rows / 2] = exponentials.p;
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) P[x] = ptx::ex2_approx_ftz(S[x] - m_[row_of(x)]);
#pragma unroll
    for (int i = 0; i < scales; i++) {
#pragma unroll
      for (int upper = 0; upper < 2; upper++) weight[upper][i] = scale[upper][i] * factor_[i];
#pragma unroll
      for (int n = 0; n < lane_rows; n++)
        exponentials.multiplied[i][n] =
            ptx::cvt_rn_f16x2_f32(P[2 * n + 1] * weight[n % 2][i], P[2 * n] * weight[n % 2][i]);
      write_p(p(t) + i * most_rows * Bc, exponentials.multiplied[i], warp_);
    }
    ptx::fence_proxy_async_shared();  // WGMMA reads it
    among_warps_.sync();
  }
  // m becomes the largest score so far, if it moves, and no scale's factor is too large, of all warps' keys.
  template <class Columns>
  FA3_DEVICE void raise(bool m_too, const float (&largest)[lane_rows], const float (&scale)[2][scales],
                        Columns& columns) {
    constexpr uint32_t infinity = 0x7f800000;
#pragma unroll
    for (int i = 0; i < scales; i++) {
      const uint32_t low = __float_as_uint(fabsf(scale[0][i])), high = __float_as_uint(fabsf(scale[1][i]));
      const uint32_t lane_bits = max(low < infinity ? low : 0, high < infinity ? high : 0);
      const uint32_t warp_bits = __reduce_max_sync(0xffffffffu, lane_bits);
      if (threadIdx.x % 32 == 0) share_.largest_scale[warp_][i] = warp_bits;
    }
    float alpha[lane_rows], factor_change[scales];
    if (m_too) {
      among_warps_.raise(largest, m_, alpha);
    } else {
      among_warps_.sync();
#pragma unroll
      for (int r = 0; r < lane_rows; r++) alpha[r] = 1.f;
    }
#pragma unroll
    for (int i = 0; i < scales; i++) {
      uint32_t largest_bits = 0;
#pragma unroll
      for (int w = 0; w < 4; w++) largest_bits = max(largest_bits, share_.largest_scale[w][i]);
      const bool too_large = __uint_as_float(largest_bits) * factor_[i] > factor::most;
      const float factor = too_large ? factor::of(largest_bits) : factor_[i];
      factor_change[i] = factor * factor::inverse(factor_[i]);
      factor_[i] = factor;
    }
    sums_.scale(alpha, factor_change);
    columns.scale([&](int tile, int r) { return alpha[r] * factor_change[tile / 2]; });
  }

  Smem& smem_;
  LatentShare& share_;
  AmongWarps among_warps_;
  int number_, warp_;
  SeenKeys seen_;
  float c_, latent_c_[is_bf16 ? lane_rows : 0];  // for scores of K's own columns, and of the others
  float m_[lane_rows], factor_[scales];
  Sums sums_;
};

}  // namespace fa3
