// The library's calls that points stand for: their inputs and outputs on the device, and what they computed, checked.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "cuda_driver.h"
#include "result.h"

namespace fa3::bench {

class Calls {
 public:
  // With memory for the largest of the points.
  Calls(const Protocol& protocol, const std::vector<Point>& points);

  // What enqueues the point's call, as long as the point lives and until the next is prepared. Outputs hold poison. For
  // the backward pass the forward pass runs here, which writes its o and lse.
  using Enqueue = std::function<void()>;
  Enqueue prepare(const Point& point);

  // Runs the call that was prepared for the point, and compares its results with float64; of the backward pass also
  // those of the forward pass. "" if they are right.
  std::string check(const Point& point, const Enqueue& enqueue);

  const tools::Stream& stream() const { return stream_; }

 private:
  enum Input { q, k, v, dout, inputs };
  struct Inputs {
    std::vector<uint8_t> host[inputs];  // bytes of the packed tensors
    tools::DeviceBuffer device[inputs];
  };
  const Inputs& inputs_of(fa3_dtype dtype);
  void* v_on_device(const Point& point, const Inputs& in);
  void forward(const fa3_forward_params& params) const;
  void backward(const fa3_backward_params& params) const;

  Protocol protocol_;
  tools::Context context_;
  tools::Stream stream_;
  size_t input_elements_[inputs] = {};
  size_t workspace_bytes_ = FA3_FORWARD_WORKSPACE_BYTES;
  std::map<fa3_dtype, Inputs> inputs_;
  tools::DeviceBuffer workspace_, o_, lse_, dq_, dk_, dv_, tiles_, scales_;  // all scales are 1
};

}  // namespace fa3::bench
