// Rows of x on their way to e4m3, for the passes of fa3_quantize: loads, rotary embedding, incoherent processing,
// scales and stores. A thread has pieces of eight columns of a row, 16 bytes of x each, as float32.
#pragma once
#include "../isa/barrier.cuh"
#include "../isa/math.cuh"
#include "config.cuh"
#include "shared.cuh"

namespace fa3 {

inline constexpr int piece_columns = 8, warps = config.threads() / 32;
inline constexpr float e4m3_max = 448.f, least_scale = 0x1p-126f;

// `pieces` pieces of a row are a thread's, and `lanes` neighbouring lanes have the row. Their pieces alternate, so that
// a warp's loads of 16 bytes a lane fall on whole sectors.
template <int pieces_>
struct Share {
  static constexpr int pieces = pieces_, lanes = d / piece_columns / pieces, rows = config.threads() / lanes;
  static_assert(lanes >= 2 && lanes <= 32);

  FA3_DEVICE static int lane() { return threadIdx.x % lanes; }
  FA3_DEVICE static int row() { return threadIdx.x / lanes; }
  FA3_DEVICE static int column(int piece) { return piece_columns * (piece * lanes + lane()); }
};
using Narrow = Share<1>;  // measures many rows: 16 at a time
using Wide = Share<rows_of_scale * d / piece_columns / config.threads()>;  // writes a block: its 64 rows at once
static_assert(Wide::rows == rows_of_scale);

struct QuantizeShared {
  // Rows of a block as bytes; the gap keeps the rows that a warp writes at once in different banks.
  static constexpr int row_bytes = d + d / 4;
  union {
    uint8_t block[rows_of_scale][row_bytes];
    float columns[warps][d];
  };
  float mean[d], k_mean[d];
  uint32_t signs[d / 32];  // bit i of word w: column 32 w + i changes its sign
  float largest[warps];
  int32_t number;  // of the item
  bool last;       // did this thread block arrive last?
};
static_assert(sizeof(QuantizeShared) <= config.smem_bytes());

FA3_DEVICE QuantizeShared& quantize_shared() { return *reinterpret_cast<QuantizeShared*>(shared_memory()); }

FA3_DEVICE void sync_block() { ptx::bar_sync(0, config.threads()); }

struct Head {
  int32_t batch, head;
  const uint16_t* x;
};

FA3_DEVICE Head head_at(const QuantizeParams& p, int number) {
  const int batch = number / p.heads, head = number - batch * p.heads;
  return {batch, head, p.x + batch * p.x_stride_batch + head * p.x_stride_head};
}

// Two elements of x as they lie in memory; and eight.
FA3_DEVICE void unpack(const QuantizeParams& p, uint32_t packed, float* x) {
  x[0] = p.bf16 ? __uint_as_float(packed << 16) : ptx::cvt_f32_f16(packed & 0xffff);
  x[1] = p.bf16 ? __uint_as_float(packed & 0xffff0000) : ptx::cvt_f32_f16(packed >> 16);
}
FA3_DEVICE void unpack(const QuantizeParams& p, const uint4& packed, float* x) {
  unpack(p, packed.x, x), unpack(p, packed.y, x + 2), unpack(p, packed.z, x + 4), unpack(p, packed.w, x + 6);
}

// A row's pieces, or zeros where there is nothing. `last`: nobody will read them again.
template <class S, bool last>
FA3_DEVICE void load(const QuantizeParams& p, const uint16_t* row, bool valid, uint4 (&packed)[S::pieces]) {
#pragma unroll
  for (int i = 0; i < S::pieces; i++) {
    packed[i] = make_uint4(0, 0, 0, 0);
    if (!valid || S::column(i) >= p.head_dim) continue;
    const auto* const from = reinterpret_cast<const uint4*>(row + S::column(i));
    packed[i] = last ? __ldcs(from) : *from;
  }
}

// Rotary embedding of a piece, four columns at a time, for want of registers: each column times its cosine, plus its
// partner times its sine. A partner in the other half of the columns is read from x again: from the L1 cache, as a
// rule.
FA3_DEVICE void rotate(const QuantizeParams& p, const uint16_t* row, int position, int first, float* x) {
#pragma unroll
  for (int k = 0; k < piece_columns; k += 4) {
    const int column = first + k;
    float partner[4];
    float4 cosine, sine;
    if (p.interleaved) {
      partner[0] = x[k + 1], partner[1] = x[k], partner[2] = x[k + 3], partner[3] = x[k + 2];
      const float* const c = p.rotary_cos + position * p.cos_stride + column / 2;
      const float* const s = p.rotary_sin + position * p.sin_stride + column / 2;
      cosine = make_float4(c[0], c[0], c[1], c[1]), sine = make_float4(-s[0], s[0], -s[1], s[1]);
    } else {
      const int half = p.rotary_dim / 2;
      const bool second = column >= half;
      const int at = second ? column - half : column;
      const uint2 packed = *reinterpret_cast<const uint2*>(row + (second ? at : column + half));
      unpack(p, packed.x, partner), unpack(p, packed.y, partner + 2);
      cosine = *reinterpret_cast<const float4*>(p.rotary_cos + (position * p.cos_stride + at));
      sine = *reinterpret_cast<const float4*>(p.rotary_sin + (position * p.sin_stride + at));
      const float sign = second ? 1.f : -1.f;
#pragma unroll
      for (int j = 0; j < 4; j++) partner[j] *= sign;
    }
    x[k] = x[k] * cosine.x + partner[0] * sine.x;
    x[k + 1] = x[k + 1] * cosine.y + partner[1] * sine.y;
    x[k + 2] = x[k + 2] * cosine.z + partner[2] * sine.z;
    x[k + 3] = x[k + 3] * cosine.w + partner[3] * sine.w;
  }
}

// A row's pieces as float32, with rotary embedding. `position`: the row's number.
template <class S>
FA3_DEVICE void unpack_row(const QuantizeParams& p, const uint16_t* row, int position, bool valid,
                           const uint4 (&packed)[S::pieces], float (&x)[S::pieces * piece_columns]) {
#pragma unroll
  for (int i = 0; i < S::pieces; i++) {
    unpack(p, packed[i], x + i * piece_columns);
    if (has(Trait::rotates) && valid && S::column(i) < p.rotary_dim)
      rotate(p, row, position, S::column(i), x + i * piece_columns);
  }
}

// The signs of fa3.h, from the seed. To be read after a barrier.
FA3_DEVICE void make_signs(const QuantizeParams& p, QuantizeShared& shared) {
  if (threadIdx.x >= d) return;
  uint64_t z = p.seed + threadIdx.x + 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  const uint32_t word = __ballot_sync(0xffffffffu, z >> 63);
  if (threadIdx.x % 32 == 0) shared.signs[threadIdx.x / 32] = word;
}

// Random signs, then a Hadamard matrix over blocks of p.hadamard columns: for each bit of the column's number the sums
// and differences of the columns that differ in it. Bits 0 to 2 are within a piece, then come the lane's, then the
// piece's. All lanes of a warp take part.
template <class S>
FA3_DEVICE void mix_columns(const QuantizeParams& p, const QuantizeShared& shared,
                            float (&x)[S::pieces * piece_columns]) {
#pragma unroll
  for (int i = 0; i < S::pieces; i++) {
    const int column = S::column(i);
    const uint32_t signs = shared.signs[column / 32] >> column % 32;
    float* const own = x + i * piece_columns;
#pragma unroll
    for (int k = 0; k < 8; k++)
      own[k] = __uint_as_float(__float_as_uint(own[k]) ^ (signs << (31 - k) & 0x80000000u)) * p.hadamard_scale;
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2)
#pragma unroll
      for (int k = 0; k < 8; k++)
        if (!(k & bit)) {
          const float a = own[k], b = own[k | bit];
          own[k] = a + b, own[k | bit] = a - b;
        }
  }
#pragma unroll
  for (int bit = 1; bit < S::lanes; bit *= 2) {
    if (p.hadamard < 16 * bit) return;
    const float sign = S::lane() & bit ? -1.f : 1.f;
#pragma unroll
    for (int k = 0; k < S::pieces * piece_columns; k++)
      x[k] = fmaf(sign, x[k], __shfl_xor_sync(0xffffffffu, x[k], bit));
  }
#pragma unroll
  for (int bit = 1; bit < S::pieces; bit *= 2) {
    if (p.hadamard < 16 * bit * S::lanes) return;
#pragma unroll
    for (int i = 0; i < S::pieces; i++)
#pragma unroll
      for (int k = 0; k < 8; k++)
        if (!(i & bit)) {
          float &low = x[i * 8 + k], &high = x[(i | bit) * 8 + k];
          const float a = low, b = high;
          low = a + b, high = a - b;
        }
  }
}

