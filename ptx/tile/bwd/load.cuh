// Loads of the backward pass by TMA, each completed on a barrier that expects its bytes.
#pragma once
#include "../../isa/mbarrier.cuh"
#include "../../isa/tma.cuh"
#include "../../tensor_map_bytes.h"
#include "../element.cuh"

namespace fa3 {

FA3_DEVICE void expect(uint64_t& full, int bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::shared_address(&full), bytes);
}
// `rows` rows of d columns, slab by slab.
FA3_DEVICE void load_rows(const Element* to, int rows, const TensorMap& map, uint64_t& full, int row, int head,
                          int batch) {
#pragma unroll
  for (int slab = 0; slab < d / slab_columns; slab++)
    ptx::cp_async_bulk_tensor_4d_load(ptx::shared_address(to) + slab * rows * slab_row_bytes, &map,
                                      ptx::shared_address(&full), slab * slab_columns, row, head, batch);
}
FA3_DEVICE void load_numbers(const float (&to)[Br], const float* from, uint64_t& full) {
  ptx::cp_async_bulk_load(ptx::shared_address(to), from, sizeof to, ptx::shared_address(&full));
}

}  // namespace fa3
