// fa3_quantize, the pass that writes y: a thread block takes 64 rows, of one head or of several.
//
// The pass that writes y: blocks of 64 rows in registers, from x to scales, e4m3 and offsets of the LSE.
#include "../isa/grid.cuh"
#include "transform.cuh"
#include "v_columns.cuh"

namespace fa3 {

inline constexpr float e4m3_max = 448.f, least_scale = 0x1p-126f;

// A block's 64 rows. A row is four lanes', as mix_packed wants it, and a thread may have two rows. With rotary
// embedding, whose angles belong to a row and take registers, it has one.
using Wide = Share<has(Trait::rotates) ? rows_of_scale * d / piece_columns / config.threads() : d / 4 / piece_columns>;
inline constexpr int rows_of_thread = rows_of_scale / Wide::rows;
static_assert(rows_of_thread * Wide::rows == rows_of_scale && (rows_of_thread == 1 || !has(Trait::rotates)));

struct QuantizeShared {
  // Rows of a block as bytes; the gap keeps the rows that a warp writes at once in different banks.
  static constexpr int row_bytes = d + piece_columns * Wide::lanes;
  alignas(16) uint8_t block[rows_of_scale][row_bytes];
  float mean[d], k_mean[d];
  Signs signs;
  float largest[warps];
};
static_assert(sizeof(QuantizeShared) <= config.smem_bytes());

FA3_DEVICE QuantizeShared& quantize_shared() { return *reinterpret_cast<QuantizeShared*>(shared_memory()); }

// What becomes 448 in y: the largest element, but for zeros alone, and for numbers that would make the scale subnormal.
FA3_DEVICE float range_of(float largest) {
  return largest == 0.f ? e4m3_max : fmaxf(largest, e4m3_max * least_scale);
}
FA3_DEVICE float scale_of(float range) { return range / e4m3_max; }

// head_dim floats into shared memory, zeros behind them. To be read after a barrier.
FA3_DEVICE void stage_columns(const float* from, int head_dim, float (&to)[d]) {
  if (threadIdx.x < d) to[threadIdx.x] = int(threadIdx.x) < head_dim ? __ldcg(from + threadIdx.x) : 0.f;
}
FA3_DEVICE const float* k_mean_of(const QuantizeParams& p, const Head& head) {
  return p.k_mean + head.batch * p.k_mean_stride_batch + head.head / p.heads_per_kv * p.k_mean_stride_head;
}

// This thread's share of the numbers from which a range of more than 64 rows follows.
FA3_DEVICE float measured_largest(const QuantizeParams& p, int head_number) {
  float largest = 0.f;
  for (int i = threadIdx.x; i < p.largest_count; i += config.threads())
    largest = fmaxf(largest, __ldcg(p.largest + (head_number * p.largest_of_head + i)));
  return largest;
}

// A block's 64 rows, of one head after the other.
class Block {
 public:
  FA3_DEVICE Block(const QuantizeParams& p, int number)
      : p_(p), number_(number), rotation_(p, row(0), is_valid(0)) {}

  FA3_DEVICE void load(const Head& head) {
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++) fa3::load<Wide, true>(p_, row_of(head, r), is_valid(r), packed_[r]);
  }

