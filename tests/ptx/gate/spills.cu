// 64 values live across a loop, in 32 registers.
extern "C" __global__ void __maxnreg__(32) FA3_KERNEL(float* data, int n) {
  float x[64], y[64];
#pragma unroll
  for (int i = 0; i < 64; i++) x[i] = data[i];
  for (int j = 0; j < n; j++) {
#pragma unroll
    for (int i = 0; i < 64; i++) y[i] = x[i] * x[63 - i] + x[(5 * i + 7) % 64];
#pragma unroll
    for (int i = 0; i < 64; i++) x[i] = y[i];
  }
#pragma unroll
  for (int i = 0; i < 64; i++) data[i] = x[i];
}
