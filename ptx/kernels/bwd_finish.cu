// Behind the backward pass: dQ of the query tiles that no thread block of it finishes (KeyOrder in params.h), a thread
// block for each.
#include "../isa/grid.cuh"
#include "../tile/bwd/rows.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  using namespace fa3;
  static_assert(config.threads() == 32 * strips);
  const int tile = shared_tile(p.order, blockIdx.x + p.order.done_behind * p.order.section * p.order.share);
  ptx::griddepcontrol_wait();
  if (tile >= 0) finish_strip<8>(p, tile, threadIdx.x / 32, p.rows.bf16);
}
