// Incoherent processing of rows of x: random signs, then a Hadamard matrix over blocks of p.hadamard columns. The
// factor that makes it orthogonal, p.hadamard_scale, is left to whatever multiplies the numbers next.
#pragma once
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
FA3_DEVICE void change_signs(const uint4& signs, uint32_t* packed) {
  packed[0] ^= signs.x, packed[1] ^= signs.y, packed[2] ^= signs.z, packed[3] ^= signs.w;
}
FA3_DEVICE void change_signs(const uint4& signs, float* x) {
  const uint32_t words[4] = {signs.x, signs.y, signs.z, signs.w};
#pragma unroll
  for (int k = 0; k < piece_columns; k++) {
    const uint32_t word = k % 2 ? words[k / 2] : words[k / 2] << 16;
    x[k] = __uint_as_float(__float_as_uint(x[k]) ^ (word & 0x80000000u));
  }
}

// The Hadamard matrix of so many columns: for each bit of the column's number the sums and differences of the columns
// that differ in it. Bits 0 to 2 are within a piece, then come the lane's, then the piece's. All lanes of a warp take
// part.
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

// As a rule the kernel's whole row is one block, and then nothing is asked on the way.
template <class S>
FA3_DEVICE void mix_columns(const QuantizeParams& p, float (&x)[S::columns]) {
  if (p.hadamard == d) mix_blocks<S>(d, x);
  else mix_blocks<S>(p.hadamard, x);
}

}  // namespace fa3
