#include "calls.h"

#include <algorithm>
#include <stdexcept>

#include "check.h"
#include "check_gradients.h"
#include "fp8.h"
#include "params.h"
#include "random.h"
#include "samples.h"

namespace fa3::bench {

// Of all the calls that a point takes.
static size_t workspace_size(const Point& p) {
  const size_t forward = tools::workspace_size(p.shapes());
  return p.is_backward() ? std::max(forward, tools::workspace_size(p.backward_shapes())) : forward;
}

Calls::Calls(const Protocol& protocol, const std::vector<Point>& points) : protocol_(protocol) {
  if (fa3_preload() != FA3_OK) throw tools::CudaError(std::string("fa3_preload: ") + fa3_last_error_message());
  size_t o_elements = 0, lse_elements = 0, scale_elements = 0, tile_bytes = 0;
  const auto grow = [](size_t& size, int64_t to) { size = std::max(size, size_t(to)); };
  for (const Point& p : points) {
    grow(input_elements_[q], p.q_elements());
    grow(input_elements_[k], p.k_elements());
    grow(input_elements_[v], p.v_elements());
    grow(o_elements, p.o_elements());
    if (p.is_backward()) grow(input_elements_[dout], p.o_elements());
    grow(lse_elements, p.lse_elements());
    grow(scale_elements, p.scale_elements());
    if (p.v == VForm::tiles) grow(tile_bytes, p.batch * p.kv_heads * p.v_groups() * p.v_dim() * v_tile_keys);
    try {
      workspace_bytes_ = std::max(workspace_bytes_, workspace_size(p));
    } catch (const std::runtime_error&) {
      // The point's result tells that the library refuses it.
    }
  }
  workspace_ = tools::DeviceBuffer(workspace_bytes_);
  o_ = tools::DeviceBuffer(o_elements * 2);
  lse_ = tools::DeviceBuffer(lse_elements * 4);
  if (input_elements_[dout]) {
    dq_ = tools::DeviceBuffer(input_elements_[q] * 2);
    dk_ = tools::DeviceBuffer(input_elements_[k] * 2);
    dv_ = tools::DeviceBuffer(input_elements_[v] * 2);
  }
  if (tile_bytes) tiles_ = tools::DeviceBuffer(tile_bytes);
  if (scale_elements) {
    const std::vector<float> ones(scale_elements, 1.0f);
    scales_ = tools::DeviceBuffer(ones.size() * 4);
    scales_.upload(ones.data(), ones.size() * 4);
  }
}

// All points of a dtype read the same N(0,1) numbers, in their own shapes.
const Calls::Inputs& Calls::inputs_of(fa3_dtype dtype) {
  if (auto found = inputs_.find(dtype); found != inputs_.end()) return found->second;
  Inputs& made = inputs_[dtype];
  for (int t = 0; t < inputs; ++t) {
    const size_t count = input_elements_[t];
    const uint64_t seed = tools::mix(protocol_.seed, uint64_t(t));
    if (dtype == FA3_DTYPE_E4M3) {
      made.host[t] = normal_e4m3(seed, count);
    } else {
      made.host[t].resize(count * 2);
      tools::fill_normal(seed, reinterpret_cast<uint16_t*>(made.host[t].data()), count, dtype);
    }
    made.device[t] = tools::DeviceBuffer(made.host[t].size());
    made.device[t].upload(made.host[t].data(), made.host[t].size());
  }
  return made;
}

// Where the point's V lies in its form. Tiles are made anew for each point, as they depend on its shape.
void* Calls::v_on_device(const Point& point, const Inputs& in) {
  if (point.v == VForm::rows) return in.device[v].at(0);
  const std::vector<uint8_t> tiles = tiles_of(point, in.host[v].data());
  tiles_.upload(tiles.data(), tiles.size());
  return tiles_.at(0);
}

void Calls::forward(const fa3_forward_params& params) const {
  if (fa3_forward(&params, workspace_.at(0), workspace_bytes_, stream_.get()) != FA3_OK)
    throw tools::CudaError(std::string("fa3_forward: ") + fa3_last_error_message());
}

void Calls::backward(const fa3_backward_params& params) const {
  if (fa3_backward(&params, workspace_.at(0), workspace_bytes_, stream_.get()) != FA3_OK)
    throw tools::CudaError(std::string("fa3_backward: ") + fa3_last_error_message());
}

Calls::Enqueue Calls::prepare(const Point& point) {
  for (const tools::DeviceBuffer* output : {&o_, &lse_, &dq_, &dk_, &dv_}) output->fill(poison_byte);
  const Inputs& in = inputs_of(point.dtype);
  const fa3_forward_params params = point.params(in.device[q].at(0), in.device[k].at(0), v_on_device(point, in),
                                                 o_.at(0), lse_.at(0), scales_.at(0));
  if (!point.is_backward()) return [this, params] { forward(params); };
  forward(params);
  const fa3_backward_params gradients =
      point.backward_params(params, in.device[dout].at(0), dq_.at(0), dk_.at(0), dv_.at(0));
  return [this, gradients] { backward(gradients); };
}

template <class T>
static std::vector<T> download(const tools::DeviceBuffer& buffer, int64_t count) {
  std::vector<T> numbers(static_cast<size_t>(count));
  buffer.download(numbers.data(), numbers.size() * sizeof(T));
  return numbers;
}

std::string Calls::check(const Point& p, const Enqueue& enqueue) {
  enqueue();
  stream_.synchronize();
  const Inputs& in = inputs_of(p.dtype);
  const auto o = download<uint16_t>(o_, p.o_elements());
  const auto lse = download<float>(lse_, p.lse_elements());
  const HostTensors tensors{in.host[q].data(), in.host[k].data(), in.host[v].data(), o.data(), lse.data()};
  const std::string problem = check_rows(p, tensors, protocol_.checked_rows, protocol_.seed);
  if (!p.is_backward() || !problem.empty()) return problem;
  const auto dq = download<uint16_t>(dq_, p.q_elements());
  const auto dk = download<uint16_t>(dk_, p.k_elements()), dv = download<uint16_t>(dv_, p.v_elements());
  const HostGradients gradients{reinterpret_cast<const uint16_t*>(in.host[dout].data()), dq.data(), dk.data(),
                                dv.data()};
  return check_gradients(p, tensors, gradients, protocol_.checked_rows, protocol_.seed);
}

}  // namespace fa3::bench
