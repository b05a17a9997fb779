// As the gate wants it: registers move, and nothing touches the accumulators before the wait.
#include "isa/setmaxnreg.cuh"
#include "isa/wgmma.cuh"
using namespace fa3::ptx;

extern "C" __global__ void __launch_bounds__(128, 1) FA3_KERNEL(float* out, uint64_t a, uint64_t b) {
  setmaxnreg_inc<160>();
  float d[8] = {};
  wgmma_fence();
  wgmma_m64k16_f32_bf16_ss<0, 0>(d, a, b, 0);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  wgmma_owned(d);
  for (int i = 0; i < 8; i++) out[i] = d[i];
}
