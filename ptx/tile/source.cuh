// Where the blocks of K and V lie, and how they come to shared memory. Here the tensors are strided: a tensor map each,
// and TMA gives zeros for what lies beyond their ends.
#pragma once
#include "../isa/tma.cuh"
#include "schedule.cuh"
#include "smem.cuh"

namespace fa3 {

// Loads `rows` rows of `columns` columns, from `row` on, slab by slab.
FA3_DEVICE void load_rows(const Element* to, int rows, int columns, const TensorMap& map, uint64_t& full, int row,
                          int head, int batch) {
  using namespace ptx;
#pragma unroll
  for (int slab = 0; slab < columns / slab_columns; slab++)
    cp_async_bulk_tensor_4d_load(shared_address(to) + slab * rows * slab_row_bytes, &map, shared_address(&full),
                                 slab * slab_columns, row, head, batch);
}

// The 64 rows of Q from `row` on.
FA3_DEVICE void load_q(Smem& smem, uint32_t buffer, uint64_t& full, const Params& p, int row, const Tile& tile) {
  load_rows(smem.q[buffer], 64, d, p.q, full, row, tile.head, tile.batch);
}

// Where a K/V block lies, for K and V alike.
struct KeyBlock {
  int key;  // its first key
  int head, batch;
};

// K/V block j for the tile's rows.
FA3_DEVICE KeyBlock key_block(const Params& p, const Tile& tile, int j) {
  return {j * Bc, tile.head / p.heads_per_kv, tile.batch};
}
FA3_DEVICE void load_k(Stage& stage, uint64_t& full, const Params& p, const KeyBlock& block) {
  load_rows(stage.k, Bc, d, p.k, full, block.key, block.head, block.batch);
}
FA3_DEVICE void load_v(Stage& stage, uint64_t& full, const Params& p, const KeyBlock& block) {
  load_rows(stage.v, Bc, dv, p.v, full, block.key, block.head, block.batch);
}

}  // namespace fa3
