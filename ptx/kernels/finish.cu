// fa3_quantize, between the first look at x and the second: sums become means, and extremes what scales follow from.
#include "../tile/finish.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  using Granularity = QuantizeParams::Granularity;
  FinishShared& shared = finish_shared();
  ptx::griddepcontrol_launch_dependents();
  if (p.hadamard) make_signs(p, shared.signs);
  ptx::griddepcontrol_wait();
  float largest = 0.f;
  for (int number = blockIdx.x; number < p.batch * p.heads; number += gridDim.x) {
    const float own = finish_head(p, shared, number);
    largest = fmaxf(largest, own);
    if (p.scales != Granularity::head) continue;
    const float of_head = largest_of_block(shared.largest, own);
    if (threadIdx.x == 0) p.largest[number] = of_head;
  }
  if (p.scales != Granularity::tensor) return;
  largest = largest_of_block(shared.largest, largest);
  if (threadIdx.x == 0) p.largest[blockIdx.x] = largest;
}
