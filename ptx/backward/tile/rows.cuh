// What the backward pass does for query rows before and behind the products, a tile at a time.
#pragma once
#include "../../isa/math.cuh"
#include "../../params/backward_params.h"
#include "../../tile/config.cuh"

namespace fa3 {

FA3_DEVICE float2 unpack(uint32_t pair, bool bf16) {
  if (bf16) return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  return {ptx::cvt_f32_f16(uint16_t(pair)), ptx::cvt_f32_f16(uint16_t(pair >> 16))};
}
FA3_DEVICE float dot(const uint4& a, const uint4& b, bool bf16) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 u = unpack(x[i], bf16), v = unpack(y[i], bf16);
    sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
  }
  return sum;
}

// Where a tile is.
struct RowTile {
  int batch, head, row;  // the first row
  int rows;              // that there are

  FA3_DEVICE RowTile(const BackwardRows& p, int tile) {
    const int batch_head = tile / p.tiles;
    batch = batch_head / p.heads, head = batch_head - batch * p.heads;
    row = (tile - batch_head * p.tiles) * backward_tile_rows;
    rows = min(p.rows - row, backward_tile_rows);
  }
  // From row `first` of a batch entry on.
  FA3_DEVICE RowTile(const BackwardRows& p, int batch, int head, int first)
      : batch(batch), head(head), row(first), rows(min(p.rows - first, backward_tile_rows)) {}
  // From row `first` of the sequence on.
  FA3_DEVICE RowTile(const Sequence& sequence, int head, int first)
      : batch(sequence.q_batch), head(head), row(sequence.q_row + first),
        rows(min(sequence.seqlen_q - first, backward_tile_rows)) {}
  // Of its row r.
  FA3_DEVICE int64_t offset(const RowStrides& stride, int r) const {
    return batch * stride.batch + head * stride.head + (row + r) * stride.row;
  }
};

// dO . O of each row of a tile, as its D, with `threads` threads: a thread takes 8 columns of several rows, and loads
// `in_flight` of them at a time. `tile`: its number, `place`: where it is.
template <int threads, int in_flight>
FA3_DEVICE void prepare_delta(const BackwardRows& p, const RowTile& place, int tile, bool bf16, int thread) {
  constexpr int lanes = d / 8, step = threads / lanes;
  static_assert(32 % lanes == 0 && threads % 32 == 0 && backward_tile_rows % (in_flight * step) == 0);
  const int row = thread / lanes, column = thread % lanes * 8;
  const int rows = column < p.head_dim_v ? place.rows - row : 0;  // from this thread's first on
  const uint16_t* o_at = p.o + place.offset(p.o_stride, row) + column;
  const uint16_t* dout_at = p.dout + place.offset(p.dout_stride, row) + column;
  float* delta_at = p.delta + int64_t(tile) * backward_tile_rows + row;
#pragma unroll 1
  for (int first = 0; first < backward_tile_rows; first += in_flight * step) {
    uint4 o[in_flight], dout[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; i++) {
      o[i] = dout[i] = {};
      if (first + i * step < rows) {
        o[i] = __ldcs(reinterpret_cast<const uint4*>(o_at + i * step * p.o_stride.row));
        dout[i] = __ldg(reinterpret_cast<const uint4*>(dout_at + i * step * p.dout_stride.row));
      }
    }
#pragma unroll
    for (int i = 0; i < in_flight; i++) {
      float delta = dot(o[i], dout[i], bf16);
#pragma unroll
      for (int bit = 1; bit < lanes; bit *= 2) delta += __shfl_xor_sync(0xffffffffu, delta, bit);
      if (column == 0) delta_at[first + i * step] = delta;
    }
    o_at += in_flight * step * p.o_stride.row;
    dout_at += in_flight * step * p.dout_stride.row;
  }
}

template <int threads, int in_flight>
FA3_DEVICE void prepare_delta(const BackwardRows& p, int tile, bool bf16, int thread) {
  prepare_delta<threads, in_flight>(p, RowTile(p, tile), tile, bf16, thread);
}

// Then, of one row: LSE in powers of 2, and D = dO . O - dLSE.
FA3_DEVICE void prepare_row(const BackwardRows& p, const RowTile& place, int tile, int r) {
  const int64_t at = int64_t(tile) * backward_tile_rows + r;
  float lse = INFINITY;
  if (r < place.rows) lse = __ldg(p.lse + place.offset(p.lse_stride, r));
  const bool sees = fabsf(lse) != INFINITY;
  p.lse_log2[at] = sees ? lse * 1.4426950408889634f : INFINITY;  // P = 0: of no row, and of rows that see no key
  if (!sees) p.delta[at] = 0.f;
  else if (p.dlse) p.delta[at] -= __ldg(p.dlse + place.offset(p.dlse_stride, r));
}
FA3_DEVICE void prepare_row(const BackwardRows& p, int tile, int r) { prepare_row(p, RowTile(p, tile), tile, r); }

// Writes 0 to eight columns of a gradient.
FA3_DEVICE void zero_eight(uint16_t* gradient, int64_t at, GradientStore store) {
  if (store == GradientStore::rounded) {
    *reinterpret_cast<uint4*>(gradient + at) = {};
  } else {
    uint4* const eight = reinterpret_cast<uint4*>(reinterpret_cast<float*>(gradient) + at);
    eight[0] = eight[1] = {};
  }
}

