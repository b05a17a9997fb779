// Code for another architecture than Hopper's.
extern "C" __global__ void doubled(float* values) { values[threadIdx.x] *= 2; }
