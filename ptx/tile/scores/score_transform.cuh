// What becomes of scores, S = q k, before they are masked: with Trait::softcap and Trait::alibi, or both: first capped.
// Both keep the units of S, so all that follows (mask.cuh, softmax.cuh) is as without. Rows without them call nothing
// here.
#pragma once
#include "../../isa/math.cuh"
#include "sinks.cuh"
#include "softcap.cuh"
#include "softmax.cuh"

namespace fa3 {

// In blocks without a mask scores are capped on their way to the exponentials, unless something comes between, or
// scales of Q and K come before.
inline constexpr bool caps_late = has(Trait::softcap) && !has(Trait::alibi) && !config.has_scales();

// P = exp2(cap tanh(S / cap) c - m) in place of S, and sums, as `exponentiate` has them: by a polynomial that holds for
// these scores, with its factor and c in one; or of any scores. There cap tanh(S / cap) c - m is cap c - m - 2 cap c r
// with r = 1 / (1 + exp2(S exponent)): r of four scores of a row by one reciprocal, of the product of their
// denominators.
template <int terms>
FA3_DEVICE void exponentiate_small(float (&S)[Bc / 2], const float (&m)[2], float (&sum)[2], Score score,
                                   const float (&scaled)[terms]) {
#pragma unroll
  for (int i = 0; i < Bc / 2; i++) {
    if (has(Trait::spread) && i == Bc / 4) score.wait_for(S[0]);
    const float square = S[i] * S[i];
    S[i] = ptx::ex2_approx_ftz(fmaf(S[i], fmaf(polynomial(scaled, square), square, score.c), -m[i >> 1 & 1]));
    float& row_sum = sum[i >> 1 & 1];
    row_sum = i < 4 && i % 2 == 0 ? S[i] : row_sum + S[i];
  }
}
FA3_DEVICE void exponentiate_any(float (&S)[Bc / 2], const float (&m)[2], float (&sum)[2], const Softcap& by) {
  const float addend[2] = {by.cap_scaled - m[0], by.cap_scaled - m[1]}, factor = -2.f * by.cap_scaled;
#pragma unroll
  for (int i = 0; i < Bc / 2; i += 8)
#pragma unroll
    for (int row = 0; row < 2; row++) {
      float* const of[4] = {&S[i + 2 * row], &S[i + 2 * row + 1], &S[i + 2 * row + 4], &S[i + 2 * row + 5]};
      float x[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        x[k] = 1.f + ptx::ex2_approx_ftz(ptx::min_nan_f32(*of[k] * by.exponent, largest_exponent));
      const float first = x[0] * x[1], second = x[2] * x[3], r = factor * ptx::rcp_approx_ftz(first * second);
      const float pair_factor[2] = {r * second, r * first};
#pragma unroll
      for (int k = 0; k < 4; k++) {
        *of[k] = ptx::ex2_approx_ftz(fmaf(pair_factor[k >> 1], x[k ^ 1], addend[row]));
        sum[row] = i == 0 && k == 0 ? *of[k] : sum[row] + *of[k];
      }
    }
}

// A thread's two rows.
class ScoreTransform {
 public:
  FA3_DEVICE explicit ScoreTransform(const Params& p) : p_(p) {}

  // The rows of the next piece.
  FA3_DEVICE void receive(const RowBlock& block, int warp) {
    if constexpr (config.has_scales()) scale_ = __fdividef(block.c, p_.softmax_scale_log2);
    if constexpr (has(Trait::alibi)) {
#pragma unroll
      for (int i = 0; i < own_rows; i++) {
        const RowPlace place = place_of(p_, block, block.row + 16 * warp + threadIdx.x % 32 / 4 + 8 * i);
        position_[i] = place.query + block.first_position[0];
        const bool exists = place.exists && block.blocks != RowBlock::end_of_work;
        slope_[i] = exists ? slope_of(block.sequence_number[0], place.head) : 0.f;
      }
    }
  }

  // S: of block j.
  FA3_DEVICE void apply(float (&S)[Bc / 2], int j) const {
    if constexpr (config.has_scales())
#pragma unroll
      for (int i = 0; i < Bc / 2; i++) S[i] *= scale_;
    if constexpr (has(Trait::softcap)) cap_scores(S, taken<TransformBlock>(p_).transforms.softcap);
    if constexpr (has(Trait::alibi)) {
      const int key = j * Bc + 2 * (threadIdx.x & 3);  // of S[0]
      const int second = own_rows == 2 ? position_[own_rows - 1] : position_[0] + 8;
      const float first[2] = {slope_[0] * float(position_[0] - key), slope_[own_rows - 1] * float(second - key)};
#pragma unroll
      for (int i = 0; i < Bc / 2; i++) {
        const int column = (i >> 2) * 8 + (i & 1), row = i >> 1 & 1;
        S[i] -= fabsf(fmaf(-float(column), slope_[row % own_rows], first[row]));
      }
    }
  }

  // exponentiate of a block without a mask, in place of apply and that.
  FA3_DEVICE void exponentiate(float (&S)[Bc / 2], const float (&m)[2], float (&sum)[2], Score score) const {
    const Softcap& by = taken<TransformBlock>(p_).transforms.softcap;
    if (way_ == Way::narrow) exponentiate_small(S, m, sum, score, by.narrow_scaled);
    else if (way_ == Way::wide) exponentiate_small(S, m, sum, score, by.wide_scaled);
    else exponentiate_any(S, m, sum, by);
  }
  // By which way: the shortest that holds for all rows of the warp, while sums that exceed `bound` are looked at by
  // exceed() before they are used. bound: twice the row's sum, or less; not set, it is 0, and the row's sum 1 at least.
  FA3_DEVICE void choose_way(const float (&m)[2], const float (&bound)[2]) {
    const float level[2] = {m[0] + __log2f(fmaxf(bound[0], 2.f)), m[1] + __log2f(fmaxf(bound[1], 2.f))};
    const Softcap& by = taken<TransformBlock>(p_).transforms.softcap;
    const auto fails = [&](Way way) {
      const float highest = by.highest[int(way)], lowest = by.lowest[int(way)] + 1.f;
      const auto fails_for = [&](int i) {  // not of a row that has seen nothing
        return level[i] > highest | (level[i] < lowest & m[i] > lowest_m);
      };
      return __any_sync(0xffffffffu, fails_for(0) | fails_for(1));
    };
    way_ = !fails(Way::narrow) ? Way::narrow : !fails(Way::wide) ? Way::wide : Way::any;
  }
  // May these sums have scores for which the way does not hold?
  FA3_DEVICE bool exceed(const float (&m)[2], const float (&sum)[2]) const {
    if (way_ == Way::any) return false;
    const float highest = taken<TransformBlock>(p_).transforms.softcap.highest[int(way_)];
    return (sum[0] > ptx::ex2_approx_ftz(highest - m[0])) | (sum[1] > ptx::ex2_approx_ftz(highest - m[1]));
  }

 private:
  enum class Way { narrow, wide, any };
  FA3_DEVICE float slope_of(int sequence, int head) const {
    const Alibi by = taken<TransformBlock>(p_).transforms.alibi;
    return __ldg(by.slopes + sequence * by.stride_batch + head * by.stride_head) * by.inverse_scale;
  }

  // Without packed heads the second row is the first one's head's, 8 queries on.
  static constexpr int own_rows = config.packs_heads() ? 2 : 1;
  const Params& p_;
  Way way_ = Way::any;  // the same in all lanes of a warp
  float scale_;             // with scales: those of Q and K
  int position_[own_rows];  // of the rows, among the keys
  float slope_[own_rows];   // in units of S
};

}  // namespace fa3
