// In front of the backward pass of q, k and v of 8 bits (fa3.h): copies of 16 bits, elements times their scales, for
// kernels that take these; and LSE and dLSE without what the forward pass added to LSE and O, as the copies lack that,
// too. One launch: a thread block has lines of q, of k, of v (rows, or V tiles), or rows of LSE.
#include "../tile/widen.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::WidenParams p) {
  using namespace fa3;
  int block = blockIdx.x;
#pragma unroll 1
  for (int which = 0; which < 3; which++) {
    const WidenedTensor& t = p.tensors[which];
    if (block < t.thread_blocks) return t.tiles ? widen_tiles(p, t, block) : widen_rows(p, t, block);
    block -= t.thread_blocks;
  }
  correct_rows(p, block);
}
