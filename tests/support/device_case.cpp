#include "device_case.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "params.h"
#include "random.h"

namespace fa3::test {

namespace {
// The workspace proper stands 16 bytes past a 256-byte boundary: the alignment promised, and no more.
constexpr size_t workspace_at = 272, behind_workspace = 688;
constexpr auto workspace_guard = std::byte{0xa5};
}  // namespace

std::vector<int> DeviceCase::outputs_of(const Case& made) {
  return made.problem.want_lse ? std::vector{made.o.image, made.lse.image} : std::vector{made.o.image};
}

bool DeviceCase::is_output(size_t image) const {
  return std::find(outputs_.begin(), outputs_.end(), int(image)) != outputs_.end();
}

void DeviceCase::upload_all() {
  for (const Image& image : initial_) {
    buffers_.push_back(tools::DeviceBuffer::for_tensor(std::max<size_t>(image.size(), 16)));
    if (!image.empty()) buffers_.back().upload(image.data(), image.size());
  }
}

std::vector<void*> DeviceCase::bases() const {
  std::vector<void*> bases;
  for (const tools::DeviceBuffer& buffer : buffers_) bases.push_back(buffer.at(0));
  return bases;
}

void DeviceCase::make_workspace() {
  workspace_bytes_ = tools::workspace_size(params_);
  workspace_ = tools::DeviceBuffer(workspace_at + workspace_bytes_ + behind_workspace);
}

static void must(fa3_status status, const char* call) {
  if (status != FA3_OK) throw std::runtime_error(std::string(call) + ": " + fa3_last_error_message());
}

void DeviceCase::reserve_schedule() {
  must(fa3_forward_schedule_size(&params_, 0, &schedule_bytes_), "fa3_forward_schedule_size");
  schedule_ = tools::DeviceBuffer(std::max<size_t>(schedule_bytes_, 16));
  schedule_.fill(0xff);
}

void DeviceCase::make_schedule(const tools::Stream& stream) {
  if (schedule_.size() == 0) reserve_schedule();
  must(fa3_forward_schedule(&params_, schedule_.at(0), schedule_bytes_, stream.get()), "fa3_forward_schedule");
  params_.schedule = schedule_.at(0), params_.schedule_bytes = schedule_bytes_;
}

void DeviceCase::take_schedule(const DeviceCase& from) {
  params_.schedule = from.params_.schedule, params_.schedule_bytes = from.params_.schedule_bytes;
}

void DeviceCase::reset(WorkspaceFill fill) {
  for (int image : outputs_) {
    const Image& poison = initial_[size_t(image)];
    if (!poison.empty()) buffers_[size_t(image)].upload(poison.data(), poison.size());
  }
  std::vector<std::byte> bytes(workspace_.size(), workspace_guard);
  std::byte* inside = bytes.data() + workspace_at;
  if (fill != WorkspaceFill::random)
    std::fill_n(inside, workspace_bytes_, fill == WorkspaceFill::zeros ? std::byte{0} : std::byte{0xff});
  else
    for (size_t i = 0; i < workspace_bytes_; i += sizeof(uint64_t)) {
      const uint64_t random = tools::mix(fills_, i);
      std::memcpy(inside + i, &random, std::min(sizeof random, workspace_bytes_ - i));
    }
  ++fills_;
  workspace_.upload(bytes.data(), bytes.size());
}

void DeviceCase::upload_inputs_of(const std::vector<Image>& images) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (is_output(i) || images[i].empty()) continue;
    buffers_[i].upload(images[i].data(), images[i].size());
    initial_[i] = images[i];
  }
}

fa3_status DeviceCase::try_launch(const tools::Stream& stream) const {
  return fa3_forward(&params_, workspace_.at(workspace_at), workspace_bytes_, stream.get());
}

void DeviceCase::launch(const tools::Stream& stream) const {
  must(try_launch(stream), "fa3_forward");
}

void DeviceCase::download_outputs(const tools::Stream& stream, std::vector<Image>& images) const {
  stream.synchronize();
  for (int image : outputs_)
    if (Image& into = images[size_t(image)]; !into.empty()) buffers_[size_t(image)].download(into.data(), into.size());
}

std::string DeviceCase::check_inputs() const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (is_output(i) || initial_[i].empty()) continue;
    Image now(initial_[i].size());
    buffers_[i].download(now.data(), now.size());
    const auto [changed, before] = std::mismatch(now.begin(), now.end(), initial_[i].begin());
    if (changed != now.end())
      return "byte " + std::to_string(changed - now.begin()) + " of input " + std::to_string(i) + " was overwritten";
  }
  return "";
}

std::string DeviceCase::check_workspace() const {
  std::vector<std::byte> bytes(workspace_at + behind_workspace);
  workspace_.download(bytes.data(), workspace_at);
  workspace_.download(bytes.data() + workspace_at, behind_workspace, workspace_at + workspace_bytes_);
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != workspace_guard)
      return "byte " + std::to_string(i < workspace_at ? i : i + workspace_bytes_) +
             " was overwritten; the workspace begins at " + std::to_string(workspace_at) + " and has " +
             std::to_string(workspace_bytes_);
  return "";
}

template <class Made, class Right>
static std::string run_and_verify_any(Made& made, const Right& expected, const tools::Stream& stream, int repeats) {
  try {
    constexpr WorkspaceFill fills[] = {WorkspaceFill::random, WorkspaceFill::ones, WorkspaceFill::zeros};
    DeviceCase device(made);
    std::vector<Image> first;
    for (int i = 0; i < repeats; ++i) {
      device.reset(fills[i % 3]);
      device.launch(stream);
      device.download(stream, made);
      if (std::string problem = device.check_workspace(); !problem.empty()) return problem;
      if (i == 0) {
        if (std::string problem = verify(made, expected); !problem.empty()) return problem;
        first = made.images;
      } else if (made.images != first) {
        return "run " + std::to_string(i + 1) + " gave other bits than run 1";
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::string run_and_verify(Case& made, const Expected& expected, const tools::Stream& stream, int repeats) {
  return run_and_verify_any(made, expected, stream, repeats);
}

std::string run_and_verify(PlannedCase& made, const PlannedExpected& expected, const tools::Stream& stream,
                           int repeats) {
  return run_and_verify_any(made, expected, stream, repeats);
}

std::string run_and_verify(const Problem& problem, const tools::Stream& stream, int repeats) {
  Case made(problem);
  return run_and_verify(made, expect(made), stream, repeats);
}

}  // namespace fa3::test
