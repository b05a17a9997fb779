// Times points on the GPU by the project's protocol.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "point.h"

namespace fa3::bench {

struct Protocol {
  int idle_ms = 100, warmups = 5, reps = 30, checked_rows = 24;
  bool clock = false;  // measure the SM clock under this load too
  uint64_t seed = 1;
};

struct Result {
  Point point;
  std::string kernel, problem;  // problem: why the result is wrong, or why the call was refused
  bool checked = false;
  std::vector<double> pass_medians;                  // milliseconds, one a pass
  double median_ms = 0, min_ms = 0, spread = 0;      // spread: see add_pass
  double clock_mhz = 0;                              // 0: not measured
  double tflops() const { return median_ms > 0 ? point.flop() / median_ms * 1e-9 : 0; }

  // median_ms becomes the median of the passes' medians. spread is (90th - 10th percentile)/median of one pass's runs, or
  // (max - min)/median of the medians of several passes.
  void add_pass(std::vector<double> milliseconds);
};

class Bench {
 public:
  Bench(const Protocol& protocol, const std::vector<Point>& points);

  // One pass over one point: checks before it times, on the first pass.
  void run(Result& result);

 private:
  struct Inputs {
    std::vector<uint16_t> host[3];
    tools::DeviceBuffer device[3];
  };
  const Inputs& inputs(fa3_dtype dtype);
  void enqueue(const fa3_forward_params& params) const;
  void check(Result& result, const Inputs& inputs, const fa3_forward_params& params);
  double measure_clock(const fa3_forward_params& params) const;

  Protocol protocol_;
  tools::Context context_;
  tools::Stream stream_;
  size_t q_elements_ = 0, kv_elements_ = 0, lse_elements_ = 0;
  std::map<fa3_dtype, Inputs> inputs_;
  tools::DeviceBuffer workspace_, o_, lse_;
};

}  // namespace fa3::bench
