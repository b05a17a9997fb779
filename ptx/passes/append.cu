// fa3_append: each lane takes a quad of a new row. The row comes while the warp finds out where it goes.
//
// fa3_append: quads of new rows (append_params.h). What a lane reads of x does not depend on the caller's numbers in
// device memory, so it is sent for first. Where it goes takes up to four loads of such numbers, one after the other:
// of sequences, 32 at a time, of a length, and of a page.
#include "../params/append_params.h"
#include "../tile/config.cuh"
#include "../tile/unpack.cuh"

namespace fa3 {

// A new row's sequence, and its number there.
struct NewRow {
  int sequence;
  uint32_t number;
  bool valid;  // false: no sequence has it
};

// Of a packed row, by a warp whose lanes all ask for the same one: they look at 32 ends of sequences at a time, and
// count those that lie before it. Where prefix sums decrease, any sequence may be found, or none.
FA3_DEVICE NewRow find_sequence(const AppendParams& p, int row) {
  const int lane = threadIdx.x % 32;
  int sequence = 0, left = p.batch;  // it is this one or one of so many behind it
  int begin = __ldg(p.cu_seqlens);
  while (left > 0) {
    const int step = (left + 31) / 32, nth = (lane + 1) * step;
    const int end = nth <= left ? __ldg(p.cu_seqlens + sequence + nth) : INT32_MAX;
    const int before = __popc(__ballot_sync(0xffffffffu, end <= row));
    if (before > 0) begin = __shfl_sync(0xffffffffu, end, before - 1);
    sequence += before * step;
    left = min(left - before * step, step - 1);
  }
  return {sequence, uint32_t(row) - uint32_t(begin), sequence < p.batch && begin <= row};
}

FA3_DEVICE int64_t number_at(const void* numbers, bool has_64_bits, int at) {
  return has_64_bits ? __ldg(static_cast<const long long*>(numbers) + at)
                     : __ldg(static_cast<const int*>(numbers) + at);
}

// x / scale in float32, rounded to nearest even: the product with the reciprocal, corrected by what it leaves. Zeros
// keep their sign, and what is not finite stays so.
class Quotient {
 public:
  FA3_DEVICE explicit Quotient(float scale) : scale_(scale), inverse_(1.f / scale) {}
  FA3_DEVICE float operator()(float x) const {
    const float first = x * inverse_, corrected = fmaf(fmaf(-first, scale_, x), inverse_, first);
    return fabsf(first) < INFINITY && first != 0.f ? corrected : first;
  }

 private:
  float scale_, inverse_;
};

// A lane's quad.
class NewQuad {
 public:
  FA3_DEVICE NewQuad(const AppendParams& p, int warp) : p_(p) {
    const int lane = threadIdx.x % 32, nth = warp / p.segments;
    row_ = (nth << (5 - p.lane_shift)) + (lane >> p.lane_shift);
    int quad = (warp - nth * p.segments) * 32 + (lane & ((1 << p.lane_shift) - 1));
    valid_ = row_ < p.rows && quad < p.quads;
    which_ = quad < p.q_end ? 0 : quad < p.k_end ? 1 : 2;
    quad -= which_ == 0 ? 0 : which_ == 1 ? p.q_end : p.k_end;
    const AppendTensor& t = tensor();
    const int heads = quad / t.quads_of_head;
    quad -= heads * t.quads_of_head;
    head_ = heads * append_heads;
    has_second_head_ = head_ + 1 < t.heads;
    const int chunk = t.quads.first(quad), second = t.quads.second(quad);
    column_ = chunk * append_columns;
    distance_ = second < t.quads.chunks ? (second - chunk) * append_columns : 0;
    rotates_ = t.quads.is_rotated(quad);
    batch_ = row_ / p.rows_of_sequence;
  }

  FA3_DEVICE void load() {
    if (!valid_) return;
    const AppendTensor& t = tensor();
    const uint16_t* const x = t.x + batch_ * t.x_stride_batch + row_of_batch() * t.x_stride_row +
                              head_ * t.x_stride_head + column_;
#pragma unroll
    for (int h = 0; h < append_heads; h++) {
      if (h == 1 && !has_second_head_) break;
      const uint16_t* const from = x + h * t.x_stride_head;
      chunks_[h][0] = __ldcs(reinterpret_cast<const uint4*>(from));
      chunks_[h][1] = __ldcs(reinterpret_cast<const uint4*>(from + distance_));
    }
  }

