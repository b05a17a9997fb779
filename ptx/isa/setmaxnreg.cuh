// setmaxnreg: registers move between warpgroups (PTX ISA, Miscellaneous Instructions). ptxas ignores it (C7507, C7508)
// unless the kernel has __launch_bounds__(threads, 1).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: setmaxnreg.inc.sync.aligned.u32 Count;  (setmaxnreg)
template <int Count>
FA3_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// ptx: setmaxnreg.dec.sync.aligned.u32 Count;  (setmaxnreg)
template <int Count>
FA3_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

}  // namespace fa3::ptx