// The largest |x| that is finite.
template <int n>
FA3_DEVICE float largest_of(const float (&x)[n]) {
  float largest = 0.f;
#pragma unroll
  for (int k = 0; k < n; k++) largest = fmaxf(largest, fabsf(x[k]));  // NaN is no number to fmaxf
  if (largest == INFINITY) {
    largest = 0.f;
#pragma unroll
    for (int k = 0; k < n; k++) largest = fmaxf(largest, fabsf(x[k]) < INFINITY ? fabsf(x[k]) : 0.f);
  }
  return largest;
}

// The largest of all threads' numbers, which are not negative: as bits they have the same order.
FA3_DEVICE float largest_of_block(QuantizeShared& shared, float largest) {
  const uint32_t of_warp = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
  if (threadIdx.x % 32 == 0) shared.largest[threadIdx.x / 32] = __uint_as_float(of_warp);
  sync_block();
  largest = shared.largest[0];
#pragma unroll
  for (int w = 1; w < warps; w++) largest = fmaxf(largest, shared.largest[w]);
  return largest;
}

// What becomes 448 in y: the largest element, but for zeros alone, and for numbers that would make the scale subnormal.
FA3_DEVICE float range_of(float largest) {
  return largest == 0.f ? e4m3_max : fmaxf(largest, e4m3_max * least_scale);
}
FA3_DEVICE float scale_of(float range) { return range / e4m3_max; }