  // The row's sequence, where all have as many rows; or it is the only one.
  FA3_DEVICE NewRow row() const { return {batch_, uint32_t(row_of_batch()), true}; }
  // Where they are packed. All lanes of the warp take part.
  FA3_DEVICE NewRow find_packed_row() const {
    NewRow mine;
#pragma unroll 1
    for (int first = 0; first < 32; first += 1 << p_.lane_shift) {
      const NewRow found = find_sequence(p_, __shfl_sync(0xffffffffu, row_, first));
      if (threadIdx.x % 32 >= first) mine = found;
    }
    return mine;
  }

  // Where the quad goes, and what it is rotated and divided by. False if it is left out.
  FA3_DEVICE bool find_place(const NewRow& row) {
    if (!valid_ || !row.valid) return false;
    if (p_.seqused && int64_t{row.number} >= __ldg(p_.seqused + row.sequence)) return false;
    // Below 0 it is beyond all that there is.
    const uint32_t position = p_.cache_seqlens ? __ldg(p_.cache_seqlens + row.sequence) + row.number : 0;
    const AppendTensor& t = tensor();
    if (t.scale) {
      const float* const scale = t.scale + row.sequence * t.scale_stride_batch + head_ * t.scale_stride_head;
      scale_[0] = __ldg(scale);
      if (has_second_head_) scale_[1] = __ldg(scale + t.scale_stride_head);
    }
    if (p_.rotary_cos && !find_angles(row, position)) return false;
    int batch = batch_, cache_row = row_of_batch();
    if (which_ != 0 && !find_place_in_cache(row, position, batch, cache_row)) return false;
    y_ = batch * t.y_stride_batch + cache_row * t.y_stride_row + head_ * t.y_stride_head + column_;
    return true;
  }

  FA3_DEVICE void store() const {
    const AppendTensor& t = tensor();
#pragma unroll
    for (int h = 0; h < append_heads; h++) {
      if (h == 1 && !has_second_head_) break;
      const uint4(&chunks)[2] = chunks_[h];
      const int64_t y = y_ + h * t.y_stride_head;
      if (!t.scale && !rotates_) {
        put(static_cast<uint16_t*>(t.y) + y, chunks[0], chunks[1]);
        continue;
      }
      float x[2][append_columns];
#pragma unroll
      for (int i = 0; i < 2; i++) unpack(p_.bf16, {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w}, x[i]);
      if (rotates_) rotate(x);
      if (t.scale) {
        const Quotient quotient(scale_[h]);
        put(static_cast<uint8_t*>(t.y) + y, to_e4m3(quotient, x[0]), to_e4m3(quotient, x[1]));
      } else {
        put(static_cast<uint16_t*>(t.y) + y, to_16_bits(x[0]), to_16_bits(x[1]));
      }
    }
  }

 private:
  FA3_DEVICE const AppendTensor& tensor() const { return p_.tensors[which_]; }
  FA3_DEVICE int row_of_batch() const { return row_ - batch_ * p_.rows_of_sequence; }

  FA3_DEVICE bool find_angles(const NewRow& row, uint32_t position) {
    int64_t at = position;
    if (p_.positions && p_.positions_of_rows) at = number_at(p_.positions, p_.positions_64, row_);
    else if (p_.positions)
      at = int64_t(uint64_t(number_at(p_.positions, p_.positions_64, row.sequence)) + row.number);
    if (at < 0 || at >= p_.angles) return false;
    if (!rotates_) return true;
    // Interleaved, each chunk has the angles of its own pairs; otherwise the two chunks are the pairs.
    const int first = p_.interleaved ? column_ / 2 : column_, second = first + (p_.interleaved ? distance_ / 2 : 4);
    const float *const cos = p_.rotary_cos + at * p_.cos_stride, *const sin = p_.rotary_sin + at * p_.sin_stride;
    cos_[0] = __ldg(reinterpret_cast<const float4*>(cos + first));
    cos_[1] = __ldg(reinterpret_cast<const float4*>(cos + second));
    sin_[0] = __ldg(reinterpret_cast<const float4*>(sin + first));
    sin_[1] = __ldg(reinterpret_cast<const float4*>(sin + second));
    return true;
  }

