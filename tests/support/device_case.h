// A case's memory on the GPU, and calls of the library on it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "problems/memory.h"
#include "references/oracle.h"
#include "planned_case.h"

namespace fa3::test {

// What the workspace holds before a call; the header promises that it does not matter.
enum class WorkspaceFill { zeros, ones, random };

class DeviceCase {
 public:
  explicit DeviceCase(const Case& made) : DeviceCase(made, made.images, outputs_of(made)) {}
  explicit DeviceCase(const PlannedCase& made) : DeviceCase(made, made.images, made.outputs()) {}

  // Poisons the outputs again and fills the workspace.
  void reset(WorkspaceFill fill);
  // Replaces the inputs by those of a case of the same shape and layouts.
  template <class Made>
  void upload_inputs(const Made& from) {
    upload_inputs_of(from.images);
  }
  // Memory for a schedule: while a stream is capturing there can be none.
  void reserve_schedule();
  // Enqueues fa3_forward_schedule into memory of the case's own, which later calls are given.
  void make_schedule(const tools::Stream& stream);
  // Later calls are given another case's schedule.
  void take_schedule(const DeviceCase& from);
  // Enqueues the call; throws with the library's message if it is refused.
  void launch(const tools::Stream& stream) const;
  fa3_status try_launch(const tools::Stream& stream) const;
  // Waits for the stream and copies the outputs into the case's images.
  template <class Made>
  void download(const tools::Stream& stream, Made& into) const {
    download_outputs(stream, into.images);
  }
  // Empty, or a description of bytes that changed around the workspace.
  std::string check_workspace() const;
  // Empty, or a description of an input that changed, in its elements or around them.
  std::string check_inputs() const;
  fa3_forward_params params() const { return params_; }
  // What the library asks for; more than the least if it splits the problem along the keys.
  size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  static std::vector<int> outputs_of(const Case& made);
  template <class Made>
  DeviceCase(const Made& made, const std::vector<Image>& images, const std::vector<int>& outputs)
      : initial_(images), outputs_(outputs) {
    upload_all();
    params_ = made.params(bases());
    make_workspace();
  }
  bool is_output(size_t image) const;
  void upload_all();
  std::vector<void*> bases() const;
  void make_workspace();
  void upload_inputs_of(const std::vector<Image>& images);
  void download_outputs(const tools::Stream& stream, std::vector<Image>& images) const;

  std::vector<Image> initial_;
  std::vector<int> outputs_;
  std::vector<tools::DeviceBuffer> buffers_;
  size_t workspace_bytes_;
  tools::DeviceBuffer workspace_, schedule_;
  size_t schedule_bytes_ = 0;
  fa3_forward_params params_{};
  uint64_t fills_ = 0;
};

// Runs the case `repeats` times with differently filled workspaces: the first result is verified, the others must have
// the same bits. Returns "" or what went wrong; never asserts, so any thread may call it.
std::string run_and_verify(Case& made, const Expected& expected, const tools::Stream& stream, int repeats = 3);
std::string run_and_verify(const Problem& problem, const tools::Stream& stream, int repeats = 3);
std::string run_and_verify(PlannedCase& made, const PlannedExpected& expected, const tools::Stream& stream,
                           int repeats = 3);

}  // namespace fa3::test
