// In front of the backward pass: LSE and D of all query tiles, a thread block for each; and where dQ is summed up, all
// counters 0.
#include "../isa/grid.cuh"
#include "../tile/bwd/rows.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  using namespace fa3;
  ptx::griddepcontrol_launch_dependents();
  if (p.rows.dq_sums) {
    const int threads = gridDim.x * config.threads();
    for (int i = blockIdx.x * config.threads() + threadIdx.x; i <= p.order.batch_heads; i += threads)
      p.order.added[i] = 0;  // and behind them KeyOrder::claimed
    if (threadIdx.x == 0) p.visits[blockIdx.x / p.rows.tiles_at_once] = 0;
  }
  prepare_rows<config.threads()>(p.rows, blockIdx.x, p.rows.bf16, threadIdx.x);
}
