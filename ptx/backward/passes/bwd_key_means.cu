// In front of the backward pass with FA3_FLAG_CENTERED_K: a mean of the keys (mean_key in backward_params.h) of each
// sequence and each head of K and V, of those keys that a row sees, a thread block for each. A mean that is not finite
// becomes 0.
#include "../../isa/grid.cuh"
#include "../../tile/shared.cuh"
#include "../tile/rows.cuh"

namespace fa3 {

constexpr int threads = config.threads();
constexpr int lanes = d / 8, rows_at_once = threads / lanes;
constexpr int in_flight = most_mean_keys / rows_at_once < 8 ? most_mean_keys / rows_at_once : 8;
static_assert(config.smem_bytes() >= threads * 8 * int(sizeof(float)));

FA3_DEVICE void find_mean(const CenteredBackwardParams& p, int sequence, int head) {
  const Unseen rows = unseen_rows(p.call, sequence).k;
  const int keys = rows.seen.end - rows.seen.begin, reads = min(keys, most_mean_keys);
  const int column = threadIdx.x % lanes * 8, first = threadIdx.x / lanes;
  const bool exists = column < p.rows.head_dim;
  const uint16_t* const k = p.k_rows + rows.batch * p.k_stride.batch + head * p.k_stride.head +
                            rows.seen.begin * p.k_stride.row + column;
  float sums[8] = {};
#pragma unroll 1
  for (int n = first; n < reads; n += in_flight * rows_at_once) {
    uint4 x[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; i++) {
      const int at = n + i * rows_at_once;
      x[i] = {};
      if (exists && at < reads) x[i] = __ldg(reinterpret_cast<const uint4*>(k + mean_key(at, keys) * p.k_stride.row));
    }
#pragma unroll
    for (int i = 0; i < in_flight; i++) {
      const uint32_t pairs[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const float2 two = unpack(pairs[c], p.rows.bf16);
        sums[2 * c] += two.x, sums[2 * c + 1] += two.y;
      }
    }
  }
  float* const thread_sums = reinterpret_cast<float*>(shared_memory());  // [rows_at_once][d]
#pragma unroll
  for (int c = 0; c < 8; c++) thread_sums[first * d + column + c] = sums[c];
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += threads) {
    float sum = 0.f;
#pragma unroll
    for (int row = 0; row < rows_at_once; row++) sum += thread_sums[row * d + c];
    const float mean = reads > 0 ? sum / float(reads) : 0.f;
    p.key_mean(sequence, head, d)[c] = fabsf(mean) < INFINITY ? mean : 0.f;
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::CenteredBackwardParams p) {
  using namespace fa3;
  ptx::griddepcontrol_launch_dependents();
  const int sequence = int(blockIdx.x) / p.keys.heads;
  find_mean(p, sequence, int(blockIdx.x) - sequence * p.keys.heads);
  ptx::griddepcontrol_wait();  // the next pass waits for this one alone, and needs the list of the one before
}