// dQ = 0 for a tile of those rows that see no key, with `threads` threads.
template <int threads>
FA3_DEVICE void zero_rows(const BackwardRows& p, const EmptyRows& empty, int tile, int thread) {
  constexpr int lanes = d / 8;
  const int batch_head = tile / empty.tiles, batch = batch_head / p.heads, head = batch_head - batch * p.heads;
  const int first = (tile - batch_head * empty.tiles) * backward_tile_rows;
  const int end = min(first + backward_tile_rows, empty.rows), column = thread % lanes * 8;
  if (column >= p.head_dim) return;
  const int64_t to = batch * p.dq_stride.batch + head * p.dq_stride.head + column;
  for (int row = first + thread / lanes; row < end; row += threads / lanes)
    zero_eight(p.dq, to + (row - empty.rows) * p.dq_stride.row, p.store);
}

// Of a row's group of 8 columns and the next one a lane has two each, as pairs. Neighbours exchange them: a lane then
// has four of one group, which it stores at `to`.
FA3_DEVICE void store_four(uint16_t* to, bool exists, bool odd_lane, uint32_t pair, uint32_t next_pair) {
  const uint32_t other = __shfl_xor_sync(0xffffffffu, odd_lane ? pair : next_pair, 1);
  if (exists) *reinterpret_cast<uint2*>(to) = odd_lane ? make_uint2(other, next_pair) : make_uint2(pair, other);
}

// dQ from its sums: a warp's strip of 16 rows of a tile. The sums lie as bwd.cu stages them: of 64 rows and 64 columns
// at a time, by 16 rows, then by groups of 8 columns, then four numbers of each lane, which are two columns of two
// rows.
inline constexpr int strips = backward_tile_rows / 16;  // of a tile
struct Strip {
  const float4* sums;
  uint16_t* dq;
  int left;       // columns
  int rows;       // that there are from this lane's first on
  bool odd;       // lane
  bool are_sums;  // not so where all are second ones (Spread in backward_work.h)

  FA3_DEVICE Strip(const BackwardParams& params, int tile, int strip)
      : Strip(params, RowTile(params.rows, tile), tile, strip) {}
  FA3_DEVICE Strip(const BackwardParams& params, const RowTile& place, int tile, int strip) {
    const BackwardRows& p = params.rows;
    const int lane = threadIdx.x % 32, row = 16 * strip + lane / 4;
    odd = lane % 2;
    are_sums = !has(Trait::one_key_block) && params.visits[tile / p.tiles_per_visit] > 0;  // there are no visits then
    sums = reinterpret_cast<const float4*>(p.dq_sums) + int64_t(tile) * (16 * d) + strip * 256 + lane;
    dq = p.dq + place.offset(p.dq_stride, row) + 8 * odd + lane % 4 / 2 * 4;
    left = p.head_dim - 8 * odd;
    rows = place.rows - row;
  }
  // The groups from `first` on.
  template <int groups>
  FA3_DEVICE void load(float4 (&x)[groups], int first) const {
    static_assert(8 % groups == 0 || groups % 8 == 0);
#pragma unroll
    for (int g = 0; g < groups; g++) x[g] = __ldcs(sums + (first + g) / 8 * 1024 + (first + g) % 8 * 32);
  }
  template <int groups>
  FA3_DEVICE void store(const BackwardParams& p, const float4 (&x)[groups], int first, bool bf16) const {
    const float scale = p.softmax_scale;
    const auto pair = [&](float low, float high) {
      if (!are_sums) return 0u;
      return bf16 ? ptx::cvt_rn_bf16x2_f32(high * scale, low * scale)
                  : ptx::cvt_rn_f16x2_f32(high * scale, low * scale);
    };
#pragma unroll
    for (int g = 0; g < groups; g += 2) {
      const int column = 8 * (first + g);
      const bool exists = column < left;
      store_four(dq + column, exists && 0 < rows, odd, pair(x[g].x, x[g].y), pair(x[g + 1].x, x[g + 1].y));
      store_four(dq + 8 * p.rows.dq_stride.row + column, exists && 8 < rows, odd, pair(x[g].z, x[g].w),
                 pair(x[g + 1].z, x[g + 1].w));
    }
  }
  // The groups from `first` on, of which `groups` are loaded at a time.
  template <int groups>
  FA3_DEVICE void finish(const BackwardParams& p, int first, bool bf16) const {
#pragma unroll 1
    for (; first < d / 8; first += groups) {
      float4 x[groups];
      load(x, first);
      store(p, x, first, bf16);
    }
  }
  // All groups, where there are second sums (Spread in backward_work.h).
  template <int groups>
  FA3_DEVICE void finish_with_second(const BackwardParams& p, int tile, bool bf16) const {
    const int number = tile / p.rows.tiles_per_visit + p.order.spread.second;
    Strip second = *this, both = *this;
    second.sums += int64_t(p.order.spread.second) * p.rows.tiles_per_visit * (16 * d);
    second.are_sums = p.visits[number] > 0;
    both.are_sums |= second.are_sums;
#pragma unroll 1
    for (int first = 0; first < d / 8; first += groups) {
      float4 x[groups] = {}, y[groups] = {};
      if (are_sums) load(x, first);
      if (second.are_sums) second.load(y, first);
#pragma unroll
      for (int g = 0; g < groups; g++)
        x[g] = make_float4(x[g].x + y[g].x, x[g].y + y[g].y, x[g].z + y[g].z, x[g].w + y[g].w);
      both.store(p, x, first, bf16);
    }
  }
};

}  // namespace fa3
