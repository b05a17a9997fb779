// Where the blocks of K and V lie, and how they come to shared memory. Here the tensors are strided: a tensor map each,
// and TMA gives zeros for what lies beyond their ends. V as tiles (fa3.h) comes as it lies there, in rows of 256 bytes.
#pragma once
#include "../../params/v_tile.h"
#include "../schedule.cuh"
#include "../smem.cuh"
#include "load.cuh"

namespace fa3 {

// The 64 rows of Q from `row` on. q_row: of the tensor, where row 0 lies.
FA3_DEVICE void load_q(Element* to, uint64_t& full, const Params& p, int row, int head, int batch, int q_row = 0) {
  using namespace ptx;
  if constexpr (config.packs_heads()) {
    const int packed_head = packing(p).head(row), query = q_row + packing(p).query(row);
#pragma unroll
    for (int slab = 0; slab < slabs; slab++)
      cp_async_bulk_tensor_5d_load(shared_address(to) + slab * config.q_rows() * slab_row_bytes, &p.q,
                                   shared_address(&full), slab * slab_columns, packed_head, query, head, batch);
    const TensorMap& qv = taken<QvBlock>(p).qv;
    if constexpr (has_qv)
#pragma unroll 1  // for want of registers
      for (int slab = 0; slab < v_slabs; slab++)
        cp_async_bulk_tensor_5d_load(shared_address(to) + (slabs + slab) * config.q_rows() * slab_row_bytes, &qv,
                                     shared_address(&full), slab * slab_columns, packed_head, query, head, batch);
  } else {
    load_rows(to, 64, slabs, p.q, full, q_row + row, head, batch);
  }
}

// K/V block j for the tile's rows.
FA3_DEVICE KeyBlock key_block(const Params& p, const Tile& tile, int j) {
  const int head = config.packs_heads() ? tile.head : tile.head / p.heads_per_kv;
  return {j * Bc, head, tile.batch};
}
FA3_DEVICE void load_k(Element* to, uint64_t& full, const Params& p, const KeyBlock& block) {
  load_rows(to, Bc, slabs, p.k, full, block.key, block.head, block.batch);
}
FA3_DEVICE void load_v(Element* to, uint64_t& full, const Params& p, const KeyBlock& block) {
  if constexpr (takes_v_tiles)
    ptx::cp_async_bulk_tensor_5d_load(ptx::shared_address(to), &p.v, ptx::shared_address(&full), 0, 0,
                                      block.key / v_tile_keys, block.head, block.batch);
  else load_rows(to, Bc, v_slabs, p.v, full, block.key, block.head, block.batch);
}

// The scale of the block of rows that `row` is in.
FA3_DEVICE float scale_at(const ScaleTensor& scale, int batch, int head, int row) {
  return scale.data[batch * scale.stride_batch + head * scale.stride_head + row / rows_of_scale * scale.stride_block];
}
// The scales of a K/V block, on their way. The barrier gets an arrival when they have come.
FA3_DEVICE void load_block_scales(BlockScales& to, uint64_t& full, const Params& p, const KeyBlock& block) {
  const Scales& scales = taken<ScaleBlock>(p).scales;
  const auto at = [&](const ScaleTensor& scale) {
    return scale.data + block.batch * scale.stride_batch + block.head * scale.stride_head +
           block.key / rows_of_scale * scale.stride_block;
  };
  ptx::cp_async_ca_4(ptx::shared_address(&to.k), at(scales.k));
  ptx::cp_async_ca_4(ptx::shared_address(&to.v), at(scales.v));
  ptx::cp_async_mbarrier_arrive_noinc(ptx::shared_address(&full));
}

// The scales of the RowBlock's Q, and of what it meets. batch: of scales; in planned rows these have no blocks.
FA3_DEVICE void load_scales(RowBlock& block, const Params& p, int batch) {
  const int head_kv = config.packs_heads() ? block.head : block.head / p.heads_per_kv;
  const int row = planned ? 0 : min(max(block.row, 0), visible(p, block).seqlen_q - 1);
  const Scales& scales = taken<ScaleBlock>(p).scales;
  block.c = p.softmax_scale_log2 * (has_wide_q ? 1.f : scale_at(scales.q, batch, block.head, row));
  block.v_scale = 1.f;
  if constexpr (!config.block_scales()) {
    block.c *= scale_at(scales.k, batch, head_kv, 0);
    block.v_scale = scale_at(scales.v, batch, head_kv, 0);
  }
}
// The bytes of the vector that is added to O, and their load.
FA3_DEVICE uint32_t v_mean_bytes(const Params& p) {
  return taken<ScaleBlock>(p).scales.v_mean ? p.output.head_dim * sizeof(float) : 0;
}
FA3_DEVICE void load_v_mean(float* to, uint64_t& full, const Params& p, int batch, int head) {
  const Scales& scales = taken<ScaleBlock>(p).scales;
  const float* from = scales.v_mean + batch * scales.v_mean_stride_batch +
                      head / p.heads_per_kv * scales.v_mean_stride_head;
  ptx::cp_async_bulk_load(ptx::shared_address(to), from, v_mean_bytes(p), ptx::shared_address(&full));
}

}  // namespace fa3