// head_dim floats into shared memory, zeros behind them. To be read after a barrier.
FA3_DEVICE void stage_columns(const float* from, int head_dim, float (&to)[d]) {
  if (threadIdx.x < d) to[threadIdx.x] = int(threadIdx.x) < head_dim ? __ldcg(from + threadIdx.x) : 0.f;
}
FA3_DEVICE void stage_k_mean(const QuantizeParams& p, const Head& head, QuantizeShared& shared) {
  stage_columns(p.k_mean + head.batch * p.k_mean_stride_batch + head.head / p.heads_per_kv * p.k_mean_stride_head,
                p.head_dim, shared.k_mean);
}

// A block's 64 rows, one of them this thread's.
class Block {
 public:
  FA3_DEVICE Block(const QuantizeParams& p, const Head& head, int number)
      : p_(p), head_(head), number_(number), row_(number * rows_of_scale + Wide::row()), valid_(row_ < p.rows),
        packed_{} {
    load<Wide, true>(p, head.x + row_ * p.x_stride_row, valid_, packed_);
  }

  FA3_DEVICE void transform(const QuantizeShared& shared) {
    unpack_row<Wide>(p_, head_.x + row_ * p_.x_stride_row, row_, valid_, packed_, x_);
    if (p_.hadamard) mix_columns<Wide>(p_, shared, x_);
  }

