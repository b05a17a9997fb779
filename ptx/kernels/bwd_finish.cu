// Behind the backward pass: rounds dQ of the query tiles that no thread block of it has rounded (backward_work.h), a
// thread block for each; or stores it in float32.
#include "../isa/grid.cuh"
#include "../tile/bwd/fp32_rows.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  using namespace fa3;
  static_assert(config.threads() == 32 * strips);
  const int tile = shared_tile(p.order, blockIdx.x + p.order.done_behind * p.order.section * p.order.share);
  ptx::griddepcontrol_wait();
  if (tile < 0) return;
  if (p.rows.store != GradientStore::rounded) return finish_fp32(p, RowTile(p.rows, tile), tile, threadIdx.x / 32);
  const Strip strip(p, tile, threadIdx.x / 32);
  if (p.order.spread.second == 0) strip.finish<8>(p, 0, p.rows.bf16);
  else strip.finish_with_second<8>(p, tile, p.rows.bf16);
}
