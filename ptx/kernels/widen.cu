// In front of the backward pass of q, k and v of 8 bits (fa3.h): copies of 16 bits, elements times their scales, for
// kernels that take these; and LSE and dLSE without what the forward pass added to LSE and O, as the copies lack that,
// too. One launch: a thread block has lines of a head of q, of k, of v, or rows of LSE.
#include "../tile/widen_pass.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::WidenParams p) {
  if (p.bf16) fa3::widen<true>(p);
  else fa3::widen<false>(p);
}
