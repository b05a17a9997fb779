// Programmatic dependent launch (PTX ISA, Parallel Synchronization and Communication Instructions).
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: griddepcontrol.wait;  (griddepcontrol)
// Waits until the grids this one depends on have finished and their writes are visible.
FA3_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ptx: griddepcontrol.launch_dependents;  (griddepcontrol)
FA3_DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace fa3::ptx
