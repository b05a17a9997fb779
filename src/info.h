// A row of the table, and a call's plan on it, as the public fa3_kernel_info.
#pragma once
#include "plan.h"

namespace fa3 {

// Writes as much of `info` as its struct_size covers. Without a plan, what is about a call is 0.
fa3_status write_info(fa3_kernel_info* info, const Row& row, const Plan* plan, int launch, int multiprocessors);

}  // namespace fa3
