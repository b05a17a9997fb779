// fa3_combine: partial results of attention become one. Each thread has the sums of its pieces of rows in registers:
// over parts of the keys, with weights from the parts' LSE. The LSE of the next parts come while the parts before are
// added, so that O of a part that has seen no key is not read; only the first parts are read before their LSE are
// known.
#include "../isa/barrier.cuh"
#include "../isa/math.cuh"
#include "../params/combine_params.h"
#include "../tile/config.cuh"
#include "../tile/row_sums.cuh"
#include "../tile/shared.cuh"

namespace fa3 {

template <CombineDtype dtype>
inline constexpr int piece_elements = 16 / bytes_of(dtype);

// The elements of a piece in float32.
template <CombineDtype dtype>
FA3_DEVICE void unpack(const uint4& piece, float (&x)[piece_elements<dtype>]) {
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (dtype == CombineDtype::fp32) {
      x[i] = __uint_as_float(words[i]);
    } else if constexpr (dtype == CombineDtype::bf16) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
    } else {
      x[2 * i] = ptx::cvt_f32_f16(words[i] & 0xffff);
      x[2 * i + 1] = ptx::cvt_f32_f16(words[i] >> 16);
    }
  }
}

// A piece of a row over the parts so far.
template <int columns>
struct MergedRow {
  float m = -INFINITY;    // the largest LSE
  float l = 0.f;          // the sum of exp(LSE - m); 0 if no part has seen a key
  float o[columns] = {};  // the sums of exp(LSE - m) O

  FA3_DEVICE void raise(float largest) {
    const float factor = natural_part_weight(m, largest);
    m = largest;
    l *= factor;
#pragma unroll
    for (int k = 0; k < columns; k++) o[k] *= factor;
  }
  FA3_DEVICE void add(float weight, const float (&x)[columns]) {
#pragma unroll
    for (int k = 0; k < columns; k++) o[k] = add_in_order(o[k], weight, x[k]);
  }
};

// What a thread has to do: which piece, of which rows, of which parts.
struct MergeWork {
  int share, piece;
  int batch, head, row;  // the first row; others are p.head_slots apart. If there is nothing to do, row is p.rows

  FA3_DEVICE explicit MergeWork(const CombineParams& p) {
    const int all_slots = int(threadIdx.x) / p.pieces;
    piece = threadIdx.x - all_slots * p.pieces;
    share = all_slots / p.slots;
    const int slot = all_slots - share * p.slots, head_in_tile = slot / p.head_slots;
    // Heads first: theirs are neighbours in memory.
    const int row_tile = int(blockIdx.x) / p.tiles_along_heads, head_tile = blockIdx.x - row_tile * p.tiles_along_heads;
    const int batch_head = head_tile * p.tile_heads + head_in_tile;
    row = row_tile * (combine_rows * p.head_slots) + slot - head_in_tile * p.head_slots;
    if (share >= p.shares || head_in_tile >= p.tile_heads || batch_head >= p.batch_heads) row = p.rows;
    batch = batch_head / p.heads;
    head = batch_head - batch * p.heads;
  }
  FA3_DEVICE bool has_row(const CombineParams& p, int r) const { return row + r * p.head_slots < p.rows; }
};

// A share's parts, some at a time: their LSE and a thread's pieces of their O.
template <CombineDtype dtype>
class LoadedParts {
 public:
  static constexpr int columns = piece_elements<dtype>;
  float lse[combine_rows][combine_batch];  // -inf where there is no part or row
  uint4 pieces[combine_rows][combine_batch];

  FA3_DEVICE LoadedParts(const CombineParams& p, const MergeWork& work) : p_(p), work_(work) {
    left_ = work.row < p.rows ? (p.parts - work.share + p.shares - 1) / p.shares : 0;
    const int64_t at = work.share * p.o_parts_stride_part + work.batch * p.o_parts_stride_batch +
                       work.row * p.o_parts_stride_row + work.head * p.o_parts_stride_head + work.piece * columns;
    o_ = static_cast<const char*>(p.o_parts) + at * bytes_of(dtype);
    lse_ = p.lse_parts + work.share * p.lse_parts_stride_part + work.batch * p.lse_parts_stride_batch +
           work.head * p.lse_parts_stride_head + work.row * p.lse_parts_stride_row;
  }

