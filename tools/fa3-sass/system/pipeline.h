// Work done by several threads and handed over in order, with no more of it under way than the memory is meant for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace sass {

struct Pipeline {
  size_t count = 0, threads = 1;
  uint64_t budget = 0;  // for what is under way, and what is done and not handed over yet; one at least always is
};

// use(make(i)) for each i: `make` on any thread, `use` on this one. What they throw is thrown here, in its turn.
template <class Cost, class Make, class Use>
void in_order(const Pipeline& pipeline, Cost cost, Make make, Use use) {
  using Result = decltype(make(size_t{}));
  struct Slot {
    std::optional<Result> result;
    std::exception_ptr failure;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Slot> slots(pipeline.count);
  size_t next = 0, used = 0;
  uint64_t spent = 0;
  bool stopped = false;
  const auto work = [&] {
    for (;;) {
      std::unique_lock lock(mutex);
      const auto affordable = [&] { return next == used || spent + cost(next) <= pipeline.budget; };
      changed.wait(lock, [&] { return stopped || next == pipeline.count || affordable(); });
      if (stopped || next == pipeline.count) return;
      const size_t mine = next++;
      spent += cost(mine);
      lock.unlock();
      Slot slot;
      try {
        slot.result = make(mine);
      } catch (...) {
        slot.failure = std::current_exception();
      }
      lock.lock();
      slots[mine] = std::move(slot);
      lock.unlock();
      changed.notify_all();
    }
  };
  std::vector<std::thread> threads;
  const auto stop = [&] {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  };
  try {
    while (threads.size() < std::min(pipeline.threads, pipeline.count)) threads.emplace_back(work);
    while (used < pipeline.count) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return slots[used].result || slots[used].failure; });
      Slot slot = std::move(slots[used]);
      slots[used] = {};
      lock.unlock();
      if (slot.failure) std::rethrow_exception(slot.failure);
      use(std::move(*slot.result));
      slot.result.reset();
      lock.lock();
      spent -= cost(used++);
      lock.unlock();
      changed.notify_all();
    }
  } catch (...) {
    stop();
    throw;
  }
  stop();
}

}  // namespace sass