  FA3_DEVICE void write_lse_offset(const QuantizeShared& shared) const {
    float sum = dot(shared.k_mean);
#pragma unroll
    for (int bit = 1; bit < Wide::lanes; bit *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
    if (Wide::lane() == 0 && valid_)
      p_.lse_offset[head_.batch * p_.lse_stride_batch + head_.head * p_.lse_stride_head + row_ * p_.lse_stride_row] =
          p_.softmax_scale * sum;
  }

  // Rows beyond the last stay zeros.
  FA3_DEVICE void subtract_mean(const QuantizeShared& shared) {
    if (!valid_) return;
#pragma unroll
    for (int i = 0; i < Wide::pieces; i++)
#pragma unroll
      for (int k = 0; k < 8; k += 4) {
        const float4 mean = *reinterpret_cast<const float4*>(&shared.mean[Wide::column(i) + k]);
        float* const x = x_ + i * piece_columns + k;
        x[0] -= mean.x, x[1] -= mean.y, x[2] -= mean.z, x[3] -= mean.w;
      }
  }

  FA3_DEVICE float largest() const { return largest_of(x_); }

  FA3_DEVICE void write_scale(float range) const {
    if (threadIdx.x == 0)
      p_.scale[head_.batch * p_.scale_stride_batch + head_.head * p_.scale_stride_head +
               number_ * p_.scale_stride_block] = scale_of(range);
  }

  // x * 448 / range as e4m3. The quotient is that of 7/8 x and range / 512, both exact, and is corrected by what its
  // product leaves: so numbers in the middle between two of e4m3 are seen as such, and rounded to even.
  FA3_DEVICE void write(QuantizeShared& shared, float range) {
    if (has_infinity()) replace_infinities(range);
    const float divisor = range * 0x1p-9f, inverse = 1.f / divisor;
    const auto quotient = [&](float x) {
      const float dividend = 0.875f * x, first = dividend * inverse;
      return fmaf(fmaf(-first, divisor, dividend), inverse, first);
    };
    uint2 bytes[Wide::pieces];
#pragma unroll
    for (int i = 0; i < Wide::pieces; i++) {
      const float* const x = x_ + i * piece_columns;
      const auto four = [&](int k) {
        const uint32_t low = ptx::cvt_rn_satfinite_e4m3x2_f32(quotient(x[k + 1]), quotient(x[k]));
        const uint32_t high = ptx::cvt_rn_satfinite_e4m3x2_f32(quotient(x[k + 3]), quotient(x[k + 2]));
        return low | high << 16;
      };
      bytes[i] = make_uint2(four(0), four(4));
    }
    uint8_t* const y = p_.y + head_.batch * p_.y_stride_batch + head_.head * p_.y_stride_head;
    if (p_.tiles) write_tiles(shared, bytes, y);
    else write_row(bytes, y + row_ * p_.y_stride_row);
  }

 private:
  FA3_DEVICE bool has_infinity() const {
    float largest = 0.f;
#pragma unroll
    for (int k = 0; k < Wide::pieces * piece_columns; k++) largest = fmaxf(largest, fabsf(x_[k]));
    return largest == INFINITY;
  }
  FA3_DEVICE void replace_infinities(float by) {
#pragma unroll
    for (int k = 0; k < Wide::pieces * piece_columns; k++)
      if (fabsf(x_[k]) == INFINITY) x_[k] = copysignf(by, x_[k]);
  }

  FA3_DEVICE float dot(const float (&with)[d]) const {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < Wide::pieces; i++)
#pragma unroll
      for (int k = 0; k < 8; k += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&with[Wide::column(i) + k]);
        const float* const x = x_ + i * piece_columns + k;
        sum = fmaf(x[0], four.x, fmaf(x[1], four.y, fmaf(x[2], four.z, fmaf(x[3], four.w, sum))));
      }
    return sum;
  }

  // Two neighbouring lanes have two neighbouring pieces, twice: they exchange, so that each writes 16 bytes, and both
  // together a sector.
  FA3_DEVICE void write_row(const uint2 (&bytes)[Wide::pieces], uint8_t* y) const {
    const bool odd = Wide::lane() % 2;
#pragma unroll
    for (int i = 0; i < Wide::pieces; i += 2) {
      const uint2 kept = odd ? bytes[i + 1] : bytes[i], sent = odd ? bytes[i] : bytes[i + 1];
      const uint2 got = make_uint2(__shfl_xor_sync(0xffffffffu, sent.x, 1), __shfl_xor_sync(0xffffffffu, sent.y, 1));
      const int column = odd ? Wide::column(i + 1) - piece_columns : Wide::column(i);
      const uint4 both = odd ? make_uint4(got.x, got.y, kept.x, kept.y) : make_uint4(kept.x, kept.y, got.x, got.y);
      if (valid_ && column < p_.head_dim) __stcs(reinterpret_cast<uint4*>(y + column), both);
    }
  }

  // Through shared memory: a thread collects two columns of 16 rows, which are two rows of a tile.
  FA3_DEVICE void write_tiles(QuantizeShared& shared, const uint2 (&bytes)[Wide::pieces], uint8_t* y) const {
#pragma unroll
    for (int i = 0; i < Wide::pieces; i++)
      *reinterpret_cast<uint2*>(&shared.block[Wide::row()][Wide::column(i)]) = bytes[i];
    sync_block();
#pragma unroll
    for (int at = threadIdx.x; at < rows_of_scale / v_tile_keys * d / 2; at += config.threads())
      write_two_columns(shared, at / (d / 2), at % (d / 2) * 2, y);
  }

  FA3_DEVICE void write_two_columns(const QuantizeShared& shared, int tile, int column, uint8_t* y) const {
    const int first = number_ * rows_of_scale + tile * v_tile_keys;
    if (first >= p_.rows || column >= p_.head_dim) return;
    uint32_t rows[2][4];  // of the tile, in words
#pragma unroll
    for (int q = 0; q < 4; q++) {
      uint32_t keys[4];  // of byte e of the word, in this column and the next
#pragma unroll
      for (int e = 0; e < 4; e++)
        keys[e] = *reinterpret_cast<const uint16_t*>(&shared.block[tile * v_tile_keys + v_tile_key(4 * q + e)][column]);
      const uint32_t low = keys[0] | keys[1] << 16, high = keys[2] | keys[3] << 16;
      rows[0][q] = __byte_perm(low, high, 0x6420);
      rows[1][q] = __byte_perm(low, high, 0x7531);
    }
    uint8_t* const to = y + first / v_tile_keys * p_.y_stride_row;
#pragma unroll
    for (int c = 0; c < 2; c++)
      __stcs(reinterpret_cast<uint4*>(to + v_tile_row(column + c) * v_tile_keys),
             make_uint4(rows[c][0], rows[c][1], rows[c][2], rows[c][3]));
  }

  const QuantizeParams& p_;
  const Head head_;
  const int number_, row_;
  const bool valid_;
    uint4 packed_[Wide::pieces];
  float x_[Wide::pieces * piece_columns];
};

}  // namespace fa3
