// Tasks shared out to host threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fa3.h"

namespace fa3 {

using Task = void (*)(const void* context, int64_t n, void* scratch);

// Runs task(context, n, scratch) for n from 0 to tasks - 1, on so many threads, the calling one among them (at most
// 256); 0 for one per usable core (cores.h). Each has scratch_bytes of its own, aligned to 64 bytes; if all of that
// cannot be had, nothing is run. Where the system refuses more threads, fewer do the same work.
fa3_status run_tasks(Task task, const void* context, int64_t tasks, int threads, size_t scratch_bytes);

}  // namespace fa3
