extern "C" __global__ void FA3_KERNEL(float* out) { out[0] = undeclared; }
