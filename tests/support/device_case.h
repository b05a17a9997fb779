// A case's memory on the GPU, and calls of the library on it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "memory.h"
#include "oracle.h"

namespace fa3::test {

// What the workspace holds before a call; the header promises that it does not matter.
enum class WorkspaceFill { zeros, ones, random };

class DeviceCase {
 public:
  explicit DeviceCase(const Case& made);

  // Poisons the outputs again and fills the workspace.
  void reset(WorkspaceFill fill);
  // Replaces the inputs by those of a case of the same shape and layouts.
  void upload_inputs(const Case& from);
  // Enqueues the call; throws with the library's message if it is refused.
  void launch(const tools::Stream& stream) const;
  fa3_status try_launch(const tools::Stream& stream) const;
  // Waits for the stream and copies the outputs into the case's images.
  void download(const tools::Stream& stream, Case& into) const;
  // Empty, or a description of bytes that changed around the workspace.
  std::string check_workspace() const;
  fa3_forward_params params() const { return params_; }
  // What the library asks for; more than the least if it splits the problem along the keys.
  size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  std::vector<Image> initial_;
  std::vector<int> outputs_;
  std::vector<tools::DeviceBuffer> buffers_;
  size_t workspace_bytes_;
  tools::DeviceBuffer workspace_;
  fa3_forward_params params_{};
  uint64_t fills_ = 0;
};

// Runs the case `repeats` times with differently filled workspaces: the first result is verified, the others must have
// the same bits. Returns "" or what went wrong; never asserts, so any thread may call it.
std::string run_and_verify(Case& made, const Expected& expected, const tools::Stream& stream, int repeats = 3);
std::string run_and_verify(const Problem& problem, const tools::Stream& stream, int repeats = 3);

}  // namespace fa3::test
