#include "measure/calls.h"

#include <algorithm>
#include <stdexcept>

#include "check/check.h"
#include "check/check_gradients.h"
#include "check/samples.h"
#include "half.h"
#include "measure/fp8.h"
#include "params.h"
#include "points/rows.h"
#include "random.h"

namespace fa3::bench {

// Of all the calls that a point takes.
static size_t workspace_size(const Point& p) {
  const size_t forward = tools::workspace_size(p.shapes());
  return p.is_backward() ? std::max(forward, tools::workspace_size(p.backward_shapes())) : forward;
}

fa3_dtype Calls::dtype_of(const Point& p, Input input) { return input == k || input == v ? p.key_dtype() : p.dtype; }

int64_t Calls::elements_of(const Point& p, Input input) {
  if (input == dout) return p.is_backward() ? p.o_elements() : 0;
  return input == q ? p.q_elements() : input == k ? p.k_elements() : p.v_elements();
}

Calls::Calls(const Protocol& protocol, const std::vector<Point>& points) : protocol_(protocol) {
  if (fa3_preload() != FA3_OK) throw tools::CudaError(std::string("fa3_preload: ") + fa3_last_error_message());
  int64_t o_elements = 0, lse_elements = 0, scale_elements = 0, tile_bytes = 0, gradient_elements[3] = {}, heads = 0;
  const auto grow = [](int64_t& size, int64_t to) { size = std::max(size, to); };
  for (const Point& p : points) {
    for (const Input input : {q, k, v, dout}) grow(elements_[{input, dtype_of(p, input)}], elements_of(p, input));
    for (const Input input : {q, k, v}) grow(gradient_elements[input], p.is_backward() ? elements_of(p, input) : 0);
    grow(o_elements, p.o_elements());
    grow(lse_elements, p.lse_elements());
    grow(scale_elements, p.scale_elements());
    grow(heads, p.heads);
    if (p.v == VForm::tiles) grow(tile_bytes, p.batch * p.kv_heads * p.v_groups() * p.v_dim() * v_tile_keys);
    try {
      workspace_bytes_ = std::max(workspace_bytes_, workspace_size(p));
    } catch (const std::runtime_error&) {
      // The point's result tells that the library refuses it.
    }
  }
  workspace_ = tools::DeviceBuffer(workspace_bytes_);
  o_ = tools::DeviceBuffer(size_t(o_elements) * 2);
  lse_ = tools::DeviceBuffer(size_t(lse_elements) * 4);
  for (const auto& [input, buffer] : {std::pair{q, &dq_}, {k, &dk_}, {v, &dv_}})
    if (gradient_elements[input]) *buffer = tools::DeviceBuffer(size_t(gradient_elements[input]) * 2);
  if (gradient_elements[q]) dsinks_ = tools::DeviceBuffer(size_t(heads) * 4);
  if (tile_bytes) tiles_ = tools::DeviceBuffer(size_t(tile_bytes));
  if (scale_elements) {
    const std::vector<float> ones(size_t(scale_elements), 1.0f);
    scales_ = tools::DeviceBuffer(ones.size() * 4);
    scales_.upload(ones.data(), ones.size() * 4);
  }
  constexpr size_t twice_the_cache = size_t{96} << 20;  // of Hopper's 50 MB
  if (protocol_.cold) cache_ = tools::DeviceBuffer(twice_the_cache), copy_ = tools::DeviceBuffer(twice_the_cache);
}

// All points of a dtype read the same N(0,1) numbers, in their own shapes. Beyond so many they repeat themselves: those
// of a large cache need not all be made.
static constexpr int64_t period = int64_t{1} << 27;

const Calls::Numbers& Calls::numbers_of(Input input, fa3_dtype dtype) {
  if (auto found = numbers_.find({input, dtype}); found != numbers_.end()) return found->second;
  Numbers& made = numbers_[{input, dtype}];
  const int64_t all = elements_[{input, dtype}];
  const auto count = size_t(std::min(all, period));
  const uint64_t seed = tools::mix(protocol_.seed, uint64_t(input));
  if (dtype == FA3_DTYPE_E4M3) {
    made.host = normal_e4m3(seed, count);
  } else {
    made.host.resize(count * 2);
    tools::fill_normal(seed, reinterpret_cast<uint16_t*>(made.host.data()), count, dtype);
  }
  const size_t bytes = size_t(all * tools::element_bytes(dtype));
  made.device = tools::DeviceBuffer(bytes);
  for (size_t at = 0; at < bytes; at += made.host.size())
    made.device.upload(made.host.data(), std::min(made.host.size(), bytes - at), at);
  return made;
}

// Where the point's V lies in its form. Tiles are made anew for each point, as they depend on its shape.
void* Calls::v_on_device(const Point& point) {
  if (point.v_in_k()) return on_device(point, k);
  if (point.v == VForm::rows) return on_device(point, v);
  const std::vector<uint8_t> tiles = tiles_of(point, static_cast<const uint8_t*>(on_host(point, v)), period);
  tiles_.upload(tiles.data(), tiles.size());
  return tiles_.at(0);
}

template <class T>
void* Calls::upload(const std::vector<T>& numbers) {
  if (numbers.empty()) return nullptr;
  own_.emplace_back(numbers.size() * sizeof(T));
  own_.back().upload(numbers.data(), numbers.size() * sizeof(T));
  return own_.back().at(0);
}

Addresses Calls::addresses_of(const Point& point) {
  Addresses at{on_device(point, q), on_device(point, k), v_on_device(point), o_.at(0), lse_.at(0), scales_.at(0)};
  own_.clear();
  if (!point.is_planned()) return at;
  const Rows rows(point);
  at.cu_q = upload(rows.cu_q), at.cu_k = upload(rows.cu_k);
  at.used_k = upload(rows.used_k), at.page_table = upload(rows.page_table);
  std::vector<float> sinks, slopes;
  for (int64_t h = 0; h < point.heads; ++h) sinks.push_back(point.sink(h)), slopes.push_back(point.slope(h));
  at.sinks = upload(sinks), at.slopes = upload(slopes);
  return at;
}

// As a server does for all layers of a model.
void Calls::plan_forward(fa3_forward_params& params) {
  size_t bytes = 0;
  if (fa3_forward_schedule_size(&params, 0, &bytes) != FA3_OK)
    throw tools::CudaError(std::string("fa3_forward_schedule_size: ") + fa3_last_error_message());
  if (bytes == 0) return;
  if (schedule_.size() < bytes) schedule_ = tools::DeviceBuffer(bytes);
  if (fa3_forward_schedule(&params, schedule_.at(0), bytes, stream_.get()) != FA3_OK)
    throw tools::CudaError(std::string("fa3_forward_schedule: ") + fa3_last_error_message());
  params.schedule = schedule_.at(0), params.schedule_bytes = bytes;
}

void Calls::forward(const fa3_forward_params& params) const {
  if (fa3_forward(&params, workspace_.at(0), workspace_bytes_, stream_.get()) != FA3_OK)
    throw tools::CudaError(std::string("fa3_forward: ") + fa3_last_error_message());
}

void Calls::backward(const fa3_backward_params& params) const {
  if (fa3_backward(&params, workspace_.at(0), workspace_bytes_, stream_.get()) != FA3_OK)
    throw tools::CudaError(std::string("fa3_backward: ") + fa3_last_error_message());
}

void Calls::empty_cache() const {
  if (cache_.size()) FA3_CU(cuMemcpyDtoDAsync, copy_.get(), cache_.get(), copy_.size(), stream_.get());
}

Calls::Enqueue Calls::prepare(const Point& point) {
  stream_.synchronize();  // what the last point's calls read goes
  for (const tools::DeviceBuffer* output : {&o_, &lse_, &dq_, &dk_, &dv_, &dsinks_}) output->fill(poison_byte);
  fa3_forward_params params = point.params(addresses_of(point));
  if (!point.is_backward()) {
    if (!protocol_.plan_in_call) plan_forward(params);
    return [this, params] { forward(params); };
  }
  forward(params);
  const fa3_backward_params gradients = point.backward_params(
      params, {on_device(point, dout), dq_.at(0), dk_.at(0), dv_.at(0), point.planned.sinks ? dsinks_.at(0) : nullptr});
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
  const auto o = download<uint16_t>(o_, p.o_elements());
  const auto lse = download<float>(lse_, p.lse_elements());
  const HostTensors tensors{on_host(p, q), on_host(p, k), p.v_in_k() ? nullptr : on_host(p, v), o.data(), lse.data(),
                            period};
  const std::string problem = check_rows(p, tensors, protocol_.checked_rows, protocol_.seed);
  if (!p.is_backward() || !problem.empty()) return problem;
  const auto dq = download<uint16_t>(dq_, p.q_elements());
  const auto dk = download<uint16_t>(dk_, p.k_elements()), dv = download<uint16_t>(dv_, p.v_elements());
  const auto dsinks = download<float>(dsinks_, p.heads);
  const HostGradients gradients{static_cast<const uint16_t*>(on_host(p, dout)), dq.data(), dk.data(), dv.data(),
                                dsinks.data()};
  return check_gradients(p, tensors, gradients, protocol_.checked_rows, protocol_.seed);
}

}  // namespace fa3::bench
