// Host time of one warm fa3_forward call.
#pragma once
#include "cuda_driver.h"

namespace fa3::tools {

struct Overhead {
  double median_us = 0, min_us = 0, p99_us = 0;
  // Median of cuLaunchKernel alone: an empty kernel with 960 bytes of parameters (ours: 768; 3968 with a list of work).
  double launch_us = 0;
  int calls = 0;
};

// Times each of `calls` calls on its own, on a tiny problem. The parameters (pointers, lengths) change from call to
// call, and the stream is drained every 64 calls, so that neither remembered descriptors nor a full launch queue is
// measured. Before that it makes calls for a quarter of a second: a processor that was idle starts at a low clock.
// Needs a current context with the kernels loaded.
Overhead host_overhead(int calls = 4096);

}  // namespace fa3::tools
