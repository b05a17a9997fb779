// A row of the table, and a call's plan, as the public fa3_kernel_info.
#pragma once
#include "backward/backward.h"
#include "forward/forward.h"

namespace fa3 {

// Writes as much of `info` as its struct_size covers. What is about a call is 0.
fa3_status write_info(fa3_kernel_info* info, const Row& row);

// Launch number `launch` of the plan for so many multiprocessors; where there is none, launch 0 is the row that was
// planned for.
fa3_status write_info(fa3_kernel_info* info, const ForwardPlan& plan, int launch, int multiprocessors);

// The same of the backward pass.
fa3_status write_info(fa3_kernel_info* info, const BackwardPlan& plan, int launch, int multiprocessors);

}  // namespace fa3
