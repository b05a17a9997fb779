// Behind the backward pass: rounds dQ of the query tiles that no thread block of it has rounded (backward_work.h), a
// thread block for each; or stores it in float32. Where K/V heads have several parts, or gradients are float32, other
// thread blocks add dK and dV up.
#include "sum_keys.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  using namespace fa3;
  static_assert(config.threads() == 32 * strips);
  const int dq_tiles = p.rows.dq_sums ? tiles_left(p.order) : 0, n = blockIdx.x;
  const int tile = n < dq_tiles ? shared_tile(p.order, n + p.order.done_behind * p.order.section * p.order.share) : -1;
  ptx::griddepcontrol_wait();
  if (n >= dq_tiles) return sum_keys(p, n - dq_tiles);
  if (tile < 0) return;
  if (p.rows.store != GradientStore::rounded) return finish_fp32(p, RowTile(p.rows, tile), tile, threadIdx.x / 32);
  const Strip strip(p, tile, threadIdx.x / 32);
  if (p.order.spread.second == 0) strip.finish<8>(p, 0, p.rows.bf16);
  else strip.finish_with_second<8>(p, tile, p.rows.bf16);
}
