// Copies of 16 bits of q, k and v of 8 bits (fa3.h), elements times their scales, for kernels that take these: in
// front of the backward pass, with LSE and dLSE without what the forward pass added to LSE and O, as the copies lack
// that, too; and of k and v in front of the forward pass. One launch: a thread block has lines of a head of q, of k,
// of v, or rows of LSE.
#include "../isa/grid.cuh"
#include "../tile/widen_pass.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::WidenParams p) {
  fa3::ptx::griddepcontrol_launch_dependents();
  if (p.bf16) fa3::widen<true>(p);
  else fa3::widen<false>(p);
  fa3::ptx::griddepcontrol_wait();  // the next kernel waits for this one alone, and needs the list of the one before
}
