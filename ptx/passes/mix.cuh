// Incoherent processing of rows of x: random signs, then a Hadamard matrix over blocks of p.hadamard columns. The
// factor that makes it orthogonal, p.hadamard_scale, is left to whatever multiplies the numbers next.
#pragma once
#include "../isa/matrix.cuh"
#include "pieces.cuh"

namespace fa3 {

// Bits 15 and 31 of word w: columns 2 w and 2 w + 1 change their signs. So they lie in x, too.
struct Signs {
  alignas(16) uint32_t words[d / 2];

  FA3_DEVICE const uint4& of(int column) const { return *reinterpret_cast<const uint4*>(words + column / 2); }
};

// The signs of fa3.h, from the seed. To be read after a barrier.
FA3_DEVICE void make_signs(const QuantizeParams& p, Signs& signs) {
  if (threadIdx.x >= d) return;
  uint64_t z = p.seed + threadIdx.x + 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  const uint32_t own = z >> 63, next = __shfl_down_sync(0xffffffffu, own, 1);
  if (threadIdx.x % 2 == 0) signs.words[threadIdx.x / 2] = own << 15 | next << 31;
}

// Of a piece: as it lies in memory, or as float32.
FA3_DEVICE void change_signs(const uint4& signs, uint4& packed) {
  packed.x ^= signs.x, packed.y ^= signs.y, packed.z ^= signs.z, packed.w ^= signs.w;
}
FA3_DEVICE void change_signs(const uint4& signs, float* x) {
  const uint32_t words[4] = {signs.x, signs.y, signs.z, signs.w};
#pragma unroll
  for (int k = 0; k < piece_columns; k++) {
    const uint32_t word = k % 2 ? words[k / 2] : words[k / 2] << 16;
    x[k] = __uint_as_float(__float_as_uint(x[k]) ^ (word & 0x80000000u));
  }
}

// The Hadamard matrix of so many columns is, for each bit of the column's number, the sums and differences of the
// columns that differ in it. Bits 0 to 2 are within a piece, then come the lane's, then the piece's.
template <class S>
FA3_DEVICE void mix_pieces(int columns, float (&x)[S::columns]) {
#pragma unroll
  for (int bit = 1; bit < S::pieces; bit *= 2) {
    if (columns >= 16 * bit * S::lanes) {
#pragma unroll
      for (int k = 0; k < S::columns; k++)
        if (!(k & bit * piece_columns)) {
          const float a = x[k], b = x[k | bit * piece_columns];
          x[k] = a + b, x[k | bit * piece_columns] = a - b;
        }
    }
  }
}

// All bits. All lanes of a warp take part.
template <class S>
FA3_DEVICE void mix_blocks(int columns, float (&x)[S::columns]) {
#pragma unroll
  for (int first = 0; first < S::columns; first += piece_columns)
#pragma unroll
    for (int bit = 1; bit < piece_columns; bit *= 2)
#pragma unroll
      for (int k = first; k < first + piece_columns; k++)
        if (!(k & bit)) {
          const float a = x[k], b = x[k | bit];
          x[k] = a + b, x[k | bit] = a - b;
        }
#pragma unroll
  for (int bit = 1; bit < S::lanes; bit *= 2) {
    if (columns >= 16 * bit) {
      const float sign = S::lane() & bit ? -1.f : 1.f;
#pragma unroll
      for (int k = 0; k < S::columns; k++) x[k] = fmaf(sign, x[k], __shfl_xor_sync(0xffffffffu, x[k], bit));
    }
  }
  mix_pieces<S>(columns, x);
}

// As a rule the kernel's whole row is one block, and then nothing is asked on the way.
template <class S>
FA3_DEVICE void mix_columns(const QuantizeParams& p, float (&x)[S::columns]) {
  if (p.hadamard == d) mix_blocks<S>(d, x);
  else mix_blocks<S>(p.hadamard, x);
}

// The same on the tensor cores, for a row as it lies in memory: bits 0 to 4, that is, 32 columns at a time, are a
// product with a matrix of ones and minus ones. What is added is exact, and the sums are float32.
//
// A piece of each of four lanes makes 32 columns, of which lane q has 8 q + 4 g + 2 j + e, with bits g, j and e. One
// mma multiplies those of one g by the matrix's columns of one g and j. As columns 2 q + e and 2 q + 8 + e of A it
// takes from lane q what has j = 0 and j = 1: words of x as they are. As columns 2 q + e of D it returns what has the
// other g and j. A lane's two rows of A, and of D, are two pieces.
//
// Of B, lane l has rows 2 (l % 4) + e and 2 (l % 4) + 8 + e in column l / 4. Whether an element is negative for the
// bits of q and e, is said here; bits g and j turn it over if they are set on both sides.
constexpr bool is_negative(int lane, int e) {
  const int q = lane % 4, q_out = lane / 8, e_out = lane / 4 % 2, both = q & q_out;
  return (both ^ both / 2 ^ (e & e_out)) % 2;
}

static_assert([] {
  for (int in = 0; in < 32; in++)
    for (int out = 0; out < 32; out++) {
      const int lane = 4 * (out / 8 * 2 + out % 2) + in / 8, both = in & out;
      const bool negative = is_negative(lane, in % 2) ^ bool(both & 4) ^ bool(both & 2);
      bool expected = false;
      for (int bit = 1; bit < 32; bit *= 2) expected ^= bool(both & bit);
      if (negative != expected) return false;
    }
  return true;
}());

template <class S, bool bf16>
FA3_DEVICE void mix_bits_0_to_4(const uint4 (&packed)[S::pieces], float (&x)[S::columns]) {
  static_assert(S::lanes == 4 && S::pieces % 2 == 0);
  const int lane = threadIdx.x % 32;
  constexpr uint32_t one = bf16 ? 0x3f80 : 0x3c00, minus = 0x8000;
  const uint32_t low = one | (is_negative(lane, 0) ? minus : 0), high = one | (is_negative(lane, 1) ? minus : 0);
  const uint32_t b = low | high << 16, minus_b = b ^ (minus | minus << 16);
#pragma unroll
  for (int i = 0; i < S::pieces; i += 2) {
    const uint4 &p0 = packed[i], &p1 = packed[i + 1];
    const uint32_t a[2][4] = {{p0.x, p1.x, p0.y, p1.y}, {p0.z, p1.z, p0.w, p1.w}};  // of g
    float *const x0 = x + i * piece_columns, *const x1 = x0 + piece_columns;
#pragma unroll
    for (int k = 0; k < 2 * piece_columns; k++) x0[k] = 0.f;
#pragma unroll
    for (int g = 0; g < 2; g++)
#pragma unroll
      for (int k = 0; k < piece_columns; k += 2) {
        const bool g_negative = g & k / 4, j_negative = g_negative ^ k / 2 % 2;
        const uint32_t b0 = g_negative ? minus_b : b, b1 = j_negative ? minus_b : b;
        if constexpr (bf16) ptx::mma_m16n8k16_f32_bf16(x0[k], x0[k + 1], x1[k], x1[k + 1], a[g], b0, b1);
        else ptx::mma_m16n8k16_f32_f16(x0[k], x0[k + 1], x1[k], x1[k + 1], a[g], b0, b1);
      }
  }
}

// For blocks of 32 columns and more.
template <class S>
FA3_DEVICE void mix_packed(const QuantizeParams& p, const uint4 (&packed)[S::pieces], float (&x)[S::columns]) {
  if (p.bf16) mix_bits_0_to_4<S, true>(packed, x);
  else mix_bits_0_to_4<S, false>(packed, x);
  if (p.hadamard == d) mix_pieces<S>(d, x);
  else mix_pieces<S>(p.hadamard, x);
}

}  // namespace fa3
