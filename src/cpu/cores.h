#pragma once

namespace fa3 {

// How many threads of this process can run at the same time: the CPUs of its affinity mask, but not more than the CPU
// quotas of its control groups allow, rounded up. `root` is where /proc and /sys are found.
int usable_cores(const char* root = "");

}  // namespace fa3