  // What was loaded last becomes float32, so that other rows can be loaded.
  FA3_DEVICE void unpack(const QuantizeShared& shared, const Head& head) {
    if constexpr (!has(Trait::rotates)) {
      if (mixes_packed()) {
#pragma unroll
        for (int r = 0; r < rows_of_thread; r++) {
#pragma unroll
          for (int i = 0; i < Wide::pieces; i++) change_signs(shared.signs.of(Wide::column(i)), packed_[r][i]);
          mix_packed<Wide>(p_, packed_[r], x_[r]);
        }
        return;
      }
    }
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++)
      unpack_row<Wide>(p_, rotation_, shared.signs, p_.hadamard, row_of(head, r), packed_[r], x_[r]);
  }

  // What unpack() has not mixed: rotated rows, and blocks of 16 columns.
  FA3_DEVICE void mix() {
    if (mixes_packed()) return;
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++) {
      if constexpr (has(Trait::rotates)) mix_columns<Wide>(p_, x_[r]);
      else mix_blocks<Wide>(16, x_[r]);
    }
  }

  FA3_DEVICE void write_lse_offset(const QuantizeShared& shared, const Head& head) const {
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++) {
      float sum = dot(x_[r], shared.k_mean);
#pragma unroll
      for (int bit = 1; bit < Wide::lanes; bit *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
      if (Wide::lane() == 0 && is_valid(r))
        p_.lse_offset[head.batch * p_.lse_stride_batch + head.head * p_.lse_stride_head +
                      row(r) * p_.lse_stride_row] = p_.softmax_scale * p_.hadamard_scale * sum;
    }
  }

  // Rows beyond the last stay zeros.
  FA3_DEVICE void subtract_mean(const QuantizeShared& shared) {
    const float factor = p_.hadamard_scale;
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++) {
      if (!is_valid(r)) continue;
#pragma unroll
      for (int i = 0; i < Wide::pieces; i++)
#pragma unroll
        for (int k = 0; k < 8; k += 4) {
          const float4 mean = *reinterpret_cast<const float4*>(&shared.mean[Wide::column(i) + k]);
          float* const x = x_[r] + i * piece_columns + k;
          x[0] = fmaf(x[0], factor, -mean.x), x[1] = fmaf(x[1], factor, -mean.y);
          x[2] = fmaf(x[2], factor, -mean.z), x[3] = fmaf(x[3], factor, -mean.w);
        }
    }
  }

  // To be asked before write().
  FA3_DEVICE float largest() {
    float largest = 0.f, finite = 0.f;
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++) largest = fmaxf(largest, largest_of(x_[r]));
    infinite_ = largest == INFINITY;
    if (!infinite_) return factor() * largest;
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++) finite = fmaxf(finite, largest_finite_of(x_[r]));
    return factor() * finite;
  }

  FA3_DEVICE void write_scale(float range, const Head& head) const {
    const bool is_first = p_.scales == QuantizeParams::Granularity::block || number_ == 0;
    if (threadIdx.x == 0 && is_first)
      p_.scale[head.batch * p_.scale_stride_batch + head.head * p_.scale_stride_head +
               number_ * p_.scale_stride_block] = scale_of(range);
  }

  // x * 448 / range as e4m3.
  FA3_DEVICE void write(QuantizeShared& shared, const Head& head, float range) {
    uint2 bytes[rows_of_thread][Wide::pieces];
    if (p_.hadamard) {
      // Sums that were rounded: in the middle between two numbers of e4m3 they are only by chance.
      const float inverse = factor() * e4m3_max / range;
      round([&](float x) { return x * inverse; }, bytes);
    } else {
      // The quotient is that of 7/8 x and range / 512, both exact, and is corrected by what its product leaves: so
      // numbers in the middle are seen as such, and rounded to even.
      if (infinite_) replace_infinities(range);
      const float divisor = range * 0x1p-9f, inverse = 1.f / divisor;
      const auto quotient = [&](float x) {
        const float dividend = 0.875f * x, first = dividend * inverse;
        return fmaf(fmaf(-first, divisor, dividend), inverse, first);
      };
      round(quotient, bytes);
    }
    uint8_t* const y = p_.y + head.batch * p_.y_stride_batch + head.head * p_.y_stride_head;
    if (p_.tiles) return write_tiles(shared, bytes, y);
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++)
      write_row(bytes[r], y + row(r) * p_.y_stride_row, is_valid(r) ? p_.head_dim : 0);
  }

 private:
  // By which x_ is still to be multiplied, when the mean is taken off.
  FA3_DEVICE float factor() const { return p_.mean ? 1.f : p_.hadamard_scale; }
  FA3_DEVICE bool mixes_packed() const { return !has(Trait::rotates) && p_.hadamard >= 32; }
  // Of the thread's rows.
  FA3_DEVICE int row(int r) const { return number_ * rows_of_scale + Wide::row() + r * Wide::rows; }
  FA3_DEVICE bool is_valid(int r) const { return row(r) < p_.rows; }
  FA3_DEVICE const uint16_t* row_of(const Head& head, int r) const { return head.x + row(r) * p_.x_stride_row; }

  template <class Quotient>
  FA3_DEVICE void round(Quotient quotient, uint2 (&bytes)[rows_of_thread][Wide::pieces]) const {
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++)
#pragma unroll
      for (int i = 0; i < Wide::pieces; i++) {
        const float* const x = x_[r] + i * piece_columns;
        const auto four = [&](int k) {
          const uint32_t low = ptx::cvt_rn_satfinite_e4m3x2_f32(quotient(x[k + 1]), quotient(x[k]));
          const uint32_t high = ptx::cvt_rn_satfinite_e4m3x2_f32(quotient(x[k + 3]), quotient(x[k + 2]));
          return low | high << 16;
        };
        bytes[r][i] = make_uint2(four(0), four(4));
      }
  }

  FA3_DEVICE void replace_infinities(float by) {
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++)
#pragma unroll
      for (int k = 0; k < Wide::columns; k++)
        if (fabsf(x_[r][k]) == INFINITY) x_[r][k] = copysignf(by, x_[r][k]);
  }

  FA3_DEVICE static float dot(const float (&row)[Wide::columns], const float (&with)[d]) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < Wide::pieces; i++)