  // Which cache or page, and which of its rows.
  FA3_DEVICE bool find_place_in_cache(const NewRow& row, uint32_t position, int& cache, int& cache_row) const {
    if (p_.slots) {
      const int64_t slot = number_at(p_.slots, p_.slots_64, row_);
      if (slot < 0 || slot >= int64_t{p_.caches} * p_.cache_rows) return false;
      cache = int(slot) / p_.cache_rows;
      cache_row = int(slot) - cache * p_.cache_rows;
      return true;
    }
    if (position >= uint32_t(p_.capacity)) return false;
    const int page = int(position) / p_.cache_rows;  // 0 where a cache is whole
    cache_row = int(position) - page * p_.cache_rows;
    cache = p_.page_table        ? __ldg(p_.page_table + row.sequence * p_.page_table_stride + page)
            : p_.cache_batch_idx ? __ldg(p_.cache_batch_idx + row.sequence)
                                 : row.sequence;
    return cache >= 0 && cache < p_.caches;
  }

  FA3_DEVICE void rotate(float (&x)[2][append_columns]) const {
    const float cos[8] = {cos_[0].x, cos_[0].y, cos_[0].z, cos_[0].w, cos_[1].x, cos_[1].y, cos_[1].z, cos_[1].w};
    const float sin[8] = {sin_[0].x, sin_[0].y, sin_[0].z, sin_[0].w, sin_[1].x, sin_[1].y, sin_[1].z, sin_[1].w};
    const auto turn = [](float& a, float& b, float c, float s) {
      const float turned = a * c - b * s;
      b = a * s + b * c;
      a = turned;
    };
    if (p_.interleaved) {
#pragma unroll
      for (int k = 0; k < 8; k++) turn(x[k / 4][k % 4 * 2], x[k / 4][k % 4 * 2 + 1], cos[k], sin[k]);
    } else {
#pragma unroll
      for (int k = 0; k < 8; k++) turn(x[0][k], x[1][k], cos[k], sin[k]);
    }
  }

  FA3_DEVICE uint4 to_16_bits(const float (&x)[append_columns]) const {
    const auto two = [&](int k) {
      return p_.bf16 ? ptx::cvt_rn_bf16x2_f32(x[k + 1], x[k]) : ptx::cvt_rn_f16x2_f32(x[k + 1], x[k]);
    };
    return make_uint4(two(0), two(2), two(4), two(6));
  }
  FA3_DEVICE static uint2 to_e4m3(const Quotient& quotient, const float (&x)[append_columns]) {
    const auto four = [&](int k) {
      const uint32_t low = ptx::cvt_rn_satfinite_e4m3x2_f32(quotient(x[k + 1]), quotient(x[k]));
      const uint32_t high = ptx::cvt_rn_satfinite_e4m3x2_f32(quotient(x[k + 3]), quotient(x[k + 2]));
      return low | high << 16;
    };
    return make_uint2(four(0), four(4));
  }

  // Both chunks, or the only one.
  template <class Element, class Chunk>
  FA3_DEVICE void put(Element* y, const Chunk& first, const Chunk& second) const {
    *reinterpret_cast<Chunk*>(y) = first;
    if (distance_) *reinterpret_cast<Chunk*>(y + distance_) = second;
  }

  const AppendParams& p_;
  int row_, batch_;        // the row's number, and the batch entry of x that it is in
  int which_, head_;       // Q, K or V, and the first head
  int column_, distance_;  // of the first chunk; columns to the second, 0 if there is none
  bool valid_, has_second_head_, rotates_;
  int64_t y_;  // elements between the output's first and the quad's
  float scale_[append_heads];
  uint4 chunks_[append_heads][2] = {};
  float4 cos_[2], sin_[2];
};

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::AppendParams p) {
  using namespace fa3;
  NewQuad quad(p, blockIdx.x * (config.threads() / 32) + threadIdx.x / 32);
  quad.load();
  const NewRow row = p.cu_seqlens ? quad.find_packed_row() : quad.row();
  if (quad.find_place(row)) quad.store();
}
