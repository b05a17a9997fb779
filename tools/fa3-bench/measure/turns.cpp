#include "measure/turns.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace fa3::bench {
namespace {

double median_of(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return quantile(numbers, 0.5);
}

double median_of_pass(const Protocol& protocol, const tools::Stream& stream, const std::function<void()>& enqueue) {
  std::vector<tools::Event> events(2 * size_t(protocol.reps));
  std::this_thread::sleep_for(std::chrono::milliseconds(protocol.idle_ms));
  for (int i = 0; i < protocol.warmups; ++i) enqueue();
  for (size_t i = 0; i < events.size(); i += 2) {
    events[i].record(stream);
    enqueue();
    events[i + 1].record(stream);
  }
  stream.synchronize();
  std::vector<double> us;
  for (size_t i = 0; i < events.size(); i += 2) us.push_back(1000 * events[i + 1].milliseconds_since(events[i]));
  return median_of(us);
}

}  // namespace

std::vector<double> median_us(const Protocol& protocol, const tools::Stream& stream,
                              const std::vector<std::function<void()>>& enqueue) {
  std::vector<std::vector<double>> medians(enqueue.size());
  for (int pass = 0; pass < protocol.passes; ++pass)
    for (size_t i = 0; i < enqueue.size(); ++i) medians[i].push_back(median_of_pass(protocol, stream, enqueue[i]));
  std::vector<double> all;
  for (const std::vector<double>& call_medians : medians) all.push_back(median_of(call_medians));
  return all;
}

}  // namespace fa3::bench