  FA3_DEVICE bool has_more() const { return left_ > 0; }

  // LSE of the next parts.
  FA3_DEVICE void load_lse() {
#pragma unroll
    for (int i = 0; i < combine_batch; i++) {
#pragma unroll
      for (int r = 0; r < combine_rows; r++)
        lse[r][i] = has(r, i) ? __ldg(lse_ + r * p_.head_slots * p_.lse_parts_stride_row) : -INFINITY;
      lse_ += p_.shares * p_.lse_parts_stride_part;
    }
  }
  // O of the same parts: of those that have seen keys, or, if that is not known yet, of all.
  template <bool known>
  FA3_DEVICE void load_pieces() {
#pragma unroll
    for (int i = 0; i < combine_batch; i++) {
#pragma unroll
      for (int r = 0; r < combine_rows; r++) {
        const char* const from = o_ + r * p_.head_slots * p_.o_parts_stride_row * bytes_of(dtype);
        if (known ? lse[r][i] != -INFINITY : has(r, i)) pieces[r][i] = __ldcs(reinterpret_cast<const uint4*>(from));
      }
      o_ += p_.shares * p_.o_parts_stride_part * bytes_of(dtype);
    }
    left_ -= combine_batch;
  }

 private:
  FA3_DEVICE bool has(int r, int i) const { return i < left_ && work_.has_row(p_, r); }

  const CombineParams& p_;
  const MergeWork& work_;
  int left_;  // to be loaded
  const char* o_;
  const float* lse_;
};

template <CombineDtype dtype>
using MergedRows = MergedRow<piece_elements<dtype>>[combine_rows];

// All parts of the thread's share.
template <CombineDtype dtype>
FA3_DEVICE void add_parts(const CombineParams& p, const MergeWork& work, MergedRows<dtype>& sums) {
  LoadedParts<dtype> parts(p, work);
  parts.load_lse();
  parts.template load_pieces<false>();
#pragma unroll 1
  for (;;) {
    bool empty[combine_rows][combine_batch];
    float weight[combine_rows][combine_batch];
#pragma unroll
    for (int r = 0; r < combine_rows; r++) {
      float largest = sums[r].m;
#pragma unroll
      for (int i = 0; i < combine_batch; i++) largest = fmaxf(largest, parts.lse[r][i]);
      sums[r].raise(largest);
#pragma unroll
      for (int i = 0; i < combine_batch; i++) {
        empty[r][i] = parts.lse[r][i] == -INFINITY;
        weight[r][i] = natural_part_weight(parts.lse[r][i], largest);
        sums[r].l += weight[r][i];
      }
    }
    const bool more = parts.has_more();
    if (more) parts.load_lse();
#pragma unroll
    for (int r = 0; r < combine_rows; r++) {
#pragma unroll
      for (int i = 0; i < combine_batch; i++) {
        float x[piece_elements<dtype>];
        unpack<dtype>(parts.pieces[r][i], x);
        if (!empty[r][i]) sums[r].add(weight[r][i], x);
      }
    }
    if (!more) return;
    parts.template load_pieces<true>();
  }
}

// What the threads of other shares hand over.
struct MergeShared {
  float numbers[combine_rows][2 + 8][config.threads()];
};
static_assert(sizeof(MergeShared) <= config.smem_bytes());

