// One kernel onto a stream.
#pragma once
#include "device/driver.h"
#include "table/row.h"

namespace fa3 {

// `params` is the row's parameter block. If `early`, the kernel may start while the one before it on the stream ends:
// it waits for that one itself (ptx/isa/grid.cuh).
fa3_status enqueue(const Driver& driver, const Row& row, CUfunction function, int64_t thread_blocks, void* params,
                   bool early, CUstream stream);

}  // namespace fa3
