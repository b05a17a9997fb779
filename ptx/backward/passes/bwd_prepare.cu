// In front of the backward pass: LSE and D of the query tiles that no thread block of it prepares (backward_work.h), a
// thread block for each; then dQ = 0 of the rows that see no key, a thread block for 64 of them; and where dQ is summed
// up, all counters 0.
#include "../../isa/grid.cuh"
#include "../tile/rows.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  using namespace fa3;
  ptx::griddepcontrol_launch_dependents();
  constexpr int threads = config.threads();
  for (int i = blockIdx.x * threads + threadIdx.x; i < p.counters; i += gridDim.x * threads) p.order.added[i] = 0;
  const int tiles = heads_of_pass(p.order) * p.order.head_tiles;
  if (int(blockIdx.x) >= tiles) return zero_rows<threads>(p.rows, p.empty, blockIdx.x - tiles, threadIdx.x);
  constexpr int rows = threads / (config.d / 8);  // at a time
  prepare_delta<threads, backward_tile_rows / rows>(p.rows, blockIdx.x, p.rows.bf16, threadIdx.x);
  __syncthreads();
  if (threadIdx.x < backward_tile_rows) prepare_row(p.rows, blockIdx.x, threadIdx.x);
}
