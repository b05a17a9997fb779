#include "params.h"
#include "variant.h"
extern "C" __global__ void FA3_KERNEL(const __grid_constant__ fa3::ForwardParams p) {}
