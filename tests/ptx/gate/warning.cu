extern "C" __global__ void FA3_KERNEL(float* out) {
  int unused = 1;
  out[threadIdx.x] = 1.f;
}
