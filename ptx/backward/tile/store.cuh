// Gradients on their way out: through shared memory, where they take the place of what is not read any more.
#pragma once
#include "../../isa/barrier.cuh"
#include "../../isa/fence.cuh"
#include "../../isa/matrix.cuh"
#include "../../isa/tma.cuh"
#include "../../params/tensor_map_bytes.h"
#include "../../tile/element.cuh"
#include "sequence.cuh"

namespace fa3 {

// A warpgroup's 64 rows of 2 n columns, times `scale` and rounded, into the first of a buffer of so many rows. `warp`
// of its four.
template <int buffer_rows, int n>
FA3_DEVICE void stage_gradient(const float (&D)[n], float scale, Element* buffer, int warp) {
  const int lane = threadIdx.x % 32, row = lane % 16;
  const uint32_t at = ptx::shared_address(buffer) + (16 * warp + row) * slab_row_bytes +
                      ((lane / 16 ^ row % 8) << 4);
#pragma unroll
  for (int k = 0; k < n / 8; k++) {
    const float* x = &D[8 * k];
    const int slab = k / 4, within = k % 4 * 32;
    ptx::stmatrix_x4((at ^ within) + slab * buffer_rows * slab_row_bytes, pack(x[0] * scale, x[1] * scale),
                     pack(x[2] * scale, x[3] * scale), pack(x[4] * scale, x[5] * scale),
                     pack(x[6] * scale, x[7] * scale));
  }
  ptx::fence_proxy_async_shared();
}
// Sends them, when all are there. By one thread.
template <int buffer_rows>
FA3_DEVICE void send_gradient(const Element* buffer, const TensorMap& map, const Place& to) {
#pragma unroll
  for (int slab = 0; slab < d / slab_columns; slab++)
    store_rows(ptx::shared_address(buffer) + slab * buffer_rows * slab_row_bytes, map, slab * slab_columns, to);
}
// Both, by the whole warpgroup; `barrier` is its own.
template <int buffer_rows>
FA3_DEVICE void store_gradient(const float (&D)[d / 2], float scale, Element* buffer, const TensorMap& map,
                               const Place& to, int barrier, int warp) {
  stage_gradient<buffer_rows>(D, scale, buffer, warp);
  ptx::bar_sync(barrier, 128);
  if (warp == 0 && threadIdx.x % 32 == 0) {
    send_gradient<buffer_rows>(buffer, map, to);
    ptx::cp_async_bulk_commit_group();
  }
}

}  // namespace fa3
