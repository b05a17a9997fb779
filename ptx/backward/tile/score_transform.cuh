// What becomes of scores before they are masked, and what that makes of dS: with Trait::softcap and Trait::alibi, or
// both: first capped. Other rows of the table call nothing here.
#pragma once
#include "../../tile/scores/softcap.cuh"
#include "sequence.cuh"

namespace fa3 {

FA3_DEVICE const ScoreTransforms& transforms_of(const TransformedBackwardParams& p) { return p.transforms; }
FA3_DEVICE ScoreTransforms transforms_of(const BackwardParams&) { return {}; }

// With softcap S becomes tanh(S / cap), and an exponent is that times this. A bias is in the same units then.
FA3_DEVICE const SoftcapTanh& tanh_of(const TransformedBackwardParams& p) { return p.tanh; }
FA3_DEVICE SoftcapTanh tanh_of(const BackwardParams&) { return {}; }
FA3_DEVICE float exponent_of_score(const BackwardParams& p) {
  if constexpr (has(Trait::softcap)) return tanh_of(static_cast<const Params&>(p)).cap_log2;
  return p.softmax_scale_log2;
}

// How a warp computes tanh of a block's scores: by a polynomial that holds for all that count, or of any.
enum class TanhWay { narrow, wide, any };

// No score that a row sees exceeds the row's LSE; so that tells the way, without a look at the scores. What is far
// below has no weight (Softcap). Of scores before a bias LSE tells nothing. `lse`: of the warp's rows, each of which
// some lane has, in powers of 2; +inf if a row sees no key. The same in all lanes.
template <int count>
FA3_DEVICE TanhWay tanh_way(const float (&lse)[count], const Softcap& by) {
  if constexpr (has(Trait::alibi)) return TanhWay::any;
  const auto fails = [&](int way) {
    bool fails = false;
#pragma unroll
    for (const float x : lse) fails |= (x > by.highest[way] && x != INFINITY) | (x < by.lowest[way]);
    return __any_sync(0xffffffffu, fails);
  };
  return !fails(0) ? TanhWay::narrow : !fails(1) ? TanhWay::wide : TanhWay::any;
}
// The same of a tile's rows, where these are columns of S. By a whole warp.
FA3_DEVICE TanhWay tanh_way(const float (&lse)[Br], const Softcap& by, int lane) {
  float own[Br / 32];
#pragma unroll
  for (int i = 0; i < Br / 32; i++) own[i] = lse[32 * i + lane];
  return tanh_way(own, by);
}

// tanh(S / cap) in place of S.
template <int count, int terms>
FA3_DEVICE void small_tanh(float (&S)[count], const float (&c)[terms]) {
#pragma unroll
  for (float& s : S) s *= polynomial(c, s * s);
}
// 1 - 2 / (1 + exp2(S exponent)), four by one reciprocal, of the product of their denominators.
template <int count>
FA3_DEVICE void any_tanh(float (&S)[count], const Softcap& by) {
#pragma unroll
  for (int i = 0; i < count; i += 4) {
    float x[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      x[k] = 1.f + ptx::ex2_approx_ftz(ptx::min_nan_f32(S[i + k] * by.exponent, largest_exponent));
    const float first = x[0] * x[1], second = x[2] * x[3], r = -2.f * ptx::rcp_approx_ftz(first * second);
    const float pair_factor[2] = {r * second, r * first};
#pragma unroll
    for (int k = 0; k < 4; k++) S[i + k] = fmaf(pair_factor[k >> 1], x[k ^ 1], 1.f);
  }
}
// The same where caps may be far above the scores: those are better by the polynomial.
template <int count>
FA3_DEVICE void any_tanh(float (&S)[count], const Softcap& by, const SoftcapTanh& tanh) {
  constexpr float narrow_of_wide = float(narrow_limit / wide_limit);
#pragma unroll
  for (int i = 0; i < count; i++) {
    const float large = fmaf(-2.f, ptx::rcp_approx_ftz(1.f + ptx::ex2_approx_ftz(S[i] * by.exponent)), 1.f);
    S[i] = fabsf(S[i]) > narrow_of_wide * by.limit ? large : S[i] * polynomial(tanh.narrow, S[i] * S[i]);
  }
}
template <int count>
FA3_DEVICE void tanh_scores(float (&S)[count], TanhWay way, const Softcap& by, const SoftcapTanh& tanh) {
  if constexpr (has(Trait::alibi)) any_tanh(S, by, tanh);
  else if (way == TanhWay::narrow) small_tanh(S, tanh.narrow);
  else if (way == TanhWay::wide) small_tanh(S, tanh.wide);
  else any_tanh(S, by);
}

// The derivative of cap tanh(S / cap), from that tanh; where tanh is -inf, as of a score that is not seen, 0.
FA3_DEVICE float slope_of_tanh(float tanh) { return __saturatef(fmaf(-tanh, tanh, 1.f)); }

// The same as fp16, for want of registers: keep(g, slopes) gets those of tanh[4 g] to tanh[4 g + 3]. Of small tanh in
// pairs: what 1 - tanh^2 loses so is less than it loses by being rounded.
template <int count, class Keep>
FA3_DEVICE void keep_slopes(const float (&tanh)[count], TanhWay way, Keep keep) {
  const auto small_pair_slopes = [](float low, float high) {
    constexpr uint32_t ones = 0x3c003c00, signs = 0x80008000;
    const uint32_t pair = ptx::cvt_rn_f16x2_f32(high, low);
    return ptx::fma_rn_sat_f16x2(pair ^ signs, pair, ones);
  };
  const auto pair_slopes = [](float low, float high) {
    return ptx::cvt_rn_f16x2_f32(slope_of_tanh(high), slope_of_tanh(low));
  };
  if (way == TanhWay::any) {
#pragma unroll
    for (int i = 0; i < count; i += 4)
      keep(i / 4, make_uint2(pair_slopes(tanh[i], tanh[i + 1]), pair_slopes(tanh[i + 2], tanh[i + 3])));
  } else {
#pragma unroll
    for (int i = 0; i < count; i += 4)
      keep(i / 4, make_uint2(small_pair_slopes(tanh[i], tanh[i + 1]), small_pair_slopes(tanh[i + 2], tanh[i + 3])));
  }
}
FA3_DEVICE void multiply_by_slopes(float* x, const uint2& slopes) {
  x[0] *= ptx::cvt_f32_f16(uint16_t(slopes.x)), x[1] *= ptx::cvt_f32_f16(uint16_t(slopes.x >> 16));
  x[2] *= ptx::cvt_f32_f16(uint16_t(slopes.y)), x[3] *= ptx::cvt_f32_f16(uint16_t(slopes.y >> 16));
}

// What a query tile's bias follows from: its sequence, its head, and the position of its first row among the keys.
struct TileBias {
  int sequence, head, position;
};

// From a row of the part of sequence `call_sequence` that the kernel has, to its position among that part's keys.
FA3_DEVICE int position_offset(const Alibi& by, const Sequence& part, int call_sequence) {
  return part.q_row - by.q.end_of(call_sequence) + by.k.end_of(call_sequence) - part.k_row;
}
// In units of S, or of tanh(S / cap).
FA3_DEVICE float slope_of(const Alibi& by, int sequence, int head) {
  return __ldg(by.slopes + sequence * by.stride_batch + head * by.stride_head) * by.inverse_scale;
}

// What the producer needs for that, which has no registers for it.
struct BiasLoads {
  int sequence, offset;  // of positions from rows

  FA3_DEVICE void keep(const BackwardParams&, int) {}
  FA3_DEVICE void keep(const TransformedBackwardParams& p, int number) {
    const PlannedBlock& block = p.blocks[listed_block(*p.counts, p.order.section, number).entry];
    sequence = max(p.tiles[block.first_tile].sequence, 0);
    offset = position_offset(p.transforms.alibi, block.sequence, sequence);
  }
};

// Where rows are keys. `key`: of the thread's first row.
FA3_DEVICE void subtract_bias(float (&S)[Br / 2], const Alibi& by, const TileBias& bias, int key, int lane) {
  const float slope = slope_of(by, bias.sequence, bias.head);
  const int distance = bias.position + 2 * (lane % 4) - key;  // of S[0]
  const float first[2] = {slope * float(distance), slope * float(distance - 8)};
#pragma unroll
  for (int i = 0; i < Br / 2; i++) {
    const int column = 8 * (i / 4) + i % 2;
    S[i] -= fabsf(fmaf(float(column), slope, first[i / 2 % 2]));
  }
}

// Where rows are queries: what all of a thread block's rows have in common.
struct RowBias {
  float slope;
  int offset;  // of positions from rows

  FA3_DEVICE void keep(const BackwardParams&, int, int) {}
  FA3_DEVICE void keep(const TransformedBackwardParams& p, int sequence, int head) {
    const Alibi& by = p.transforms.alibi;
    slope = slope_of(by, sequence, head);
    offset = position_offset(by, p.sequences[sequence], sequence);
  }
  // S: of block j; row: the thread's first one.
  FA3_DEVICE void subtract(float (&S)[Bc / 2], int j, int row) const {
    const int distance = row + offset - j * Bc - 2 * (threadIdx.x % 4);  // of S[0]
    const float first[2] = {slope * float(distance), slope * float(distance + 8)};
#pragma unroll
    for (int i = 0; i < Bc / 2; i++) {
      const int column = 8 * (i / 4) + i % 2;
      S[i] -= fabsf(fmaf(-float(column), slope, first[i / 2 % 2]));
    }
  }
};

}  // namespace fa3