// The sums of all shares, to the threads of the first one.
template <int columns>
FA3_DEVICE void add_shares(const CombineParams& p, int share, MergedRow<columns> (&sums)[combine_rows]) {
  MergeShared& shared = *reinterpret_cast<MergeShared*>(shared_memory());
  if (share > 0) {
#pragma unroll
    for (int r = 0; r < combine_rows; r++) {
      shared.numbers[r][0][threadIdx.x] = sums[r].m;
      shared.numbers[r][1][threadIdx.x] = sums[r].l;
#pragma unroll
      for (int k = 0; k < columns; k++) shared.numbers[r][2 + k][threadIdx.x] = sums[r].o[k];
    }
  }
  ptx::bar_sync(0, config.threads());
  if (share > 0) return;
#pragma unroll 1
  for (int s = 1; s < p.shares; s++) {
    const int from = threadIdx.x + s * p.slots * p.pieces;
#pragma unroll
    for (int r = 0; r < combine_rows; r++) {
      const float m = shared.numbers[r][0][from], l = shared.numbers[r][1][from];
      float o[columns];
#pragma unroll
      for (int k = 0; k < columns; k++) o[k] = shared.numbers[r][2 + k][from];
      sums[r].raise(fmaxf(sums[r].m, m));
      // Its l may be NaN where m is -inf; 0 times NaN is NaN.
      const float weight = natural_part_weight(m, sums[r].m);
      sums[r].l = add_in_order(sums[r].l, weight, l);
      sums[r].add(weight, o);
    }
  }
}

// The rows, complete.
template <int columns>
FA3_DEVICE void store(const CombineParams& p, const MergeWork& work, const MergedRow<columns> (&sums)[combine_rows]) {
#pragma unroll
  for (int r = 0; r < combine_rows; r++) {
    if (!work.has_row(p, r)) return;
    const MergedRow<columns>& sum = sums[r];
    const int row = work.row + r * p.head_slots;
    if (p.lse && work.piece == 0)
      p.lse[work.batch * p.lse_stride_batch + work.head * p.lse_stride_head + row * p.lse_stride_row] =
          finish_natural_row(sum.m, sum.l).lse;
    const float weight = finish_natural_row(sum.m, sum.l).weight;
    const int64_t at =
        work.batch * p.o_stride_batch + row * p.o_stride_row + work.head * p.o_stride_head + work.piece * columns;
    if (p.o_dtype == CombineDtype::fp32) {
      float4* const o = reinterpret_cast<float4*>(static_cast<float*>(p.o) + at);
#pragma unroll
      for (int k = 0; k < columns; k += 4)
        o[k / 4] =
            make_float4(sum.o[k] * weight, sum.o[k + 1] * weight, sum.o[k + 2] * weight, sum.o[k + 3] * weight);
      continue;
    }
    uint32_t pairs[columns / 2];
#pragma unroll
    for (int k = 0; k < columns; k += 2) {
      const float low = sum.o[k] * weight, high = sum.o[k + 1] * weight;
      pairs[k / 2] =
          p.o_dtype == CombineDtype::bf16 ? ptx::cvt_rn_bf16x2_f32(high, low) : ptx::cvt_rn_f16x2_f32(high, low);
    }
    uint16_t* const o = static_cast<uint16_t*>(p.o) + at;
    if constexpr (columns == 8) *reinterpret_cast<uint4*>(o) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    else *reinterpret_cast<uint2*>(o) = make_uint2(pairs[0], pairs[1]);
  }
}

template <CombineDtype dtype>
FA3_DEVICE void combine(const CombineParams& p) {
  const MergeWork work(p);
  MergedRows<dtype> sums;
  add_parts<dtype>(p, work, sums);
  if (p.shares > 1) add_shares(p, work.share, sums);
  if (work.share == 0) store(p, work, sums);
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::CombineParams p) {
  using namespace fa3;
  switch (p.parts_dtype) {
    case CombineDtype::bf16: return combine<CombineDtype::bf16>(p);
    case CombineDtype::fp16: return combine<CombineDtype::fp16>(p);
    case CombineDtype::fp32: return combine<CombineDtype::fp32>(p);
  }
}
