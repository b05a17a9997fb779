// C7510: a function that is not inlined is called while a wgmma is in flight.
#include "isa/wgmma.cuh"
using namespace fa3::ptx;

extern "C" __global__ void __launch_bounds__(128, 1) FA3_KERNEL(float* out, uint64_t a, uint64_t b, float (*f)(float)) {
  float d[8] = {};
  wgmma_fence();
  wgmma_m64k16_f32_bf16_ss<0, 0>(d, a, b, 0);
  wgmma_commit_group();
  out[8] = f(out[9]);
  wgmma_wait_group<0>();
  for (int i = 0; i < 8; i++) out[i] = d[i];
}
