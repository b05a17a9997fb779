// How a point is measured, and what came out.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

// Of sorted numbers, with linear interpolation; q = 0.5 is the median.
double quantile(const std::vector<double>& sorted, double q);

// The numbers of the project's protocol, for this program and for those that ask it (`fa3-bench --list --json -`).
struct Protocol {
  int idle_ms = 100, warmups = 5, reps = 30, passes = 1, checked_rows = 24;
  bool clock = false;  // measure the SM clock under this load too
  bool cold = false;   // each run begins with an empty L2 cache
  bool plan_in_call = false;  // lengths are planned in each call, not once before
  uint64_t seed = 1;
};

struct Result {
  Point point;
  std::string kernel;   // that runs on the current device
  std::string problem;  // why the result is wrong, or why the library refuses the point
  bool checked = false;
  std::vector<double> pass_medians;                  // milliseconds, one a pass
  double median_ms = 0, min_ms = 0, spread = 0;      // spread: see add_pass
  double clock_mhz = 0;                              // 0: not measured
  double tflops() const { return median_ms > 0 ? point.flop() / median_ms * 1e-9 : 0; }
  double gbytes() const { return median_ms > 0 ? point.kv_bytes() / median_ms * 1e-6 : 0; }  // a second, of K and V

  // median_ms becomes the median of the passes' medians. spread is (90th - 10th percentile)/median of one pass's runs,
  // or (max - min)/median of the medians of several passes.
  void add_pass(std::vector<double> milliseconds);
};

// In place of a number of multiprocessors.
inline constexpr int current_device = 0;
// Results without a measurement, but with the kernel or the problem of each point on so many multiprocessors.
std::vector<Result> plan_points(const std::vector<Point>& points, int multiprocessors);

}  // namespace fa3::bench
