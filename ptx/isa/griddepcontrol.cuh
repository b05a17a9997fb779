// Programmatic dependent launch (PTX ISA 9.7.13.13).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: griddepcontrol.wait;  (9.7.13.13)
// Waits until the grids this one depends on have finished and their writes are visible.
FA3_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ptx: griddepcontrol.launch_dependents;  (9.7.13.13)
FA3_DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace fa3::ptx
