// A TMA descriptor as kernels take it among their parameters. Plain C++, read by both sides.
#pragma once
#include <cstdint>

namespace fa3 {

// Same size and alignment as the driver's CUtensorMap.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

}  // namespace fa3
