// What is right, and how wrong a result may be.
#pragma once
#include <string>

#include "plain.h"

namespace fa3::test {

// Float64 arithmetic on the case's inputs, rounded once to float32 (fa3_reference_forward).
Output reference_forward(Case& made);

// Errors against the reference over all elements where it is finite.
struct Errors {
  double rms = 0, max = 0;              // of the difference
  double size_rms = 0, size_max = 0;    // of the reference itself
  int64_t count = 0;
};
Errors errors(const std::vector<float>& result, const std::vector<float>& reference);

// The case's outputs, gathered from the images.
Output gather(const Case& made);

// The references of a case: made once, compared with any number of runs.
struct Expected {
  Output reference, plain;
};
Expected expect(Case& made);

// What a verdict depends on beside the numbers. equal_weights: many of a row's weights are. transformed: scores are
// capped, or slopes are taken off.
struct Terms {
  fa3_dtype dtype, output_dtype;
  int64_t head_dim;
  bool equal_weights, transformed = false;
};
// What float32 may do to a weight, relative to it, where scores are transformed: those that count are about as large as
// LSE, and a capped one is a difference of numbers up to twice as large, one of them by an approximate reciprocal.
double score_noise(double lse);
// Empty if ours is as near to the reference as verify asks, or what is not. lse is looked at if ours has any.
std::string judge(const Output& ours, const Expected& expected, const Terms& terms);

// Empty if the outputs in the images are right: every valid element written, every other byte untouched, rows without
// keys exactly 0 and -inf, and both errors (RMS and maximum) of O and of LSE at most
//
//     1.25 * (error of plain_forward) + floor
//
// with u the dtype's unit roundoff (2^-8 bf16, 2^-11 fp16) and n the number of roundings that the error is made of. All
// elements of a row share those of its weights w, which count as much as w^2 does, so n = (sum of w^2)^2 / sum of w^4,
// over all rows; at most a quarter of the number of elements:
//   O    rms: u * rms(O) * (0.025 + 1/sqrt(n))   max: 2 u * max|O|
//   LSE  rms: t * 2^-23 * (1 + rms(LSE))         max: 2 t * 2^-23 * (1 + max|LSE|), t = max(8, head_dim / 16)
// The floors of O allow for luck in a few elements: what the roundings of P and of O can each do to the largest element
// (u each; the plain code's P, exactly 1 at the row maximum, is spared the first), and the scatter of two RMS over n,
// this one and that of the plain code. (A quarter of the elements alone for n would refuse right results. Simulated
// with P that is not relative to the row maximum, in problems of 2 rows and 103 keys: 0.5% of them with scores of
// N(0,1), 20% with scores four times as large; with this n none of 8000.) Those of LSE allow for the hardware's exp2
// and log2 (2 ulp each), and for the tensor cores, which truncate their sum of products once in 16 elements, always
// towards zero: about an ulp of a large score each time. Where scores are transformed, score_noise of the RMS of LSE
// comes on top for O, in the maximum twice that of the largest LSE; where they are capped, as LSE then may be small
// beside what was summed up for a score, so does t * 2^-23 of the RMS of Output::partial, in the maximum 2 t * 2^-23 of
// the largest, for LSE as it is, for O times its size. (An H200, scores of sd 100 capped at 1, a row of one key: LSE's
// error 2.5e-5.)
//
// For e4m3, u is the larger one of the roundoffs of P (2^-4) and of o; 2 u, of the largest error, is their sum; and n
// is the number of rows that see a key, as P's rounding moves all columns of a row alike. Besides,
//   - s = 2^-12 times a row's largest partial sum (Output::partial) comes on top, 2 s in the maximum: for LSE as it is,
//     for O times its size. The plain code truncates as the tensor cores do, but not to the bit;
//   - where many weights are equal (patterns constant and sink), so are their roundings, and do not average: u of P.
std::string verify(const Case& made, const Expected& expected);

// The ratios of the last line of a report: our errors over the plain code's.
struct Ratios {
  double o_rms, o_max, lse_rms, lse_max;
};
Ratios ratios(const Case& made, const Expected& expected);

}  // namespace fa3::test
