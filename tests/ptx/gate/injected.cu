// C7517: the accumulators are touched before the wait, so ptxas waits earlier.
#include "isa/wgmma.cuh"
using namespace fa3::ptx;

extern "C" __global__ void __launch_bounds__(128, 1) FA3_KERNEL(float* out, uint64_t a, uint64_t b, int n) {
  float d[8] = {};
#pragma unroll 1
  for (int j = 0; j < n; j++) {
    wgmma_fence();
    wgmma_m64k16_f32_bf16_ss<0, 0>(d, a + j, b, 1);
    wgmma_commit_group();
    for (int i = 0; i < 8; i++) d[i] *= 0.5f;
    wgmma_wait_group<0>();
  }
  for (int i = 0; i < 8; i++) out[i] = d[i];
}