#pragma unroll
      for (int k = 0; k < 8; k += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&with[Wide::column(i) + k]);
        const float* const x = row + i * piece_columns + k;
        sum = fmaf(x[0], four.x, fmaf(x[1], four.y, fmaf(x[2], four.z, fmaf(x[3], four.w, sum))));
      }
    return sum;
  }

  // Two neighbouring lanes have two neighbouring pieces, twice: they exchange, so that each writes 16 bytes, and both
  // together a sector.
  FA3_DEVICE static void write_row(const uint2 (&bytes)[Wide::pieces], uint8_t* y, int columns) {
    const bool odd = Wide::lane() % 2;
#pragma unroll
    for (int i = 0; i < Wide::pieces; i += 2) {
      const uint2 kept = odd ? bytes[i + 1] : bytes[i], sent = odd ? bytes[i] : bytes[i + 1];
      const uint2 got = make_uint2(__shfl_xor_sync(0xffffffffu, sent.x, 1), __shfl_xor_sync(0xffffffffu, sent.y, 1));
      const int column = odd ? Wide::column(i + 1) - piece_columns : Wide::column(i);
      const uint4 both = odd ? make_uint4(got.x, got.y, kept.x, kept.y) : make_uint4(kept.x, kept.y, got.x, got.y);
      if (column < columns) __stcs(reinterpret_cast<uint4*>(y + column), both);
    }
  }

  // Through shared memory: a thread collects two columns of 16 rows, which are two rows of a tile.
  FA3_DEVICE void write_tiles(QuantizeShared& shared, const uint2 (&bytes)[rows_of_thread][Wide::pieces],
                              uint8_t* y) const {
#pragma unroll
    for (int r = 0; r < rows_of_thread; r++)
#pragma unroll
      for (int i = 0; i < Wide::pieces; i++)
        *reinterpret_cast<uint2*>(&shared.block[Wide::row() + r * Wide::rows][Wide::column(i)]) = bytes[r][i];
    sync_block();
#pragma unroll
    for (int at = threadIdx.x; at < rows_of_scale / v_tile_keys * d / 2; at += config.threads())
      write_two_columns(shared, at / (d / 2), at % (d / 2) * 2, y);
  }

  FA3_DEVICE void write_two_columns(const QuantizeShared& shared, int tile, int column, uint8_t* y) const {
    const int first = number_ * rows_of_scale + tile * v_tile_keys;
    if (first >= p_.rows || column >= p_.head_dim) return;
    const auto key_pair = [&](int key) -> uint32_t {
      return *reinterpret_cast<const uint16_t*>(&shared.block[tile * v_tile_keys + key][column]);
    };
    uint4 rows[2];
    gather_columns(key_pair, rows);
    uint8_t* const to = y + first / v_tile_keys * p_.y_stride_row;
#pragma unroll
    for (int c = 0; c < 2; c++)
      __stcs(reinterpret_cast<uint4*>(to + v_tile_row(column + c) * v_tile_keys), rows[c]);
  }

  const QuantizeParams& p_;
  const int number_;
  const Rotation<Wide> rotation_;
  uint4 packed_[rows_of_thread][Wide::pieces];
  float x_[rows_of_thread][Wide::columns];
  bool infinite_ = false;
};

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  constexpr int heads_at_once = written_heads(config);
  QuantizeShared& shared = quantize_shared();
  // Heads first: theirs are neighbours in memory.
  const int behind = blockIdx.x / p.groups, group = blockIdx.x - behind * p.groups;
  int number = group * heads_at_once;
  const int end = min(number + heads_at_once, p.batch * p.heads);
  Block block(p, p.blocks - 1 - behind);
  Head head = head_at(p, number);
  block.load(head);
  if (p.hadamard) make_signs(p, shared.signs);
  ptx::griddepcontrol_wait();  // what was measured is read from here on; x is on its way
  for (;;) {
    if (p.k_mean) stage_columns(k_mean_of(p, head), p.head_dim, shared.k_mean);
    if (p.mean) stage_columns(p.means + int64_t(number) * p.head_dim, p.head_dim, shared.mean);
    const bool scales_blocks = p.scales == QuantizeParams::Granularity::block;
    if (!scales_blocks) put_largest(shared.largest, measured_largest(p, number));
    if (p.hadamard || p.k_mean || p.mean) sync_block();
    block.unpack(shared, head);
    const bool is_last = heads_at_once == 1 || number + 1 == end;
    // While this head is worked on, the next one comes.
    const Head next = is_last ? head : head_at(p, number + 1);
    if (!is_last) block.load(next);
    if (p.hadamard) block.mix();
    if (p.k_mean) block.write_lse_offset(shared, head);
    if (p.mean) block.subtract_mean(shared);
    const float largest = block.largest();
    if (scales_blocks) put_largest(shared.largest, largest);
    sync_block();
    const float range = range_of(take_largest(shared.largest));
    block.write_scale(range, head);
    block.write(shared, head, range);
    if (is_last) break;
    head = next, number++;
    sync_block();
  }
}
