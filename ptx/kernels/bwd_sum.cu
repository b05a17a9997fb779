// Behind the backward pass, where K/V heads have several parts (backward_work.h), or gradients are float32: dK and dV
// as the sums over the parts, in their order, of each 64 keys. A thread block has those of one gradient, a warp 16
// rows.
#include "../isa/grid.cuh"
#include "../tile/bwd/sum_keys.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  using namespace fa3;
  static_assert(config.threads() == 32 * strips);
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 32;
  // All of dK, then all of dV.
  const int all = int(blockIdx.x) / p.keys.tiles, tile = int(blockIdx.x) - all * p.keys.tiles;
  const int of_each = p.order.batch_heads / p.order.parts, is_dv = all >= of_each, batch_head = all - is_dv * of_each;
  const int batch = batch_head / p.keys.heads, head = batch_head - batch * p.keys.heads;
  const RowStrides& stride = is_dv ? p.keys.dv_stride : p.keys.dk_stride;
  const int row = 64 * tile + 16 * strip + lane / 4;
  const float4* const sums = key_sums(p, is_dv ? KeyGradient::dv : KeyGradient::dk, batch_head * p.order.parts, tile) +
                             256 * strip + lane;
  ptx::griddepcontrol_wait();
  sum_keys(p, is_dv, sums, int64_t(p.keys.tiles) * (16 * d),
           batch * stride.batch + head * stride.head + row * stride.row, p.visible.seqlen_k - row);
}
