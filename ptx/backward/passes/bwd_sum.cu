// Behind the backward pass above 128 columns, where K/V heads have several parts (backward_work.h), or gradients are
// float32: dK and dV as the sums over the parts.
#include "sum_keys.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  fa3::ptx::griddepcontrol_wait();
  fa3::sum_keys(p, blockIdx.x);
}
