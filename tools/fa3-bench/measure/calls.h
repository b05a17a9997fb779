// The library's calls that points stand for: their inputs and outputs on the device, and what they computed, checked.
#pragma once
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cuda_driver.h"
#include "report/result.h"

namespace fa3::bench {

class Calls {
 public:
  // With memory for the largest of the points.
  Calls(const Protocol& protocol, const std::vector<Point>& points);

  // What enqueues the point's call, as long as the point lives and until the next is prepared. Outputs hold poison. For
  // the backward pass the forward pass runs here, which writes its o and lse; and lengths are planned here, unless the
  // protocol wants that in each call.
  using Enqueue = std::function<void()>;
  Enqueue prepare(const Point& point);

  // Runs the call that was prepared for the point, and compares its results with float64; of the backward pass also
  // those of the forward pass. "" if they are right.
  std::string check(const Point& point, const Enqueue& enqueue);

  // Enqueues what leaves nothing of a call in the L2 cache, if the protocol wants that.
  void empty_cache() const;

  const tools::Stream& stream() const { return stream_; }

 private:
  enum Input { q, k, v, dout, inputs };
  struct Numbers {
    std::vector<uint8_t> host;  // bytes; the tensor on the device repeats them
    tools::DeviceBuffer device;
  };
  static fa3_dtype dtype_of(const Point& point, Input input);
  static int64_t elements_of(const Point& point, Input input);
  const Numbers& numbers_of(Input input, fa3_dtype dtype);
  void* on_device(const Point& point, Input input) { return numbers_of(input, dtype_of(point, input)).device.at(0); }
  const void* on_host(const Point& point, Input input) {
    return numbers_of(input, dtype_of(point, input)).host.data();
  }
  void* v_on_device(const Point& point);
  template <class T>
  void* upload(const std::vector<T>& numbers);
  Addresses addresses_of(const Point& point);
  void plan_forward(fa3_forward_params& params);
  void forward(const fa3_forward_params& params) const;
  void backward(const fa3_backward_params& params) const;

  Protocol protocol_;
  tools::Context context_;
  tools::Stream stream_;
  std::map<std::pair<Input, fa3_dtype>, int64_t> elements_;
  size_t workspace_bytes_ = FA3_FORWARD_WORKSPACE_BYTES;
  std::map<std::pair<Input, fa3_dtype>, Numbers> numbers_;
  tools::DeviceBuffer workspace_, o_, lse_, dq_, dk_, dv_, dsinks_, tiles_, scales_;  // all scales are 1
  tools::DeviceBuffer schedule_, cache_, copy_;                                       // the last two: of empty_cache
  std::vector<tools::DeviceBuffer> own_;  // the prepared point's lengths, page table, sinks and slopes
};

}  // namespace fa3::bench
