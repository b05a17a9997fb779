// Behind the backward pass of packed lengths: rounds dQ of the query tiles that no thread block of it has rounded
// (ListedOthersStrips), a thread block for each; then adds up the gradient of each sink, a thread block for each.
#include "../isa/grid.cuh"
#include "../tile/bwd/rows.cuh"
#include "../tile/bwd/unseen.cuh"
#include "../tile/shared.cuh"

namespace fa3 {

constexpr int threads = config.threads();

FA3_DEVICE void add_sink_terms(const PlannedBackwardParams& p, int head) {
  const float* const sums = p.sinks.sums + int64_t(head) * p.sinks.each;
  float sum = 0.f;
  for (int i = threadIdx.x; i < p.sinks.each; i += threads) sum += sums[i];
  sum = sum_of_lanes(sum);
  float* const of_warps = reinterpret_cast<float*>(shared_memory());
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sum = 0.f;
  for (int warp = 0; warp < threads / 32; warp++) sum += of_warps[warp];
  p.sinks.dsinks[head * p.sinks.dsinks_stride] = 0.f - sum;
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::PlannedBackwardParams p) {
  using namespace fa3;
  static_assert(threads == 32 * strips);
  ptx::griddepcontrol_wait();
  if (int(blockIdx.x) >= p.finished_tiles) return add_sink_terms(p, blockIdx.x - p.finished_tiles);
  const int number = int(blockIdx.x) / p.rows.heads, head = int(blockIdx.x) - number * p.rows.heads;
  const int visit = number / p.rows.tiles_per_visit;
  const PlannedTile planned = p.tiles[visit];
  if (planned.sequence < 0) return;
  if (p.order.done_behind > 0) {  // has a thread block rounded it?
    const int tile = planned.tile * p.rows.tiles_per_visit + number - visit * p.rows.tiles_per_visit;
    const ListedBlock owner{planned.first_block + tile / max(planned.share, 1), head / p.heads_per_kv};
    const int after = number_of(*p.counts, p.order.section, owner) + p.order.behind;
    if (after < p.counts->blocks * p.order.heads) return;
  }
  const int first = (planned.tile * p.rows.tiles_per_visit + number - visit * p.rows.tiles_per_visit) *
                    backward_tile_rows;
  const RowTile place(p.sequences[planned.sequence], head, first);
  if (place.rows <= 0) return;
  Strip(p, place, head * p.rows.tiles + number, threadIdx.x / 32).finish<8>(p, 0, p.rows.bf16);
}
