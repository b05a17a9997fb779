// A row of the table, and a problem's schedule on it, as the public fa3_kernel_info.
#pragma once
#include "schedule.h"

namespace fa3 {

// Writes as much of `info` as its struct_size covers. Without a schedule, what is about a call is 0.
fa3_status write_info(fa3_kernel_info* info, const Variant& variant, const Schedule* schedule, int multiprocessors);

}  // namespace fa3
