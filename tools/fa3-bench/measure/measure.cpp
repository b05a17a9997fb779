#include "measure/measure.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "measure/nvml.h"

namespace fa3::bench {

// The clock that power allows: sampled while the same call repeats for a third of a second, after as long a run-up.
double Bench::measure_clock(const Calls::Enqueue& enqueue) const {
  const Nvml nvml;
  std::vector<double> samples;
  const auto start = std::chrono::steady_clock::now();
  for (double seconds = 0; seconds < 0.7;
       seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()) {
    for (int i = 0; i < 8; ++i) enqueue();
    if (seconds > 0.35) samples.push_back(nvml.sm_clock_mhz());
    calls_.stream().synchronize();
  }
  std::sort(samples.begin(), samples.end());
  return samples.empty() ? 0 : quantile(samples, 0.5);
}

void Bench::run(Result& result) {
  if (!result.problem.empty()) return;
  const Calls::Enqueue enqueue = calls_.prepare(result.point);
  const bool first_pass = result.pass_medians.empty();
  if (first_pass && protocol_.checked_rows > 0) {
    result.problem = calls_.check(result.point, enqueue);
    result.checked = result.problem.empty();
    if (!result.checked) return;
  }
  if (first_pass) enqueue();  // loads the kernel, if fa3_preload has not
  std::vector<tools::Event> events(2 * size_t(protocol_.reps));
  std::this_thread::sleep_for(std::chrono::milliseconds(protocol_.idle_ms));
  for (int i = 0; i < protocol_.warmups; ++i) enqueue();
  for (size_t i = 0; i < events.size(); i += 2) {
    calls_.empty_cache();
    events[i].record(calls_.stream());
    enqueue();
    events[i + 1].record(calls_.stream());
  }
  calls_.stream().synchronize();
  std::vector<double> milliseconds;
  for (size_t i = 0; i < events.size(); i += 2) milliseconds.push_back(events[i + 1].milliseconds_since(events[i]));
  result.add_pass(std::move(milliseconds));
  if (protocol_.clock) result.clock_mhz = measure_clock(enqueue);
}

}  // namespace fa3::bench
