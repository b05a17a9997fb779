// In front of the backward pass of q, k and v of 8 bits (fa3.h): copies of 16 bits, elements times their scales, for
// kernels that take these; and LSE and dLSE without what the forward pass added to LSE and O, as the copies lack that,
// too. One launch: a thread block has lines of a head of q, of k, of v, or rows of LSE.
#include "../tile/widen_pass.cuh"

namespace fa3 {

template <bool bf16>
FA3_DEVICE void widen(const WidenParams& p) {
  int block = blockIdx.x;
#pragma unroll 1
  for (int which = 0; which < 3; which++) {
    const WidenedTensor& t = p.tensors[which];
    if (block < t.blocks.count) {
      const HeadBlock place(t.blocks, block);
      return t.tiles ? widen_tiles<bf16>(p, t, place) : widen_rows<bf16>(p, t, place);
    }
    block -= t.blocks.count;
  }
  correct_rows<bf16>(p, HeadBlock(p.blocks, block));
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::WidenParams p) {
  if (p.bf16) fa3::widen<true>(p);
  else fa3::widen<false>(p);
}
