// Attention in plain float32 code: the yardstick of the tolerance.
#pragma once
#include "../problems/memory.h"

namespace fa3::test {

// O as (batch, seqlen_q, heads, head_dim_v) and LSE as (batch, heads, seqlen_q), packed.
struct Output {
  std::vector<float> o, lse;
  // Of plain_forward, for each LSE, which is of a row. In e4m3: the largest |sum of 32 n products| on the way to its
  // scores, scaled; below 0 if a sink is all that it has. With softcap in 16 bits that of 16 n products, times the
  // cap's slope at the score. And the sums of the squares and of the fourth powers of its weights; 0 without keys.
  std::vector<float> partial, squares, fourths;
};

// The same mathematics as the kernels, from the same inputs, without any cleverness: S in float32, softmax in two
// passes in float32, P rounded to the input dtype, O accumulated in float32, divided by the sum and rounded to the
// output dtype.
//
// In e4m3 S and O are summed as the FP8 tensor cores do it: 32 products at a time, of which, as of the sum so far, only
// what is above the 13th bit below the largest of them counts; with two levels O's sum of `two_level_keys` keys is then
// added up in float32. (With V = 1 + N(0,1) this shrinks O to 0.991, 0.951 and 0.814 at 1024, 4096 and 16384 keys; an
// H200 to 0.99, 0.95 and 0.816.) P is rounded as 32 exp(s - maximum) times a number from 1 to 2 that differs from row
// to row: the kernels' P is relative to something near the maximum, so even the largest is not exact.
Output plain_forward(const Case& made);
// Its sums: sum[j] += a[0] b[0][j] + a[1] b[1][j] + ..., for all j below `width`; rows of b are `stride` apart. In e4m3
// of up to 32 products.
void add_products(bool e4m3, int64_t count, const float* a, const float* b, int64_t stride, int64_t width, float* sum);
inline constexpr int64_t two_level_keys = 1024;

}  // namespace fa3::test
