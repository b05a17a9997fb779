// TMA descriptors of the kernels' operands (the maps that ptx/params.h describes).
#pragma once
#include "driver.h"
#include "params.h"
#include "problem.h"

namespace fa3 {

// A map of the view as {head_dim, seqlen, heads, batch}, read or written in boxes of 64 columns by `rows` rows.
fa3_status encode(const Driver& driver, const char* name, const View& view, int rows, TensorMap& map);

}  // namespace fa3
