// Copies of 16 bits of q, k and v of 8 bits (fa3.h), elements times their scales, for kernels that take these: in
// front of the backward pass, with LSE and dLSE without what the forward pass added to LSE and O, as the copies lack
// that, too; and of k and v in front of the forward pass. One launch: a thread block has lines of a head of q, of k,
// of v, or rows of LSE.
//
// An element and its scale are multiplied in float32, exactly or nearly so, and rounded once. An element has 4
// significant bits and bf16 has 8, so the copies are exact where the scale has no more than 4, as powers of two do.
#include "../isa/grid.cuh"
#include "../isa/math.cuh"
#include "../params/widen_params.h"
#include "../tile/config.cuh"
#include "../tile/unpack.cuh"

namespace fa3 {

// The sequence of a packed row: the last one that begins at or before it. Rows before the first one are no sequence's,
// and whatever is made of them is not read.
FA3_DEVICE int sequence_of_row(const int32_t* cu_seqlens, int batch, int row) {
  int sequence = 0;
#pragma unroll 1
  for (int left = batch - 1; left > 0;) {
    const int half = (left + 1) / 2;
    if (__ldg(cu_seqlens + sequence + half) <= row) sequence += half, left -= half;
    else left = half - 1;
  }
  return sequence;
}

// The lines of a thread block, from `first` on.
struct WidenedBlock {
  int batch, head, first;

