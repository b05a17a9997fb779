// A row of the table, and a problem's schedule on it, as the public fa3_kernel_info.
#pragma once
#include "select.h"

namespace fa3 {

// Writes as much of `info` as its struct_size covers. tiles and grid are 0 without a problem and its selection.
fa3_status write_info(fa3_kernel_info* info, const Variant& variant, const Problem* problem,
                      const Selection* selection);

}  // namespace fa3
