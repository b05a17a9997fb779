// Where the blocks of K and V lie, and how they come to shared memory. Here the tensors are strided: a tensor map each,
// and TMA gives zeros for what lies beyond their ends. V as tiles (fa3.h) comes as it lies there, in rows of 256 bytes.
#pragma once
#include "../v_tile.h"
#include "load.cuh"
#include "schedule.cuh"
#include "smem.cuh"

namespace fa3 {

// The 64 rows of Q from `row` on, of the piece's sequence.
FA3_DEVICE void load_q(Element* to, uint64_t& full, const Params& p, int row, const Piece& piece) {
  using namespace ptx;
  const Tile& tile = piece.tile;
  if constexpr (config.packs_heads()) {
    const int head = packing(p).head(row), query = q_row(p, piece.sequence) + packing(p).query(row);
#pragma unroll
    for (int slab = 0; slab < slabs; slab++)
      cp_async_bulk_tensor_5d_load(shared_address(to) + slab * 64 * slab_row_bytes, &p.q,
                                   shared_address(&full), slab * slab_columns, head, query, tile.head, tile.batch);
  } else {
    load_rows(to, 64, slabs, p.q, full, q_row(p, piece.sequence) + row, tile.head, tile.batch);
  }
}

// K/V block j for the piece's rows.
FA3_DEVICE KeyBlock key_block(const Params& p, const Piece& piece, int j) {
  const Tile& tile = piece.tile;
  const int head = config.packs_heads() ? tile.head : tile.head / p.heads_per_kv;
  KeyBlock block = {k_row(p, piece.sequence) + j * Bc, head, k_batch(p, piece.sequence, tile.batch)};
  if constexpr (own_lengths) block.keys[0] = max(visible(p, piece.sequence).seqlen_k - j * Bc, 0);
  return block;
}
FA3_DEVICE void load_k(Element* to, uint64_t& full, const Params& p, const KeyBlock& block) {
  load_rows(to, Bc, slabs, p.k, full, block.key, block.head, block.batch);
}

// Rows that lie outside of every tensor.
inline constexpr int no_row = 1 << 30;

// The last block of V of a sequence with a length of its own: its rows, and zeros behind them.
template <class P>
FA3_DEVICE void load_few_rows(Element* to, uint64_t& full, const P& p, const KeyBlock& block) {
  static_assert(Bc <= 1 << P::v_boxes);
  const int n = block.keys[0];
  if (n == 0) return load_rows(to, Bc, v_slabs, p.v, full, no_row, block.head, block.batch);
  uint32_t at = ptx::shared_address(to);
#pragma unroll 1
  for (int i = 0; i < 2 * P::v_boxes; i++) {  // boxes of rows of the sequence, then those of zeros
    const int box = i % P::v_boxes;
    const bool zeros = i >= P::v_boxes;
    if (((zeros ? Bc - n : n) >> box & 1) == 0) continue;
    const int row = int(at - ptx::shared_address(to)) / slab_row_bytes;
    for (int slab = 0; slab < v_slabs; slab++)
      ptx::cp_async_bulk_tensor_4d_load(at + slab * Bc * slab_row_bytes, &p.v_rows[box], ptx::shared_address(&full),
                                        slab * slab_columns, zeros ? no_row : block.key + row, block.head, block.batch);
    at += slab_row_bytes << box;
  }
}
FA3_DEVICE void load_v(Element* to, uint64_t& full, const Params& p, const KeyBlock& block) {
  if constexpr (takes_v_tiles)
    ptx::cp_async_bulk_tensor_5d_load(ptx::shared_address(to), &p.v, ptx::shared_address(&full), 0, 0,
                                      block.key / v_tile_keys, block.head, block.batch);
  else {
    if constexpr (own_lengths)
      if (block.keys[0] < Bc) return load_few_rows(to, full, p, block);
    load_rows(to, Bc, v_slabs, p.v, full, block.key, block.head, block.batch);
  }
}

// The scale of the block of rows that `row` is in.
FA3_DEVICE float scale_at(const ScaleTensor& scale, int batch, int head, int row) {
  return scale.data[batch * scale.stride_batch + head * scale.stride_head + row / rows_of_scale * scale.stride_block];
}
// The scales of a K/V block, on their way. The barrier gets an arrival when they have come.
FA3_DEVICE void load_block_scales(BlockScales& to, uint64_t& full, const Params& p, const KeyBlock& block) {
  const Scales& scales = scales_of(p);
  const auto at = [&](const ScaleTensor& scale) {
    return scale.data + block.batch * scale.stride_batch + block.head * scale.stride_head +
           block.key / rows_of_scale * scale.stride_block;
  };
  ptx::cp_async_ca_4(ptx::shared_address(&to.k), at(scales.k));
  ptx::cp_async_ca_4(ptx::shared_address(&to.v), at(scales.v));
  ptx::cp_async_mbarrier_arrive_noinc(ptx::shared_address(&full));
}

// The scales of the RowBlock's Q, and of what it meets.
FA3_DEVICE void load_scales(RowBlock& block, const Params& p) {
  const int head_kv = block.head / p.heads_per_kv;
  const int row = block.q_row() + min(max(block.row, 0), visible(p, block).seqlen_q - 1);
  const Scales& scales = scales_of(p);
  block.c = p.softmax_scale_log2 * scale_at(scales.q, block.batch, block.head, row);
  block.v_scale = 1.f;
  if constexpr (!config.block_scales()) {
    block.c *= scale_at(scales.k, block.batch, head_kv, 0);
    block.v_scale = scale_at(scales.v, block.batch, head_kv, 0);
  }
}
// The bytes of the vector that is added to O, and their load.
FA3_DEVICE uint32_t v_mean_bytes(const Params& p) {
  return scales_of(p).v_mean ? p.output.head_dim * sizeof(float) : 0;
}
FA3_DEVICE void load_v_mean(float* to, uint64_t& full, const Params& p, const RowBlock& block) {
  const Scales& scales = scales_of(p);
  const float* from = scales.v_mean + block.batch * scales.v_mean_stride_batch +
                      block.head / p.heads_per_kv * scales.v_mean_stride_head;
  ptx::cp_async_bulk_load(ptx::shared_address(to), from, v_mean_bytes(p), ptx::shared_address(&full));
}

}  // namespace fa3
