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

DeviceCase::DeviceCase(const Case& made) : initial_(made.images), outputs_{made.o.image} {
  if (made.problem.want_lse) outputs_.push_back(made.lse.image);
  std::vector<void*> bases;
  for (const Image& image : made.images) {
    buffers_.emplace_back(image.size());
    buffers_.back().upload(image.data(), image.size());
    bases.push_back(buffers_.back().at(0));
  }
  params_ = made.params(bases);
  workspace_bytes_ = tools::workspace_size(params_);
  workspace_ = tools::DeviceBuffer(workspace_at + workspace_bytes_ + behind_workspace);
}

void DeviceCase::reset(WorkspaceFill fill) {
  for (int image : outputs_) {
    const Image& poison = initial_[size_t(image)];
    buffers_[size_t(image)].upload(poison.data(), poison.size());
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

void DeviceCase::upload_inputs(const Case& from) {
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (std::find(outputs_.begin(), outputs_.end(), int(i)) == outputs_.end())
      buffers_[i].upload(from.images[i].data(), from.images[i].size());
}

fa3_status DeviceCase::try_launch(const tools::Stream& stream) const {
  return fa3_forward(&params_, workspace_.at(workspace_at), workspace_bytes_, stream.get());
}

void DeviceCase::launch(const tools::Stream& stream) const {
  if (const fa3_status status = try_launch(stream); status != FA3_OK)
    throw std::runtime_error(std::string("fa3_forward: ") + fa3_status_string(status) + ": " +
                             fa3_last_error_message());
}

void DeviceCase::download(const tools::Stream& stream, Case& into) const {
  stream.synchronize();
  for (int image : outputs_)
    buffers_[size_t(image)].download(into.images[size_t(image)].data(), initial_[size_t(image)].size());
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

std::string run_and_verify(Case& made, const Expected& expected, const tools::Stream& stream, int repeats) {
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

std::string run_and_verify(const Problem& problem, const tools::Stream& stream, int repeats) {
  Case made(problem);
  return run_and_verify(made, expect(made), stream, repeats);
}

}  // namespace fa3::test
