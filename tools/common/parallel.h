// Splits [0, count) over the machine's cores.
#pragma once
#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace fa3::tools {

// Calls body(begin, end) on disjoint ranges that cover [0, count). `grain`: fewer items than that are not worth a
// thread.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, cores);
  std::vector<std::jthread> helpers;
  for (int64_t t = 1; t < threads; ++t)
    helpers.emplace_back([&, t] { body(count * t / threads, count * (t + 1) / threads); });
  body(0, count / threads);
}

}  // namespace fa3::tools
