// Grids that follow one another (PTX ISA, Parallel Synchronization and Communication Instructions). Both do nothing in
// a grid that was launched without the attribute for it (programmatic stream serialization).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: griddepcontrol.launch_dependents;  (griddepcontrol)
// When all thread blocks have said so, or have ended, the next grid may start, and then runs beside this one.
FA3_DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ptx: griddepcontrol.wait;  (griddepcontrol)
// Until the grid before has ended, and what it wrote is visible.
FA3_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ptx: mov.u32 d, %ctaid.x;  (mov; Special Registers)
// blockIdx.x, read here: what is computed from it need not wait in registers from where it was read before.
FA3_DEVICE int ctaid_x() {
  int d;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(d));
  return d;
}

// ptx: mov.u32 d, %nctaid.x;  (mov; Special Registers)
// gridDim.x, read here.
FA3_DEVICE int nctaid_x() {
  int d;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(d));
  return d;
}

// No instruction: the compiler keeps this number in a register, and does not compute it again where it is used.
FA3_DEVICE int kept(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

}  // namespace fa3::ptx
