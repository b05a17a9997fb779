#include "measure.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "fp8.h"
#include "nvml.h"
#include "params.h"
#include "random.h"

namespace fa3::bench {

Bench::Bench(const Protocol& protocol, const std::vector<Point>& points)
    : protocol_(protocol) {
  if (fa3_preload() != FA3_OK) throw tools::CudaError(std::string("fa3_preload: ") + fa3_last_error_message());
  for (const Point& p : points) {
    q_elements_ = std::max(q_elements_, size_t(p.q_elements()));
    kv_elements_ = std::max(kv_elements_, size_t(p.kv_elements()));
    lse_elements_ = std::max(lse_elements_, size_t(p.batch * p.heads * p.seqlen));
    scale_elements_ = std::max(scale_elements_, size_t(p.scale_elements()));
    if (p.v == VForm::tiles)
      tile_bytes_ = std::max(tile_bytes_, size_t(p.batch * p.kv_heads * p.v_groups() * p.head_dim * v_tile_keys));
    try {
      workspace_bytes_ = std::max(workspace_bytes_, tools::workspace_size(p.shapes()));
    } catch (const std::runtime_error&) {
      // The point's result tells that the library refuses it.
    }
  }
  workspace_ = tools::DeviceBuffer(workspace_bytes_);
  o_ = tools::DeviceBuffer(q_elements_ * 2);
  lse_ = tools::DeviceBuffer(lse_elements_ * 4);
  if (tile_bytes_) tiles_ = tools::DeviceBuffer(tile_bytes_);
  if (scale_elements_) {
    const std::vector<float> ones(scale_elements_, 1.0f);
    scales_ = tools::DeviceBuffer(ones.size() * 4);
    scales_.upload(ones.data(), ones.size() * 4);
  }
}

// All points of a dtype read the same N(0,1) numbers, in their own shapes.
const Bench::Inputs& Bench::inputs(fa3_dtype dtype) {
  if (auto found = inputs_.find(dtype); found != inputs_.end()) return found->second;
  Inputs& made = inputs_[dtype];
  for (int t = 0; t < 3; ++t) {
    const size_t count = t == 0 ? q_elements_ : kv_elements_;
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
void* Bench::v_on_device(const Point& point, const Inputs& inputs) {
  if (point.v == VForm::rows) return inputs.device[2].at(0);
  const std::vector<uint8_t> tiles = tiles_of(point, inputs.host[2].data());
  tiles_.upload(tiles.data(), tiles.size());
  return tiles_.at(0);
}

void Bench::enqueue(const fa3_forward_params& params) const {
  if (fa3_forward(&params, workspace_.at(0), workspace_bytes_, stream_.get()) != FA3_OK)
    throw tools::CudaError(std::string("fa3_forward: ") + fa3_last_error_message());
}

void Bench::check(Result& result, const Inputs& inputs, const fa3_forward_params& params) {
  const Point& p = result.point;
  o_.fill(poison_byte);
  lse_.fill(poison_byte);
  enqueue(params);
  stream_.synchronize();
  std::vector<uint16_t> o(static_cast<size_t>(p.q_elements()));
  std::vector<float> lse(static_cast<size_t>(p.batch * p.heads * p.seqlen));
  o_.download(o.data(), o.size() * 2);
  lse_.download(lse.data(), lse.size() * 4);
  const HostTensors tensors{inputs.host[0].data(), inputs.host[1].data(), inputs.host[2].data(), o.data(), lse.data()};
  result.problem = check_rows(p, tensors, protocol_.checked_rows, protocol_.seed);
  result.checked = result.problem.empty();
}

// The clock that power allows: sampled while the same call repeats for a third of a second, after as long a run-up.
double Bench::measure_clock(const fa3_forward_params& params) const {
  const Nvml nvml;
  std::vector<double> samples;
  const auto start = std::chrono::steady_clock::now();
  for (double seconds = 0; seconds < 0.7;
       seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()) {
    for (int i = 0; i < 8; ++i) enqueue(params);
    if (seconds > 0.35) samples.push_back(nvml.sm_clock_mhz());
    stream_.synchronize();
  }
  std::sort(samples.begin(), samples.end());
  return samples.empty() ? 0 : quantile(samples, 0.5);
}

void Bench::run(Result& result) {
  if (!result.problem.empty()) return;
  const Inputs& in = inputs(result.point.dtype);
  const fa3_forward_params params = result.point.params(in.device[0].at(0), in.device[1].at(0),
                                                        v_on_device(result.point, in), o_.at(0), lse_.at(0),
                                                        scales_.at(0));
  if (result.pass_medians.empty() && protocol_.checked_rows > 0) {
    check(result, in, params);
    if (!result.checked) return;
  }
  if (result.pass_medians.empty()) enqueue(params);  // loads the kernel, if fa3_preload has not
  std::vector<tools::Event> events(2 * size_t(protocol_.reps));
  std::this_thread::sleep_for(std::chrono::milliseconds(protocol_.idle_ms));
  for (int i = 0; i < protocol_.warmups; ++i) enqueue(params);
  for (size_t i = 0; i < events.size(); i += 2) {
    events[i].record(stream_);
    enqueue(params);
    events[i + 1].record(stream_);
  }
  stream_.synchronize();
  std::vector<double> milliseconds;
  for (size_t i = 0; i < events.size(); i += 2) milliseconds.push_back(events[i + 1].milliseconds_since(events[i]));
  result.add_pass(std::move(milliseconds));
  if (protocol_.clock) result.clock_mhz = measure_clock(params);
}

}  // namespace fa3::bench