  FA3_DEVICE WidenedBlock(const HeadBlocks& blocks, int number) {
    const int line_block = number / blocks.heads;
    head = number - line_block * blocks.heads;
    batch = line_block / blocks.per_head;
    first = (line_block - batch * blocks.per_head) * blocks.lines;
  }
};

// The scale of a row: its block's, or its sequence's.
FA3_DEVICE float scale_of_row(const WidenParams& p, const WidenedTensor& t, const WidenedBlock& at, int row) {
  const int sequence = t.cu_seqlens ? sequence_of_row(t.cu_seqlens, p.batch, row) : at.batch;
  return __ldg(t.scale + int64_t(sequence) * t.scale_stride_batch + int64_t(at.head) * t.scale_stride_head +
               int64_t(row / rows_of_scale) * t.scale_stride_block);
}

FA3_DEVICE uint16_t* copy_of_row(const WidenedTensor& t, const WidenedBlock& at, int row) {
  return t.to + ((int64_t(at.batch) * t.rows + row) * t.heads_and_columns() + at.head * t.head_dim);
}

// Two elements, the first one in the low byte.
template <bool bf16>
FA3_DEVICE uint32_t widen_pair(uint32_t pair, float scale) {
  const uint32_t two = ptx::cvt_rn_f16x2_e4m3x2(uint16_t(pair));
  const float low = ptx::cvt_f32_f16(uint16_t(two)) * scale, high = ptx::cvt_f32_f16(uint16_t(two >> 16)) * scale;
  return bf16 ? ptx::cvt_rn_bf16x2_f32(high, low) : ptx::cvt_rn_f16x2_f32(high, low);
}

// Where a copy's row comes from, of the first head; null if its page or batch entry does not exist.
FA3_DEVICE const uint8_t* source_of_row(const WidenedTensor& t, const WidenedBlock& at, int row) {
  int entry = at.batch, row_of_entry = row;
  if (t.page_table) {
    const int page = row / t.page_size;
    entry = __ldg(t.page_table + int64_t(at.batch) * t.table_stride + page);
    row_of_entry = row - page * t.page_size;
  } else if (t.entry_of) {
    entry = __ldg(t.entry_of + at.batch);
  }
  if (uint32_t(entry) >= uint32_t(t.entries)) return nullptr;
  return t.from + entry * t.stride_batch + row_of_entry * t.stride_row;
}

// What becomes of e4m3: products with their scales in this type, or, without a scale, fp16.
enum class Widened { bf16, fp16, exact };
template <Widened to>
FA3_DEVICE uint32_t widen_pair(uint32_t pair, float scale) {
  return to == Widened::exact ? ptx::cvt_rn_f16x2_e4m3x2(uint16_t(pair)) : widen_pair<to == Widened::bf16>(pair, scale);
}

template <Widened widened>
FA3_DEVICE void widen_rows(const WidenParams& p, const WidenedTensor& t, const WidenedBlock& at) {
  constexpr int threads = config.threads();
  uint16_t* const to = copy_of_row(t, at, at.first);
  constexpr bool exact = widened == Widened::exact;
  const bool has_one_scale = exact || (!t.cu_seqlens && t.scale_stride_block == 0);
  const float one_scale = !exact && has_one_scale ? scale_of_row(p, t, at, 0) : 1.f;
  const int lines = t.used ? min(t.lines, __ldg(t.used + at.batch)) : t.lines;
  const int present = min(t.blocks.lines, lines - at.first);
  uint2 x[widened_pieces];
  float scale[widened_pieces];
  bool exists[widened_pieces];
#pragma unroll
  for (int i = 0; i < widened_pieces; i++) {
    const int number = threadIdx.x + i * threads, row = number / t.pieces;
    exists[i] = false;
    if (row >= present) continue;
    const int column = (number - row * t.pieces) * widened_columns;
    const uint8_t* const from = source_of_row(t, at, at.first + row);
    exists[i] = from != nullptr;
    if (!exists[i]) continue;
    x[i] = __ldcs(reinterpret_cast<const uint2*>(from + at.head * t.stride_head + column));
    scale[i] = has_one_scale ? one_scale : scale_of_row(p, t, at, at.first + row);
  }
#pragma unroll
  for (int i = 0; i < widened_pieces; i++) {
    const int number = threadIdx.x + i * threads, row = number / t.pieces;
    if (!exists[i]) continue;
    const int column = (number - row * t.pieces) * widened_columns;
    const auto two = [&](uint32_t pair) { return widen_pair<widened>(pair, scale[i]); };
    *reinterpret_cast<uint4*>(to + row * t.heads_and_columns() + column) =
        make_uint4(two(x[i].x), two(x[i].x >> 16), two(x[i].y), two(x[i].y >> 16));
  }
}

// A thread has 8 columns of a V tile, which are 8 of its rows, and writes them key by key.
template <bool bf16>
FA3_DEVICE void widen_tiles(const WidenParams& p, const WidenedTensor& t, const WidenedBlock& at) {
  const int tile = int(threadIdx.x) / t.pieces;
  if (tile >= min(t.blocks.lines, t.lines - at.first)) return;
  const int column = (int(threadIdx.x) - tile * t.pieces) * widened_columns, first = (at.first + tile) * v_tile_keys;
  const int present = min(t.rows - first, v_tile_keys);
  const uint8_t* const from =
      t.from + at.batch * t.stride_batch + at.head * t.stride_head + (at.first + tile) * t.stride_row;
  const float scale = scale_of_row(p, t, at, first);
  uint16_t* const to = copy_of_row(t, at, first) + column;
  uint32_t columns[widened_columns][4];
#pragma unroll
  for (int c = 0; c < widened_columns; c++) {
    const uint4 keys = __ldcs(reinterpret_cast<const uint4*>(from + v_tile_row(column + c) * v_tile_keys));
    columns[c][0] = keys.x, columns[c][1] = keys.y, columns[c][2] = keys.z, columns[c][3] = keys.w;
  }
#pragma unroll
  for (int key = 0; key < v_tile_keys; key++) {
    const int word = v_tile_byte(key) / 4, byte = v_tile_byte(key) % 4;
    const auto two = [&](int c) {
      return widen_pair<bf16>(__byte_perm(columns[c][word], columns[c + 1][word], byte | (4 + byte) << 4), scale);
    };
    if (key < present)
      *reinterpret_cast<uint4*>(to + key * t.heads_and_columns()) = make_uint4(two(0), two(2), two(4), two(6));
  }
}

// O of the forward pass has v_mean in it, and dP of the copies has not: D, which is dO . O - dLSE, becomes what it is
// for V without the mean by as much more dLSE. And P of the copies wants LSE without what lse_offset added.
template <bool bf16>
FA3_DEVICE void correct_rows(const WidenParams& p, const WidenedBlock& at) {
  const int lanes = 1 << p.lanes_shift, rows_at_once = config.threads() >> p.lanes_shift;
  const int lane = threadIdx.x & (lanes - 1), first = at.first + (threadIdx.x >> p.lanes_shift);
  const int column = lane * 8;
  uint4 x[corrected_at_once] = {};
  if (p.dlse_to && column < p.head_dim_v) {
    const uint16_t* const dout = p.dout + at.batch * p.dout_stride_batch + at.head * p.dout_stride_head + column;
#pragma unroll
    for (int i = 0; i < corrected_at_once; i++)
      if (const int row = first + i * rows_at_once; row < p.rows)
        x[i] = __ldg(reinterpret_cast<const uint4*>(dout + row * p.dout_stride_row));
  }
  const int64_t numbers = (int64_t(at.batch) * p.blocks.heads + at.head) * p.rows;
#pragma unroll
  for (int i = 0; i < corrected_at_once; i++) {
    const int row = first + i * rows_at_once;
    const bool writes = lane == 0 && row < p.rows;
    if (p.dlse_to) {
      float sum = 0.f;
      if (column < p.head_dim_v && row < p.rows) {
        const int sequence = p.cu_seqlens ? sequence_of_row(p.cu_seqlens, p.batch, row) : at.batch;
        const float* const mean = p.v_mean + sequence * p.mean_stride_batch +
                                  at.head / p.heads_per_kv * p.mean_stride_head + column;
        const float4 low = __ldg(reinterpret_cast<const float4*>(mean));
        const float4 high = __ldg(reinterpret_cast<const float4*>(mean + 4));
        const uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        float dout[8];
        unpack(bf16, words, dout);
        sum = fmaf(dout[0], low.x, fmaf(dout[1], low.y, fmaf(dout[2], low.z, dout[3] * low.w)));
        sum = fmaf(dout[4], high.x, fmaf(dout[5], high.y, fmaf(dout[6], high.z, fmaf(dout[7], high.w, sum))));
      }
      for (int other = lanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
      if (writes && p.dlse)
        sum += __ldg(p.dlse + at.batch * p.dlse_stride_batch + at.head * p.dlse_stride_head + row * p.dlse_stride_row);
      if (writes) p.dlse_to[numbers + row] = sum;
    }
    if (p.lse_to && writes)
      p.lse_to[numbers + row] =
          __ldg(p.lse + at.batch * p.lse_stride_batch + at.head * p.lse_stride_head + row * p.lse_stride_row) -
          __ldg(p.lse_offset + at.batch * p.offset_stride_batch + at.head * p.offset_stride_head +
                row * p.offset_stride_row);
  }
}

// What the thread block has: of q, of k, of v, or of LSE.
template <bool bf16>
FA3_DEVICE void widen(const WidenParams& p) {
  int block = blockIdx.x;
#pragma unroll 1
  for (int which = 0; which < 3; which++) {
    const WidenedTensor& t = p.tensors[which];
    if (block < t.blocks.count) {
      const WidenedBlock place(t.blocks, block);
      if (t.tiles) return widen_tiles<bf16>(p, t, place);
      if (!t.scale) return widen_rows<Widened::exact>(p, t, place);
      return widen_rows<bf16 ? Widened::bf16 : Widened::fp16>(p, t, place);
    }
    block -= t.blocks.count;
  }
  correct_rows<bf16>(p, WidenedBlock(p.blocks, block));
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::WidenParams p) {
  fa3::ptx::griddepcontrol_launch_dependents();
  if (p.bf16) fa3::widen<true>(p);
  else fa3::widen<false>(p);
  fa3::ptx::griddepcontrol_wait();  // the next kernel waits for this one alone, and needs the list of the one before
}
