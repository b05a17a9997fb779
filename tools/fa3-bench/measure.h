// Times points on the GPU by the project's protocol.
#pragma once
#include <map>
#include <vector>

#include "cuda_driver.h"
#include "result.h"

namespace fa3::bench {

class Bench {
 public:
  Bench(const Protocol& protocol, const std::vector<Point>& points);

  // One pass over one point: checks before it times, on the first pass. Nothing where there is a problem already.
  void run(Result& result);

 private:
  struct Inputs {
    std::vector<uint8_t> host[3];  // bytes of the packed tensors
    tools::DeviceBuffer device[3];
  };
  const Inputs& inputs(fa3_dtype dtype);
  void* v_on_device(const Point& point, const Inputs& inputs);
  void enqueue(const fa3_forward_params& params) const;
  void check(Result& result, const Inputs& inputs, const fa3_forward_params& params);
  double measure_clock(const fa3_forward_params& params) const;

  Protocol protocol_;
  tools::Context context_;
  tools::Stream stream_;
  size_t q_elements_ = 0, kv_elements_ = 0, lse_elements_ = 0, scale_elements_ = 0, tile_bytes_ = 0;
  size_t workspace_bytes_ = FA3_FORWARD_WORKSPACE_BYTES;
  std::map<fa3_dtype, Inputs> inputs_;
  tools::DeviceBuffer workspace_, o_, lse_, tiles_, scales_;  // all scales are 1
};

}  // namespace fa3::bench
