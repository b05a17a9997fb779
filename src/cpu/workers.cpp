#include "cpu/workers.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "cpu/cores.h"
#include "error.h"

namespace fa3 {
namespace {

struct Shared {
  Task task;
  const void* context;
  int64_t tasks, next;  // next is claimed atomically
};

struct Worker {
  Shared* shared;
  void* scratch;
  pthread_t thread;
};

void* run_worker(void* argument) {
  const Worker& worker = *static_cast<Worker*>(argument);
  Shared& shared = *worker.shared;
  for (;;) {
    const int64_t n = __atomic_fetch_add(&shared.next, 1, __ATOMIC_RELAXED);
    if (n >= shared.tasks) return nullptr;
    shared.task(shared.context, n, worker.scratch);
  }
}

}  // namespace

fa3_status run_tasks(Task task, const void* context, int64_t tasks, int threads, size_t scratch_bytes) {
  constexpr int max_threads = 256;
  constexpr size_t alignment = 64;
  const size_t bytes = (scratch_bytes + alignment - 1) / alignment * alignment;
  Worker workers[max_threads];
  const int wanted = static_cast<int>(std::min<int64_t>({threads ? threads : usable_cores(), max_threads, tasks}));
  auto* const scratch = static_cast<char*>(std::aligned_alloc(alignment, bytes * wanted));
  if (scratch == nullptr)
    return fail(FA3_ERROR_OUT_OF_MEMORY, "no host memory for %zu bytes of scratch", bytes * wanted);
  Shared shared{task, context, tasks, 0};
  int started = 1;
  workers[0] = {&shared, scratch, pthread_self()};
  for (; started < wanted; ++started) {
    workers[started] = {&shared, scratch + started * bytes, {}};
    if (pthread_create(&workers[started].thread, nullptr, run_worker, &workers[started]) != 0) break;
  }
  run_worker(&workers[0]);
  for (int i = 1; i < started; ++i) pthread_join(workers[i].thread, nullptr);
  std::free(scratch);
  return FA3_OK;
}

}  // namespace fa3
