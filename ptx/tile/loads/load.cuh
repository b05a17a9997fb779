// Rows of a tensor on their way to shared memory by TMA, which gives zeros for what lies beyond the tensor's ends. Each
// load completes on a barrier that expects its bytes.
#pragma once
#include "../../isa/tma.cuh"
#include "../../params/tensor_map_bytes.h"
#include "../element.cuh"

namespace fa3 {

// Loads `rows` rows of so many slabs, from `row` on.
FA3_DEVICE void load_rows(const Element* to, int rows, int slabs, const TensorMap& map, uint64_t& full, int row,
                          int head, int batch) {
  using namespace ptx;
#pragma unroll
  for (int slab = 0; slab < slabs; slab++)
    cp_async_bulk_tensor_4d_load(shared_address(to) + slab * rows * slab_row_bytes, &map, shared_address(&full),
                                 slab * slab_columns, row, head, batch);
}

}  // namespace fa3
